"""Makes the folder's shared modules importable, and transformers beside a CPU build of torch."""

import functools
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import torchvision_schemas  # noqa: F401
from mrope_cpu_build import jit_module, library


@pytest.fixture
def host_modules() -> dict[str, object]:
    if os.environ.get("SM120_DEVICE") == "ptx":
        import mrope_ptx

        return {"fused_qk_norm_mrope": mrope_ptx.jit_module}
    return {"fused_qk_norm_mrope": functools.partial(jit_module, library())}
