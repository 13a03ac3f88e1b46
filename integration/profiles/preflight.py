"""What must be true before a server is started, asked of this machine, each answer with what was found."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from sm120.integration.gpus import Gpu, gpus, visible
from sm120.integration.prove import storage as prove_storage

from .command import Machine, environment
from .profile import Profile

REFUSED = {
    "12.1": "SM121 (GB10) is another chip: no kernel here was compiled or budgeted for it, its memory is shared with "
    "the host, and an SM120 binary that happens to load there proves nothing",
}


@dataclass(frozen=True)
class Check:
    """One question: `ok` is None where the machine gave no answer, which counts as no."""

    name: str
    ok: bool | None
    found: str
    need: str
    fix: str = ""


def capability_check(profile: Profile, gpus: list[Gpu] | None) -> Check:
    """Compare exactly. `gpus` are those that the server will see; None without a driver."""
    need = f"compute capability exactly {profile.capability}"
    if profile.on_cpu:
        return Check("device", True, "CPU, through the proof layer", "none")
    if gpus is None:
        fix = "a machine with that GPU; without one, --print and the profile cpu-proof work"
        return Check("device", False, "no NVIDIA driver", need, fix)
    taken = taken_gpu(profile, gpus)
    if taken is None:
        fix = "CUDA_VISIBLE_DEVICES must name a GPU by nvidia-smi's index or UUID"
        return Check("device", False, f"no GPU {profile.argument('base-gpu-id', 0)} among the visible", need, fix)
    found = f"GPU {taken.number}: {taken.name}, {taken.capability}"
    if taken.capability == profile.capability:
        return Check("device", True, found, need)
    reason = REFUSED.get(taken.capability, "the profile's kernels and limits are for that one chip")
    return Check("device", False, f"{found}: {reason}", need, "CUDA_VISIBLE_DEVICES may name another GPU")


def visible_to(profile: Profile) -> list[Gpu] | None:
    """The GPUs that this profile's server sees when it is started from here; None on a CPU and without a driver."""
    found = None if profile.on_cpu else gpus()
    return None if found is None else visible(found, {**os.environ, **environment(profile, None)})


def taken_gpu(profile: Profile, gpus: list[Gpu] | None) -> Gpu | None:
    """The one of the visible GPUs that the server takes: the first unless the profile says base-gpu-id."""
    first = profile.argument("base-gpu-id", 0)
    return gpus[first] if gpus and isinstance(first, int) and 0 <= first < len(gpus) else None


def preflight(
    profile: Profile, *, runtime: Path, storage: Path | None, gpus: list[Gpu] | None, machine: Machine
) -> list[Check]:
    """Every check, in the order in which a start would fail."""
    checks = [_runtime(profile, runtime), capability_check(profile, gpus)]
    if profile.needs.gpu_memory_gib:
        checks.append(_gpu_memory(profile, gpus))
    for role in ("model", "draft"):
        what = getattr(profile.needs, role)
        if what:
            checks.append(_checkpoint(role, what, getattr(profile.paths, role)))
    if profile.needs.made_model:
        checks.append(Check("model", True, f"a tiny {profile.needs.made_model} model, made when served", "none"))
    if profile.needs.storage:
        checks += _storage(profile, storage, machine)
    checks.append(_memory(profile))
    return checks


def ready(checks: list[Check]) -> bool:
    """Whether every check said yes."""
    return all(check.ok is True for check in checks)


def ask_machine(storage: Path | None) -> Machine:
    """Try io_uring once, and O_DIRECT in `storage` where it exists or its nearest parent does."""
    folder = nearest(storage) if storage is not None else None
    if folder is None or not folder.is_dir() or not os.access(folder, os.W_OK):
        return Machine(io_uring=prove_storage.has_io_uring(), direct_io=False)
    found = prove_storage.probe(folder)
    return Machine(found.io_uring, found.direct)


