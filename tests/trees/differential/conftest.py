"""Makes the probes' drivers importable for the checks of this folder, which run on a tree that has sglang."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "probes" / "sglang"))
