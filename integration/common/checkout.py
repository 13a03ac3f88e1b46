"""Where things are in a checkout of this repository."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sm120.integration.common.caches import user_cache
from sm120.integration.common.refusal import Refusal


@dataclass(frozen=True)
class Checkout:
    """Paths of one checkout; `build/` is the only folder that commands write to."""

    root: Path

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def kernels(self) -> Path:
        return self.root / "kernels"

    @property
    def locks(self) -> Path:
        return self.root / "integration" / "locks"

    @property
    def proof(self) -> Path:
        return self.root / "integration" / "prove" / "cpu_layer"

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def runtime(self) -> Path:
        """The installed runtime: a symlink that moves only when a new one is complete."""
        return self.build / "runtime"

    @property
    def cache(self) -> Path:
        """Content-addressed artifacts, shared by all checkouts of this user; of this one where the home is read-only."""
        if configured := os.environ.get("SM120_CACHE"):
            return Path(configured)
        shared = user_cache()
        return shared / "sm120" if shared else self.build / "cache"

    def projects(self) -> list[str]:
        """Upstream projects that have a pin, sorted."""
        return sorted(pin.parent.name for pin in self.patches.glob("*/pin.toml"))


def find_checkout(start: Path | None = None) -> Checkout:
    """The checkout around `start` (default: the current folder), or the one this package is installed from.

    Raises:
        Refusal: `no-checkout` when neither is inside a checkout.
    """
    here = (start or Path.cwd()).resolve()
    installed_from = Path(__file__).resolve().parent
    for folder in [here, *here.parents, *installed_from.parents]:
        if (folder / "patches").is_dir() and (folder / "kernels").is_dir() and (folder / "integration").is_dir():
            return Checkout(folder)
    raise Refusal("no-checkout", f"no checkout of sm120-runtime around {here}", fix="cd into your clone and run again")
