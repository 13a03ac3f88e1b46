"""Makes the folder's shared modules importable, and transformers beside a CPU build of torch."""

import functools
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import torchvision_schemas  # noqa: F401
from mrope_cpu_build import jit_module, library


@pytest.fixture
def host_modules() -> dict[str, object]:
    return {"fused_qk_norm_mrope": functools.partial(jit_module, library())}
