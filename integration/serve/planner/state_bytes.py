"""The byte formulas that ship inside the runtime, loaded from their own file.

They are the overlay `kernels/hybrid_state/state_bytes.py`, which needs nothing but the standard library. Loading the
file rather than importing the kernel package keeps the rule that integration imports no kernel, and keeps one formula
for the pool, the estimator and this planner.
"""

import importlib.util
from pathlib import Path
from types import ModuleType

FILE = Path(__file__).resolve().parents[3] / "kernels" / "hybrid_state" / "state_bytes.py"


def load(file: Path = FILE) -> ModuleType:
    """Execute the formula file as a module. Raises ValueError, naming it, when it is not there."""
    if not file.is_file():
        raise ValueError(f"{file}: the byte formulas are missing; they ship with the kernels folder")
    spec = importlib.util.spec_from_file_location("sm120_state_bytes", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


formulas = load()
