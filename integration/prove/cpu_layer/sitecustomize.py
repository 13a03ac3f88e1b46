"""Entry point of the proof layer: Python imports this module at start-up when this folder is on PYTHONPATH.

It only registers what to replace and where. Nothing heavy is imported here: a stand-in runs when, and only when, the
upstream module that it patches is imported.
"""

import gc
import os
import sys
import traceback

import stand_ins

# Importing SGLang makes hundreds of thousands of objects that stay: looking for garbage among them was a quarter of it.
gc.set_threshold(50_000)

try:
    stand_ins.install()
except Exception:
    # Python would report the error and run on without the layer; a fault that silently did not load is worse than none.
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(70)
