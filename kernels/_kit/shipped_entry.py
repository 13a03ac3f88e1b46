"""The Python file of a kernel that ships inside SGLang, as tests and benches call it: one door for them and for users.

On a device it is imported from the patched SGLang that is installed, so a call goes through SGLang's own JIT. On the
simulated device the same bytes are loaded from `kernels/`, and the JIT answers with the CPU build of the same sources.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from sm120.kernels._kit import upstream

CSRC = "sglang/kernels/jit/csrc/"
# What load_jit would return, by the name and the template arguments that it is asked for.
HostModules = Mapping[str, Callable[..., Any]]

_simulated: list[HostModules] = []


def load(folder: Path, source: str) -> types.ModuleType:
    """The module that `folder/source` is inside SGLang.

    Raises RuntimeError where the installed SGLang is missing, or has another file than this checkout, with the fix.
    """
    if _simulated:
        return _load_beside_stand_ins(folder, source)
    target = next(row["target"] for row in _overlay(folder) if row["source"] == source)
    root = upstream.package_root("sglang")
    if root is None:
        raise RuntimeError(f"{target}: no sglang is installed and SM120_SGLANG names none; run `make runtime`")
    installed = root.parent / target
    if not installed.is_file() or installed.read_bytes() != (folder / source).read_bytes():
        raise RuntimeError(f"{installed} is not {source} of this checkout; run `make runtime`")
    if str(root.parent) not in sys.path:
        sys.path.append(str(root.parent))
    return importlib.import_module(target.removesuffix(".py").replace("/", "."))


@contextmanager
def simulated_jit(modules: HostModules) -> Iterator[None]:
    """Answer SGLang's `load_jit` with `modules` until the block ends."""
    _simulated.append(modules)
    try:
        yield
    finally:
        _simulated.pop()


def _load_beside_stand_ins(folder: Path, source: str) -> types.ModuleType:
    modules = _simulated[-1]
    placed = {row["target"] for row in _overlay(folder)}

    def load_jit(name: str, *arguments: Any, cuda_files: list[str], cuda_wrappers: list[tuple[str, str]]) -> Any:
        missing = [file for file in cuda_files if CSRC + file not in placed]
        if missing:
            raise FileNotFoundError(f"{missing[0]} is no overlay of {folder.name}/kernel.toml")
        module = modules[name](*arguments)
        return types.SimpleNamespace(**{export: getattr(module, export) for export, _ in cuda_wrappers})

    stand_ins = {name: types.ModuleType(name) for name in _packages()}
    stand_ins["sglang.kernels.jit.utils"].__dict__.update(
        cache_once=functools.cache, load_jit=load_jit, make_cpp_args=lambda *arguments: arguments
    )
    stand_ins["sglang.srt.utils.custom_op"].__dict__.update(
        register_custom_op=lambda *_, **__: lambda function: function
    )
    spec = importlib.util.spec_from_file_location(f"simulated_{folder.name}", folder / source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, stand_ins):
        spec.loader.exec_module(module)
    return module


def _packages() -> list[str]:
    names = []
    for leaf in ("sglang.kernels.jit.utils", "sglang.srt.utils.custom_op"):
        parts = leaf.split(".")
        names += [".".join(parts[: count + 1]) for count in range(len(parts))]
    return names


def _overlay(folder: Path) -> list[dict[str, str]]:
    return tomllib.loads((folder / "kernel.toml").read_text())["overlay"]
