"""The environment in which a Python process can load a host build made with AddressSanitizer and UBSan."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

FINDINGS = ("AddressSanitizer", "runtime error:")


def environment() -> dict[str, str]:
    """The current environment plus preloaded sanitizer runtimes; host builds made under it are sanitized."""
    preload = [_runtime("libasan.so"), _runtime("libubsan.so")]
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(preload),
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:abort_on_error=0",  # the interpreter itself leaks at exit
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "SM120_SANITIZE": "1",
    }


def run_python(arguments: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run `python *arguments` with the sanitizers; a finding ends the process with a code other than 0."""
    return subprocess.run(
        [sys.executable, *arguments], env=environment(), capture_output=True, text=True, timeout=timeout
    )


def _runtime(name: str) -> str:
    done = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True, timeout=30)
    path = done.stdout.strip()
    if not os.path.isabs(path):
        raise RuntimeError(f"{name} is not installed beside g++")
    return path
