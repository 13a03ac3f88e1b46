"""A device test gets the file that is installed, and only if it is this checkout's; a simulated one gets a stand-in JIT."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from sm120.kernels._kit import shipped_entry, upstream

TOML = '[[overlay]]\nproject = "sglang"\nsource = "sglang_op.py"\ntarget = "door_of_a_test/op.py"\n'
OP = """
from sglang.kernels.jit.utils import cache_once, load_jit

@cache_once
def module():
    return load_jit("fill", 4, cuda_files=["fill.cuh"], cuda_wrappers=[("fill", "fill")])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel's folder beside an installed SGLang, whose copy of the overlay is at tmp_path/site."""
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "kernel.toml").write_text(TOML)
    (tmp_path / "kernel" / "sglang_op.py").write_text("ANSWER = 42\n")
    monkeypatch.setattr(upstream, "package_root", lambda name: tmp_path / "site" / name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "kernel"


def install(folder: Path, text: str) -> None:
    package = folder.parent / "site" / "door_of_a_test"
    package.mkdir(parents=True)
    (package / "op.py").write_text(text)


def test_the_installed_module_is_imported(folder: Path) -> None:
    install(folder, "ANSWER = 42\n")
    module = shipped_entry.load(folder, "sglang_op.py")
    assert module.ANSWER == 42 and module.__name__ == "door_of_a_test.op"


def test_another_file_than_this_checkout_s_is_refused(folder: Path) -> None:
    install(folder, "ANSWER = 41\n")
    with pytest.raises(RuntimeError, match="is not sglang_op.py of this checkout; run `make runtime`"):
        shipped_entry.load(folder, "sglang_op.py")


def test_no_runtime_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="is not sglang_op.py of this checkout"):
        shipped_entry.load(folder, "sglang_op.py")
    monkeypatch.setattr(upstream, "package_root", lambda name: None)
    with pytest.raises(RuntimeError, match=r"no sglang is installed and SM120_SGLANG names none; run `make runtime`"):
        shipped_entry.load(folder, "sglang_op.py")


def test_the_simulated_jit_gets_what_the_entry_asks_for(folder: Path) -> None:
    (folder / "sglang_op.py").write_text(OP)
    asked = []

    def build(width: int) -> types.SimpleNamespace:
        asked.append(width)
        return types.SimpleNamespace(fill="filled", hidden="not exported")

    with shipped_entry.simulated_jit({"fill": build}):
        entry = shipped_entry.load(folder, "sglang_op.py")
        with pytest.raises(FileNotFoundError, match="fill.cuh is no overlay of kernel/kernel.toml"):
            entry.module()
        more = TOML.replace("sglang_op.py", "fill.cuh").replace("door_of_a_test/op.py", shipped_entry.CSRC + "fill.cuh")
        (folder / "kernel.toml").write_text(TOML + more)
        entry = shipped_entry.load(folder, "sglang_op.py")
        assert vars(entry.module()) == {"fill": "filled"} and entry.module() is entry.module() and asked == [4]
    assert "sglang.kernels.jit.utils" not in sys.modules
