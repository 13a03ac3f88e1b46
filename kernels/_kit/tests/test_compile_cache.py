"""The same bytes are compiled once; one changed byte, flag, compiler or header is compiled anew."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from sm120.kernels._kit import compile_cache
from sm120.kernels._kit.host_library import SHIM, Mutation, build


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that ran; the cache is empty and lies in a checkout of its own."""
    (tmp_path / "checkout" / "build").mkdir(parents=True)
    (tmp_path / "checkout" / "patches").mkdir()
    monkeypatch.setattr(compile_cache, "ROOT", tmp_path / "checkout")
    return []


def make(folder: Path, calls: list[list[str]], *flags: str, scratch: Path | None = None) -> str:
    def run(command: list[str]) -> None:
        calls.append(command)
        Path(command[-1]).write_text(f"{(folder / 'a.cu').read_text()}{(folder / 'a.cuh').read_text()}{flags}")

    out = folder.parent / "out.so"
    out.unlink(missing_ok=True)
    compile_cache.compile_once(["g++", *flags, str(folder / "a.cu")], [folder], out, run, scratch=scratch)
    return out.read_text()


def source(folder: Path, text: str = "one") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.cu").write_text(text)
    (folder / "a.cuh").write_text("header")
    return folder


def test_what_was_compiled_is_not_compiled_again(tmp_path, compiled):
    folder = source(tmp_path / "s")
    assert make(folder, compiled) == make(folder, compiled)
    assert len(compiled) == 1


def test_whatever_changes_the_code_is_compiled(tmp_path, compiled, monkeypatch):
    folder = source(tmp_path / "s")
    told = [make(folder, compiled), make(folder, compiled, "-O1")]
    (folder / "a.cuh").write_text("another")
    told.append(make(folder, compiled))
    (folder / "a.cu").write_text("two")
    told.append(make(folder, compiled))
    assert len(set(told)) == len(compiled) == 4
    monkeypatch.setenv("CPATH", "/elsewhere")
    make(folder, compiled)
    monkeypatch.setattr(compile_cache, "_version", lambda compiler: "another compiler")
    make(folder, compiled)
    assert len(compiled) == 6


def test_a_scratch_folder_s_name_does_not_count(tmp_path, compiled):
    for name in ("x1", "x2"):
        make(source(tmp_path / name / "s"), compiled, scratch=tmp_path / name)
    assert len(compiled) == 1
    make(source(tmp_path / "x3" / "s"), compiled, scratch=None)
    assert len(compiled) == 2


def test_a_failure_is_not_kept(tmp_path, compiled):
    folder = source(tmp_path / "s")

    def fails(command: list[str]) -> None:
        raise RuntimeError("does not compile")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="does not compile"):
            compile_cache.compile_once(["g++", str(folder / "a.cu")], [folder], tmp_path / "out.so", fails)
    assert not list((tmp_path / "checkout" / "build").rglob("*.so"))


def test_a_mutated_twin_is_another_library(tmp_path, compiled):
    folder = tmp_path / "kernel"
    folder.mkdir()
    (folder / "k.h").write_text("inline int value() { return 7; }\n")
    path = folder / "k.cpp"
    exported = 'extern "C" __attribute__((visibility("default"))) int get() { return value(); }'
    path.write_text(f'#include "k.h"\n#include "c_api.h"\n{exported}\n')
    twin = Mutation("eight", "k.h", "return 7", "return 8")
    libraries = [build(path, include=[folder, SHIM.parent], mutation=each).path for each in (None, twin, None, twin)]
    assert [ctypes.CDLL(str(library)).get() for library in libraries] == [7, 8, 7, 8]
    assert len(list((tmp_path / "checkout" / "build" / "compiled").glob("*.so"))) == 2
