"""Every overlaid definition can run from the patch that ships it, and what cannot is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sm120.integration.common.checkout import find_checkout

sys.path.insert(0, str(Path(__file__).parent))
from overlay_reachability import unreached

ROOT = find_checkout(Path(__file__).parent).root
# The planner loads the byte formulas that ship (docs/decisions/0031) and needs some more of them.
PLANNER = sorted(ROOT.glob("integration/**/planner/*.py"))
# `sm120 namespace gc` runs the rules of the page index that ships (docs/decisions/0240).
LIMITS = sorted(ROOT.glob("integration/**/page_limits.py"))


@pytest.mark.runtime
def test_every_overlaid_definition_is_reached_from_the_patched_tree(recipe, patched) -> None:
    kernels: dict[str, list[str]] = {}
    for file in recipe.overlay:
        kernels.setdefault(file.kernel, []).append(file.target)
    touched = sorted({file for patch in recipe.series.patches for file in patch.touched})
    found = {kernel: unreached(patched, targets, touched, [*PLANNER, *LIMITS]) for kernel, targets in kernels.items()}
    assert {kernel: lines for kernel, lines in found.items() if lines} == {}


OP = """
import torch
from pkg.jit import load_jit

LIMIT = 4
UNUSED = 5


class Window:
    def layer(self):
        return 1

    def row(self):
        return 2


def fill(mask, q_len, full=False, *, scale=1.0):
    _check("mask", mask, LIMIT)
    return load_jit("m", cuda_files=["m.cuh"], cuda_wrappers=[("fill", "Launcher<4>::run")]), Window()


def tree(mask):
    return fill(mask, 3)


def _check(name, mask, limit):
    assert mask is not None, name
"""
HEADER = """
// comment: orphan()
namespace mask {
constexpr int kThreads = 128;
constexpr int kForgotten = 1;
struct Params {
  void* out;
  float factor;  // never read
  uint8_t axes[32];
};
template <typename T>
__device__ __forceinline__ int words(T q) {
  return q + kThreads;
}
__device__ int orphan() {
  return words<int>(3);
}
template <typename T, bool kStore>
__global__ void __launch_bounds__(kThreads, 2)
    kernel(Params p) {
  static_cast<T*>(p.out)[0] = words(p.axes[0]);
}
}  // namespace mask
struct Launcher {
  static void run() { mask::kernel<int, false><<<1, 1>>>({}); }
};
"""
USES = "from pkg.ops.m import fill\n\n\ndef use(mask, window):\n    return fill(mask, 8), window.layer()\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {"ops/m.py": OP, "csrc/m.cuh": HEADER, "model.py": USES}.items():
        (tmp_path / "pkg" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pkg" / name).write_text(text)
    return tmp_path


def test_what_cannot_run_is_named(tree: Path) -> None:
    assert unreached(tree, ["pkg/ops/m.py", "pkg/csrc/m.cuh"], ["pkg/model.py"]) == [
        "pkg/ops/m.py: nothing uses UNUSED",
        "pkg/ops/m.py: nothing uses tree",
        "pkg/ops/m.py: nothing calls Window.row",
        "pkg/ops/m.py: _check: every call gives name = 'mask'",
        "pkg/ops/m.py: fill: no call gives full",
        "pkg/ops/m.py: fill: no call gives scale",
        "pkg/csrc/m.cuh: nothing uses kForgotten",
        "pkg/csrc/m.cuh: nothing uses orphan",
        "pkg/csrc/m.cuh: nothing uses Params.factor",
        "pkg/csrc/m.cuh: a template argument is a constant: kernel<int, false>",
    ]


def test_an_import_that_is_not_used_reaches_nothing(tree: Path) -> None:
    (tree / "pkg/model.py").write_text("from pkg.ops.m import fill\n")
    found = unreached(tree, ["pkg/ops/m.py", "pkg/csrc/m.cuh"], ["pkg/model.py"])
    assert "pkg/ops/m.py: nothing uses fill" in found and "pkg/csrc/m.cuh: nothing uses Launcher" in found


def test_a_file_that_shares_the_overlay_is_a_user(tree: Path) -> None:
    planner = tree / "planner.py"
    planner.write_text("formulas.tree(mask)\nformulas.UNUSED\n")
    found = unreached(tree, ["pkg/ops/m.py"], ["pkg/model.py"], [planner])
    assert not any("tree" in line or "UNUSED" in line for line in found)
