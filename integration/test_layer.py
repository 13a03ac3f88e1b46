"""Give the tool's own environment the runtime's dependency layer (torch, Triton, transformers) for the tests.

`make test` runs this; `make runtime` does not, so that the tool's environment stays small.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sm120.integration.checkout import find_checkout
from sm120.integration.runtime import link_layer


def main() -> None:
    checkout = find_checkout()
    manifest = json.loads((checkout.runtime / "runtime.json").read_text())
    link_layer(Path(sys.prefix), checkout.build / "deps" / manifest["deps"])


if __name__ == "__main__":
    main()
