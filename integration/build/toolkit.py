"""A whole CUDA toolkit made of the packages of a dependency layer, for machines that have none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from sm120.integration.common.refusal import Refusal

FOLDER = "toolkit"


def lay_out(layer: Path, packages: Path) -> Path | None:
    """Make `layer/toolkit` from the toolkit's wheels in the site-packages folder `packages`; None where there are none.

    The wheels bring nvcc, headers and versioned libraries; what links against them looks for `lib64`, for names
    without a version and for a `libcuda.so` that only a driver has. All of it is links, but for that library and, where
    the file system has no hard links, the compiler.

    Raises:
        Refusal: `toolkit-stub` where no C compiler makes that library.
    """
    source = next(iter(sorted(packages.glob("nvidia/cu[0-9]*/bin/nvcc"))), None)
    if source is None:
        return None
    root, home = source.parents[1], layer / FOLDER
    aside = layer / f".{FOLDER}.tmp"
    shutil.rmtree(aside, ignore_errors=True)
    (aside / "lib64" / "stubs").mkdir(parents=True)
    for name in ("include", "nvvm"):
        (aside / name).symlink_to(os.path.relpath(root / name, home))
    # nvcc looks for lib64 beside the folder that it really lies in, so its folder must be no link.
    shutil.copytree(root / "bin", aside / "bin", copy_function=_link)
    for library in sorted((root / "lib").iterdir()):
        if library.is_dir():
            continue
        link = os.path.relpath(library, home / "lib64")
        (aside / "lib64" / library.name).symlink_to(link)
        plain = re.sub(r"\.so\.[\d.]+$", ".so", library.name)
        if plain != library.name and not (root / "lib" / plain).exists() and not (aside / "lib64" / plain).is_symlink():
            (aside / "lib64" / plain).symlink_to(link)
    _driver_stub(root / "include", aside / "lib64" / "stubs" / "libcuda.so")
    (aside / "lib").symlink_to("lib64")
    shutil.rmtree(home, ignore_errors=True)
    aside.replace(home)
    return home


def _link(source: str, destination: str) -> None:
    try:
        os.link(source, destination)
    except OSError:
        shutil.copy2(source, destination)


def _driver_stub(include: Path, library: Path) -> None:
    """A library with the driver's name and symbols, to link against; the driver's own is loaded in its place.

    Every function that the headers name is defined: a linker that keeps only the libraries it needed would else drop it.
    """
    names: set[str] = set()
    for header in sorted(include.glob("cuda*.h")):
        if header.name in ("cuda.h", "cudaTypedefs.h", "cudaGL.h", "cudaVDPAU.h", "cudaEGL.h"):
            names.update(re.findall(r"\bcu[A-Z]\w*(?=\s*\()", header.read_text(errors="replace")))
            names.update(
                re.findall(r"#define\s+cu[A-Z]\w*\s+(?:__CUDA_API_PT[SZ]+\()?(cu[A-Z]\w*)", header.read_text())
            )
    compiler = os.environ.get("CC", "cc").split()
    command = [*compiler, "-shared", "-fPIC", "-nostdlib", "-w", "-x", "c", "-", "-o", str(library)]
    command.insert(len(compiler), "-Wl,-soname,libcuda.so.1")
    text = "".join(f"void {name}(void) {{}}\n" for name in sorted(names))
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True)
    except OSError as error:
        raise Refusal("toolkit-stub", f"no C compiler: {error}", fix="install gcc, or name one in CC") from None
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[-300:]
        raise Refusal("toolkit-stub", f"{' '.join(compiler)} failed: {said}", fix="name a C compiler in CC")
