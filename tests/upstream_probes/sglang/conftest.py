"""These probes use the benches that lie beside the patches' own probes."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "probes" / "sglang"))
