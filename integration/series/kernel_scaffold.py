"""A new kernel module: a copy of `kernels/_template` under its own name, whose tests pass as they stand."""

from __future__ import annotations

import keyword
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from ruff import find_ruff_bin

from sm120.integration.common.refusal import Refusal

TEMPLATE = "_template"
ABOUT_ITSELF = ": the module that `sm120 kernel new` copies"
CONFIG = "line-length = 120"
NAME = re.compile(r"[a-z][a-z0-9_]*")


def new_kernel(kernels: Path, name: str) -> list[Path]:
    """Make `kernels/NAME`, in one step; returns its files.

    Raises:
        Refusal: `kernel-name` for what is no module name in small letters, `kernel-exists`, `kernel-template`.
    """
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        raise Refusal("kernel-name", f"{name!r} is no name in small letters, digits and _", fix="such as block_topk")
    target, template = kernels / name, kernels / TEMPLATE
    if target.exists():
        raise Refusal("kernel-exists", "there is a kernel of that name", path=target, fix="choose another name")
    if not template.is_dir():
        raise Refusal("kernel-template", "the module that is copied is not there", path=template, fix="git checkout")
    with tempfile.TemporaryDirectory(prefix=".new-", dir=kernels) as scratch:
        copy = Path(scratch) / name
        shutil.copytree(template, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for path in sorted(copy.rglob("*")):
            if path.is_file():
                path.write_text(path.read_text().replace(ABOUT_ITSELF, "").replace(TEMPLATE, name))
        # a longer name may move where a line breaks
        subprocess.run([find_ruff_bin(), "format", "--quiet", f"--config={CONFIG}", str(copy)], check=True)
        copy.rename(target)
    return sorted(path for path in target.rglob("*") if path.is_file())