def nearest(folder: Path) -> Path:
    """`folder`, or the first folder above it that exists."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def _runtime(profile: Profile, runtime: Path) -> Check:
    need = "a built runtime" if profile.runtime == "any" else f"the {profile.runtime} runtime"
    fix = "make runtime" if profile.runtime == "any" else f"make runtime RUNTIME={profile.runtime}"
    try:
        manifest = json.loads((runtime / "runtime.json").read_text())
        flavor, identity = manifest["ingredients"]["flavor"], manifest["identity"]
    except (OSError, ValueError, KeyError, TypeError):
        return Check("runtime", False, "none installed", need, fix)
    ok = profile.runtime in ("any", flavor)
    return Check("runtime", ok, f"{flavor}, {identity[:12]}", need, "" if ok else fix)


def _gpu_memory(profile: Profile, gpus: list[Gpu] | None) -> Check:
    need = f"{profile.needs.gpu_memory_gib:g} GiB"
    taken = taken_gpu(profile, gpus)
    try:
        mib = float(taken.memory.split()[0]) if taken else None
    except (IndexError, ValueError):
        mib = None
    if mib is None:
        return Check("GPU memory", None, "unknown", need)
    return Check("GPU memory", mib / 1024 >= profile.needs.gpu_memory_gib, f"{mib / 1024:.1f} GiB", need)


def _checkpoint(role: str, what: str, path: str | None) -> Check:
    fix = f"--set paths.{role}=FOLDER, or [paths] in the user's file"
    if not path:
        return Check(role, False, "not set", what, fix)
    folder = Path(path)
    if not (folder / "config.json").is_file():
        return Check(role, False, f"{path}: no config.json there", what, fix)
    shards = list(folder.glob("*.safetensors"))
    if not shards:
        return Check(role, False, f"{path}: no *.safetensors there", what, fix)
    for index in folder.glob("*.safetensors.index.json"):
        try:
            listed = set(json.loads(index.read_text())["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError):
            return Check(role, False, f"{index}: not a shard index", what, "download it again")
        missing = sorted(listed - {shard.name for shard in shards})
        if missing:
            return Check(role, False, f"{path}: {missing[0]} of the index is missing", what, "finish the download")
    size = sum(shard.stat().st_size for shard in shards)
    return Check(role, True, f"{path}: {len(shards)} shards, {size / 1e9:.1f} GB", what)


def _storage(profile: Profile, storage: Path | None, machine: Machine) -> list[Check]:
    if storage is None:
        fix = "--set paths.storage=FOLDER on a file system of its own"
        return [Check("storage", False, "not set", "a folder for namespaces", fix)]
    folder = nearest(storage)
    writable = folder.is_dir() and os.access(folder, os.W_OK)
    checks = [Check("storage", writable, f"{storage}{'' if writable else ': not writable'}", "a writable folder")]
    free, need = shutil.disk_usage(folder).free / 1e9, profile.needs.disk_gb
    checks.append(Check("disk", free >= need, f"{free:.0f} GB free", f"{need:g} GB free", "" if free >= need else
                        "free some, or another paths.storage"))  # fmt: skip
    direct = profile.storage.get("use_direct_io", "auto")
    if direct == "auto":
        checks.append(Check("O_DIRECT", True, "works" if machine.direct_io else "no: buffered", "either"))
    elif direct:
        fix = "another file system, or --set storage.use_direct_io=false"
        checks.append(Check("O_DIRECT", machine.direct_io, "works" if machine.direct_io else "refused there", "works",
                            "" if machine.direct_io else fix))  # fmt: skip
    queue = profile.storage.get("queue", "auto")
    if queue == "io_uring":
        fix = (
            ""
            if machine.io_uring
            else "allow io_uring (seccomp, kernel.io_uring_disabled), or --set storage.queue=libaio"
        )
        checks.append(Check("io_uring", machine.io_uring, "works" if machine.io_uring else "refused by the kernel",
                            "works", fix))  # fmt: skip
    return checks


def _memory(profile: Profile) -> Check:
    need = f"{profile.needs.memory_gb:g} GB available"
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kib = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return Check("memory", None, "unknown", need)
    available = kib * 1024 / 1e9
    return Check("memory", available >= profile.needs.memory_gb, f"{available:.1f} GB available", need)
