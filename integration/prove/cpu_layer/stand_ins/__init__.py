"""Stand-ins for the accelerator that a CPU-only machine lacks, one file per thing stood in for.

They let the unmodified patched wheels serve on a CPU. None of them enters a wheel, and none imports sm120. The README
beside this package says for each one what a test that passes through it does not prove.
"""

import importlib
import importlib.util
import os
import pkgutil

from .hook import StandInRefused, after, before, install_finder, replace

__all__ = ["StandInRefused", "after", "before", "install", "replace"]


def install() -> None:
    """Register every stand-in of this package, then the extra hook files named in PROOF_EXTRA (os.pathsep between).

    An extra file uses the same three words as a stand-in (`from stand_ins import after, before, replace`); tests put
    their deliberate faults there. A file that does not exist raises FileNotFoundError.
    """
    for entry in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{entry.name}")
    install_finder()  # before the extra files: one that imports torch itself must not slip past the stand-ins for it
    for number, path in enumerate(filter(None, os.environ.get("PROOF_EXTRA", "").split(os.pathsep))):
        spec = importlib.util.spec_from_file_location(f"proof_extra_{number}", path)
        if spec is None or spec.loader is None:
            raise StandInRefused(f"PROOF_EXTRA: {path}: not a Python file")
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
