"""The torchvision stand-ins declare only what is not there: a second declaration ends the process."""

import subprocess
import sys
from pathlib import Path

import pytest

from sm120.integration.common.checkout import find_checkout

pytestmark = pytest.mark.runtime  # whose layer has torch

SCHEMAS = find_checkout().root / "kernels" / "mrope" / "tests" / "torchvision_schemas.py"
DEFINE = """
import torch
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def torchvision(folder: Path, extension: str) -> Path:
    """A package that does at import what torchvision does: load its operators, then register fakes for them."""
    package = folder / "torchvision"
    package.mkdir()
    (package / "extension.py").write_text(extension)
    fakes = "".join(
        f"torch.library.register_fake('torchvision::{name}', lambda d, s, i: s)\n" for name in ("nms", "qnms")
    )
    (package / "__init__.py").write_text(f"import torch\nfrom . import extension\n{fakes}")
    return folder


def python(code: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    path = ":".join(map(str, paths))
    return subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True)


@pytest.mark.parametrize("extension", ["", DEFINE], ids=["cannot-load", "registers-its-own"])
def test_proof_layer(tmp_path: Path, extension: str) -> None:
    checkout = find_checkout()
    code = "import torch, torchvision; print(torch.ops.torchvision.nms, torch.ops.torchvision.qnms)"
    done = python(code, checkout.proof, torchvision(tmp_path, extension))
    assert (done.returncode, done.stdout.strip()) == (0, "torchvision.nms torchvision.qnms"), done.stderr


@pytest.mark.parametrize("loads", [False, True], ids=["cannot-load", "registers-its-own"])
def test_kernel_tests(tmp_path: Path, loads: bool) -> None:
    """The library beside the package is what registers the operators: here by a loader that does the same."""
    library = f"exec({DEFINE!r}, globals())" if loads else "raise OSError('undefined symbol')"
    code = f"""
import runpy, torch
def load_library(path):
    assert path.endswith("torchvision/_C.so"), path
    {library}
torch.ops.load_library = load_library
kept = runpy.run_path({str(SCHEMAS)!r})
import torchvision
print(torch.ops.torchvision.nms, torch.ops.torchvision.qnms)
"""
    done = python(code, torchvision(tmp_path, ""))
    assert (done.returncode, done.stdout.strip()) == (0, "torchvision.nms torchvision.qnms"), done.stderr


def test_without_the_stand_in(tmp_path: Path) -> None:
    done = python("import torchvision", torchvision(tmp_path, ""))
    assert done.returncode != 0 and "torchvision::nms" in done.stderr
