"""Compile a kernel's upstream launcher form as SGLang's JIT does: the wheel's headers, tvm-ffi, sm_120a, one `.so`.

The library is loaded on the CPU to test its host-side argument checks; nothing in it can run without a device.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from sm120.kernels._kit import compilers
from sm120.kernels._lib import capability

# Where a person without the packages installed says that an unpacked wheel lies: the folder that holds the package.
VARIABLES = {"sglang": "SM120_SGLANG", "flashinfer": "SM120_FLASHINFER"}


@functools.cache
def package_root(name: str) -> Path | None:
    """The folder of an upstream package: under its variable in VARIABLES, else the installed one. Imports nothing."""
    tree = os.environ.get(VARIABLES.get(name, ""))
    if tree:
        return Path(tree) / name
    found = find_spec(name)
    locations = list(found.submodule_search_locations or ()) if found else []
    return Path(locations[0]) if locations else None


def missing_sglang_headers() -> str | None:
    """None when the pinned wheel's JIT headers can be read, else the reason for people."""
    root = package_root("sglang")
    if root is None:
        return f"SGLang's JIT headers: no sglang package, and {VARIABLES['sglang']} does not name an unpacked wheel"
    if not (root / "kernels" / "jit" / "include" / "sgl_kernel").is_dir():
        return f"SGLang's JIT headers: not under {root}"
    return None


def missing_tvm_ffi() -> str | None:
    """None when tvm-ffi can be imported, else the reason for people."""
    return None if package_root("tvm_ffi") else "apache-tvm-ffi is not installed"


def build_jit_module(source: Path, *, include: Sequence[Path], out: Path, timeout: float = 600) -> Path:
    """Compile `source`, which exports through TVM_FFI_DLL_EXPORT_TYPED_FUNC, with the flags of SGLang's JIT.

    Raises compilers.CompileError with nvcc's words, or with what is missing.
    """
    ffi, sglang = package_root("tvm_ffi"), package_root("sglang")
    if ffi is None or sglang is None:
        raise compilers.CompileError(f"{source.name}: {missing_tvm_ffi() or missing_sglang_headers()}")
    name = capability.arch((12, 0))
    command = ["nvcc", "-std=c++20", "-O3", "-DSGL_CUDA_ARCH=1200", "--expt-relaxed-constexpr", "-gencode"]
    command += [f"arch={name.replace('sm', 'compute')},code={name}", "-Xcompiler", "-fPIC", "-shared", "-o", str(out)]
    folders = [*include, sglang / "kernels" / "jit" / "include"]
    folders += [ffi / "include", ffi / "3rdparty" / "dlpack" / "include"]
    command += [*(f"-I{folder}" for folder in folders), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise compilers.CompileError(f"{source.name} does not compile:\n{done.stdout}{done.stderr}")
    return out
