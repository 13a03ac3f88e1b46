"""Makes the folder's shared modules importable, and transformers beside a CPU build of torch."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torchvision_schemas  # noqa: F401
