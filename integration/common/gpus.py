"""The GPUs of this machine, and which of them a CUDA program sees."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

QUERY = "index,uuid,name,compute_cap,driver_version,memory.total,memory.free"

# nvidia-smi counts GPUs by their PCI address, CUDA by their speed unless it is told otherwise: what an index in
# CUDA_VISIBLE_DEVICES means, and which GPU comes first, is only known with this.
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


class Gpu(NamedTuple):
    """One row of nvidia-smi, as it prints it: `number` is its index; `memory`, all of it, and `free` have a unit."""

    number: str
    uuid: str
    name: str
    capability: str
    driver: str
    memory: str
    free: str = ""


def gpus() -> list[Gpu] | None:
    """Every GPU, by PCI address; None where no driver answers."""
    tool = shutil.which("nvidia-smi")
    if not tool:
        return None
    try:
        result = subprocess.run(
            [tool, f"--query-gpu={QUERY}", "--format=csv,noheader"], capture_output=True, text=True, timeout=30
        )
    except subprocess.TimeoutExpired:
        return None
    if result.returncode != 0:
        return None
    rows = [[part.strip() for part in line.split(",")] for line in result.stdout.splitlines()]
    return [Gpu(*row) for row in rows if len(row) == len(Gpu._fields)]


def visible(found: list[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """Those of `found` that a program with `environment` and `ORDER` sees, in its order.

    As in CUDA, CUDA_VISIBLE_DEVICES names them by index or by (the beginning of) a UUID, and what stands behind the
    first name that is no other GPU's does not count.
    """
    names = environment.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return found
    seen: list[Gpu] = []
    for name in (part.strip() for part in names.split(",")):
        named = [gpu for gpu in found if gpu.number == name or (name.startswith("GPU-") and gpu.uuid.startswith(name))]
        if len(named) != 1 or named[0] in seen:
            break
        seen += named
    return seen
