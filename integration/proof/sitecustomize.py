"""Entry point of the proof layer: Python imports this module at start-up when this folder is on PYTHONPATH.

It only registers what to replace and where. Nothing heavy is imported here: a stand-in runs when, and only when, the
upstream module that it patches is imported.
"""

import stand_ins

stand_ins.install()
