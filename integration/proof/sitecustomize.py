"""Entry point of the proof layer: Python imports this module at start-up when this folder is on PYTHONPATH.

Loads every stand-in of this folder. None of them enters a wheel; a result that passes through one says so.
"""

import torchvision_ops  # noqa: F401
