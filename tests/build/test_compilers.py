"""Which compiler each JIT will use is said before a start, and one that cannot do it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120.integration.build.compilers import Need, compile_needs


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH of three programs that only know their names."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("c++", "gcc", "ninja"):
        (folder / name).write_text(f"#!/bin/sh\necho '{name} 1.0'\n")
        (folder / name).chmod(0o755)
    return folder


def needs(layer: Path | None, tools: Path, **environment: str) -> dict[str, Need]:
    return {need.name: need for need in compile_needs({"PATH": str(tools), **environment}, layer)}


def test_all_there(tmp_path: Path, tools: Path, toolkit) -> None:
    toolkit(tmp_path / "layer" / "toolkit")
    found = needs(tmp_path / "layer", tools, CUDA_HOME=str(toolkit(tmp_path / "old", "12.6")))
    assert all(need.ok for need in found.values()), found
    said = found["CUDA compiler"].found
    assert "nvcc 13.0" in said and "sm_120f" in said and "nvcc is 12.6" in said
    assert found["under nvcc"].found == "gcc for FlashInfer, c++ for SGLang"


@pytest.mark.parametrize(
    ("compiler", "headers", "said"), [("12.6", "12.6", "nvcc is 12.6"), ("13.0", "13.5", "its headers are 13.5")]
)
def test_a_toolkit_that_does_not_fit(
    tmp_path: Path, tools: Path, compiler: str, headers: str, said: str, toolkit
) -> None:
    found = needs(None, tools, CUDA_HOME=str(toolkit(tmp_path / "own", compiler, headers)))["CUDA compiler"]
    assert not found.ok and said in found.found and "RUNTIME=cuda" in found.fix


def test_none(tmp_path: Path, tools: Path) -> None:
    found = needs(None, tools, CUDA_HOME=str(tmp_path / "nothing"))["CUDA compiler"]
    assert not found.ok and "no bin/nvcc" in found.found


@pytest.mark.parametrize(("gone", "name"), [("c++", "host compiler"), ("gcc", "under nvcc"), ("ninja", "ninja")])
def test_a_program_is_missing(tmp_path: Path, tools: Path, gone: str, name: str) -> None:
    (tools / gone).unlink()
    found = needs(None, tools)[name]
    assert not found.ok and found.fix


def test_ninja_of_the_layer(tmp_path: Path, tools: Path) -> None:
    (tmp_path / "layer" / "bin").mkdir(parents=True)
    (tools / "ninja").rename(tmp_path / "layer" / "bin" / "ninja")
    assert needs(tmp_path / "layer", tools)["ninja"].ok


def test_compilers_that_the_user_names(tools: Path) -> None:
    (tools / "gcc").rename(tools / "gcc-12")
    assert not needs(None, tools)["under nvcc"].ok
    found = needs(None, tools, CC="gcc-12", NVCC_CCBIN="gcc-12")["under nvcc"]
    assert found.ok and found.found == "gcc-12 for FlashInfer, gcc-12 for SGLang"
    assert not needs(None, tools, CXX="no-such c++")["host compiler"].ok
