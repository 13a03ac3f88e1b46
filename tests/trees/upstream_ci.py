"""An exported series as upstream's own CI meets it: its tree, its collector, its hooks, its interpreter without us."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from ruff import find_ruff_bin

from sm120.integration.build.identity import Recipe, load_recipe
from sm120.integration.build.runtime import link_test_layer, pristine_of, site_packages
from sm120.integration.series.pin import Pin
from sm120.integration.upstream.export import upstream_tests

from .conftest import CHECKOUT

# All that stands in for something: torchvision's operators, which do not load beside a CPU build of torch.
TORCHVISION = """
import importlib.abc, sys
class Schemas(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch
            library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in ("nms", "qnms"):
                library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            torch.library._torchvision_schemas = library
sys.meta_path.insert(0, Schemas())
"""
# As in upstream's pre-commit configuration of codespell: words of the field that it takes for misspelled ones.
SPELLED = "ans,als,hel,boostrap,childs,te,vas,hsa,ment,cann,thi,makro,wil,rouge,PRIS"


def lay_out(recipe: Recipe, tree: Path, folder: Path) -> list[Path]:
    """Put `tree` (the release with a series or part of it) and the tests of the series where upstream keeps them.

    Returns the test files; the modules that they share are in their places too.
    """
    pin = recipe.series.pin
    for place in pin.paths:
        if (tree / place.wheel).is_dir():
            shutil.copytree(tree / place.wheel, folder / place.upstream, copy_function=os.link, dirs_exist_ok=True)
    files = []
    for patch in recipe.series.patches:
        tests = upstream_tests(CHECKOUT, pin, patch)
        for target, text in tests:
            path = folder / target
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # a link to the tree is not written through
            path.write_text(text)
        files.append(folder / tests[0][0])
    return files


def environment(folder: Path, *, nixl: bool = True) -> dict[str, str]:
    """What a test process of upstream's has: the exported tree, released companions, nothing of ours."""
    link_test_layer(CHECKOUT)
    stub = folder / "stub"
    stub.mkdir(exist_ok=True)
    (stub / "sitecustomize.py").write_text(TORCHVISION)
    companions = folder / "companions"
    if nixl and not companions.is_dir():
        companions.mkdir()
        for name in ("nixl", "nixl_meta_utils.py"):  # the unpatched small distribution that `import nixl` is
            (companions / name).symlink_to(site_packages(CHECKOUT.runtime) / name)
    released = [pristine_of(CHECKOUT, load_recipe(CHECKOUT, name)) for name in ("flashinfer", "nixl")[: 1 + nixl]]
    path = [folder / "python", stub, *released, *([companions] if nixl else [])]
    foreign = ("CI", "BUILD_NUMBER", "TRITON_INTERPRET", "SGLANG_USE_CPU_ENGINE", "PYTHONPATH")
    return {name: value for name, value in os.environ.items() if name not in foreign} | {
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "PYTHONPYCACHEPREFIX": str(CHECKOUT.build / "pycache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


def run(command: list[str | Path], folder: Path, *, nixl: bool = True, timeout: float = 540) -> tuple[int, str]:
    """Exit status and output of `python COMMAND` in `folder`, as upstream's CI would run it."""
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env=environment(folder, nixl=nixl),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    return result.returncode, result.stdout + result.stderr


def sets_interpreter(path: Path) -> bool:
    """Whether the test asks for Triton's interpreter itself, before it imports a kernel."""
    return "TRITON_INTERPRET" in path.read_text()


def complaints(folder: Path, pin: Pin, names: list[str], cpp_style: Path | None = None) -> list[str]:
    """What the hooks of `pin`'s project say of the files `names` below `folder`, a line for each complaint."""
    python = [name for name in names if name.endswith((".py", ".pyi"))]
    cpp = [name for name in names if name.endswith((".cu", ".cuh", ".h", ".hpp", ".cpp"))]
    style, said = pin.python_style, []
    line_length = f"--line-length={style.line_length}"
    if style.formatter == "black":
        commands = [
            [sys.executable, "-m", "black", "--check", "--quiet", line_length],
            [sys.executable, "-m", "isort", "--profile=black", "--check-only", "--settings-path=/dev/null"],
        ]
    else:
        party = ", ".join(f'"{name}"' for name in style.first_party)
        commands = [
            [find_ruff_bin(), "format", "--isolated", "--quiet", "--check", line_length],
            [
                *(find_ruff_bin(), "check", "--isolated", "--quiet", "--select=I", line_length),
                f"--config=lint.isort.known-first-party=[{party}]",
            ],
        ]
    commands = [(command, python) for command in commands]
    commands.append(([sys.executable, "-m", "codespell_lib", "-L", SPELLED], names))
    if cpp_style is not None:
        commands.append(
            ([Path(sys.executable).with_name("clang-format"), f"--style=file:{cpp_style}", "--dry-run", "-Werror"], cpp)
        )
    for command, files in commands:
        for name in files if files and not _agrees(folder, command, files) else ():
            if not _agrees(folder, command, [name]):
                said.append(f"{name}: {Path(command[0]).name if command[0] != sys.executable else command[2]}")
    for name in names:
        text = (folder / name).read_text(errors="replace")
        if re.search(r"[ \t]$", text, re.MULTILINE):
            said.append(f"{name}: trailing white space")
        if not text.endswith("\n") or text.endswith("\n\n"):
            said.append(f"{name}: end of file")
    return said


def _agrees(folder: Path, command: list[str], files: list[str]) -> bool:
    return subprocess.run([*command, *files], cwd=folder, capture_output=True).returncode == 0
