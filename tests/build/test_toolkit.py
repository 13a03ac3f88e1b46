"""The toolkit that is laid out of wheels has everything that a JIT includes and links."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sm120.integration.build.launcher import inspect
from sm120.integration.build.toolkit import lay_out
from sm120.integration.common.refusal import Refusal


def test_whole(tmp_path: Path, wheels) -> None:
    home = lay_out(tmp_path / "layer", wheels(tmp_path / "layer" / "site-packages"))
    assert home == tmp_path / "layer" / "toolkit"
    assert inspect(home).wrong == ()
    assert (home / "lib64" / "libcudart.so").read_text() == "libcudart.so.13"
    assert (home / "lib64" / "libnvrtc-builtins.so").is_file() and (home / "lib64" / "libcudart_static.a").is_file()
    assert not (home / "bin").is_symlink(), "nvcc looks beside the folder that it lies in"


def test_moves_with_its_layer(tmp_path: Path, wheels) -> None:
    lay_out(tmp_path / "layer", wheels(tmp_path / "layer" / "site-packages"))
    (tmp_path / "layer").rename(tmp_path / "moved")
    assert inspect(tmp_path / "moved" / "toolkit").wrong == ()


def test_a_module_links_the_driver_by_its_name(tmp_path: Path, wheels) -> None:
    home = lay_out(tmp_path / "layer", wheels(tmp_path / "layer" / "site-packages"))
    source, library = tmp_path / "m.c", tmp_path / "m.so"
    source.write_text(
        "int cuInit(unsigned); int cuMemAlloc_v2(void); int f(void) { return cuInit(0) + cuMemAlloc_v2(); }"
    )
    command = ["cc", "-shared", "-fPIC", str(source), f"-L{home}/lib64/stubs", "-Wl,--as-needed", "-Wl,-z,defs"]
    subprocess.run([*command, "-lcuda", "-o", str(library)], check=True)
    assert b"libcuda.so.1\0" in library.read_bytes()


def test_no_toolkit_in_the_layer(tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    assert lay_out(tmp_path, tmp_path / "site-packages") is None
    assert not (tmp_path / "toolkit").exists()


def test_laid_out_again(tmp_path: Path, wheels) -> None:
    """What an interrupted run left does not hinder, and what was there is replaced."""
    packages = wheels(tmp_path / "site-packages")
    (tmp_path / ".toolkit.tmp" / "lib64").mkdir(parents=True)
    lay_out(tmp_path, packages)
    (tmp_path / "toolkit" / "stale").write_text("")
    home = lay_out(tmp_path, packages)
    assert inspect(home).wrong == () and not (home / "stale").exists()


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_c_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, wheels) -> None:
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(Refusal, match=r"\[toolkit-stub\]"):
        lay_out(tmp_path, wheels(tmp_path / "site-packages"))
    assert not (tmp_path / "toolkit").exists()
