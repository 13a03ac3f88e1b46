"""On a machine without a CUDA toolkit the runtime compiles its kernels with the one that it brings.

`/usr/local` is hidden by an empty file system in a namespace of its own; everything else is what `bin/serve` starts in.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from sm120.integration.build.installed_runtime import PROOF_LAYER
from sm120.integration.common.checkout import find_checkout

SCRIPT = Path(__file__).parent / "on_a_card" / "build_modules.py"


def why_not(runtime: Path) -> str | None:
    try:
        flavor = json.loads((runtime / "runtime.json").read_text())["ingredients"]["flavor"]
    except (OSError, ValueError, KeyError):
        return "no runtime"
    if flavor != "cuda":
        return "the cpu runtime brings no toolkit: make runtime RUNTIME=cuda"
    if not shutil.which("unshare") or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        return "no mount namespace for this user"
    return None


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("module", ["qk_norm_mrope", "page", "xqa"])
def test_compiles(tmp_path: Path, module: str) -> None:
    runtime = find_checkout().runtime
    if reason := why_not(runtime):
        pytest.skip(reason)
    command = [str(runtime / "bin" / "with-runtime"), "python", str(SCRIPT), module]
    hidden = f"mount -t tmpfs none /usr/local && exec {shlex.join(command)}"
    without = ("CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "PYTHONPATH", "TRITON_INTERPRET")
    environment = {name: value for name, value in os.environ.items() if name not in without}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "CPU_LAYER": str(PROOF_LAYER)}
    done = subprocess.run(["unshare", "-m", "sh", "-c", hidden], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    library = Path(json.loads(done.stdout.splitlines()[-1])[module])
    assert library.is_relative_to(tmp_path) and library.is_file()
    # Both name the folder after the target that nvcc was given.
    assert any(part.endswith("120f") for part in library.parts)
