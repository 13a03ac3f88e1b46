"""What must be true before a server is started, asked of this machine, each answer with what was found."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from sm120.integration.build.compilers import compile_needs
from sm120.integration.build.runtime_record import layer_folder, record_or_none
from sm120.integration.common import storage as prove_storage
from sm120.integration.common.gpus import Gpu, gpus, visible
from sm120.integration.serve.capacity import Capacity
from sm120.integration.serve.memory_checks import full_request, gpu_memory, host_memory, read_weights, wsl2
from sm120.integration.serve.planner.weights import Weights
from sm120.integration.serve.profile import Profile
from sm120.integration.serve.server_arguments import Machine, environment

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
    """Compare exactly, each GPU that the server will take. `gpus` are those that it sees; None without a driver."""
    need = f"compute capability exactly {profile.capability}"
    if profile.on_cpu:
        return Check("device", True, "CPU, through the proof layer", "none")
    if gpus is None:
        fix = "a machine with that GPU; without one, --print and the profile cpu-proof work"
        return Check("device", False, "no NVIDIA driver", need, fix)
    wanted = taken_numbers(profile)
    taken = taken_gpus(profile, gpus)
    if len(taken) < len(wanted):
        fix = "CUDA_VISIBLE_DEVICES must name GPUs by nvidia-smi's index or UUID, as many as the server takes"
        missing = ", ".join(str(number) for number in wanted if not 0 <= number < len(gpus))
        return Check("device", False, f"no GPU {missing} among the visible", need, fix)
    found = "; ".join(f"GPU {gpu.number}: {gpu.name}, {gpu.capability}" for gpu in taken)
    other = next((gpu for gpu in taken if gpu.capability != profile.capability), None)
    if other is None:
        return Check("device", True, found, need)
    reason = REFUSED.get(other.capability, "the profile's kernels and limits are for that one chip")
    fix = "CUDA_VISIBLE_DEVICES may name another GPU"
    return Check("device", False, f"{found}: GPU {other.number}: {reason}" if len(taken) > 1 else f"{found}: {reason}",
                 need, fix)  # fmt: skip


def visible_to(profile: Profile) -> list[Gpu] | None:
    """The GPUs that this profile's server sees when it is started from here; None on a CPU and without a driver."""
    found = None if profile.on_cpu else gpus()
    return None if found is None else visible(found, {**os.environ, **environment(profile, None)})


def taken_numbers(profile: Profile) -> list[int]:
    """Which of the visible GPUs the server takes, by position: one a rank, from base-gpu-id on, gpu-id-step apart."""
    given = {name: profile.argument(name, default) for name, default in RANKS.items()}
    numbers = {name: value if isinstance(value, int) else RANKS[name] for name, value in given.items()}
    # Data parallel attention ranks share the GPUs of tensor parallelism; data parallel replicas have their own.
    replicas = 1 if profile.argument("enable-dp-attention", False) else max(1, numbers["dp-size"])
    count = max(1, numbers["tp-size"]) * max(1, numbers["pp-size"]) * replicas
    return [numbers["base-gpu-id"] + rank * max(1, numbers["gpu-id-step"]) for rank in range(count)]


RANKS = {"tp-size": 1, "pp-size": 1, "dp-size": 1, "base-gpu-id": 0, "gpu-id-step": 1}


def taken_gpus(profile: Profile, gpus: list[Gpu] | None) -> list[Gpu]:
    """Those of the visible GPUs that the server takes and that are there."""
    return [gpus[number] for number in taken_numbers(profile) if 0 <= number < len(gpus)] if gpus else []


def taken_gpu(profile: Profile, gpus: list[Gpu] | None) -> Gpu | None:
    """The first of them."""
    return next(iter(taken_gpus(profile, gpus)), None)


def preflight(
    profile: Profile, *, runtime: Path, storage: Path | None, gpus: list[Gpu] | None, machine: Machine
) -> list[Check]:
    """Every check, in the order in which a start would fail."""
    checks = [_runtime(profile, runtime), capability_check(profile, gpus)]
    if not profile.on_cpu:
        needs = compile_needs({**os.environ, **environment(profile, None)}, _layer(runtime))
        checks += [Check(*need) for need in needs]
    weights = None if profile.on_cpu else read_weights(profile)
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
    planned = None
    if not profile.on_cpu:
        fits, planned = full_request(profile, taken_gpus(profile, gpus), weights)
        # Without a checkpoint or a GPU their own checks say no already.
        if fits.ok is not None:
            checks.append(Check("full request", *fits))
    checks.append(_memory(profile, weights, planned))
    on_wsl = wsl2(profile)
    if on_wsl is not None:
        checks.append(Check("WSL2", *on_wsl))
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
    record = record_or_none(runtime)
    if record is None:
        return Check("runtime", False, "none installed", need, fix)
    ok = profile.runtime in ("any", record.flavor)
    return Check("runtime", ok, f"{record.flavor}, {record.identity[:12]}", need, "" if ok else fix)


def _layer(runtime: Path) -> Path | None:
    record = record_or_none(runtime)
    layer = layer_folder(runtime, record.deps) if record else None
    return layer if layer and layer.is_dir() else None


def _gpu_memory(profile: Profile, gpus: list[Gpu] | None) -> Check:
    return Check("GPU memory", *gpu_memory(profile, taken_gpus(profile, gpus)))


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


def _memory(profile: Profile, weights: Weights | None = None, planned: Capacity | None = None) -> Check:
    return Check("memory", *host_memory(profile, weights or read_weights(profile), planned))
