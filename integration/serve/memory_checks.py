"""Whether this start fits: free memory of its GPUs, one full request in the pool, and the memory of the host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sm120.integration.build.launcher import available_memory
from sm120.integration.common.gpus import Gpu
from sm120.integration.common.refusal import Refusal
from sm120.integration.serve.capacity import GIB, Capacity, capacity, number
from sm120.integration.serve.host_memory import host_need
from sm120.integration.serve.placement import budget, checkpoint_weights
from sm120.integration.serve.planner.weights import Weights
from sm120.integration.serve.profile import Profile

MIB = 1 << 20
# Between what the driver calls free and what the server finds free before loading: its own context. Of a card of
# 97,887 MiB the published starts found 96,609.
CONTEXT = 1278 * MIB


class Found(NamedTuple):
    """One answer: `ok` is None where the machine gave none."""

    ok: bool | None
    found: str
    need: str
    fix: str = ""


def gpu_memory(profile: Profile, taken: Sequence[Gpu]) -> Found:
    """Free memory of each GPU that the server takes; a driver that does not tell it is no answer."""
    need = f"{profile.needs.gpu_memory_gib:g} GiB free"
    free = [mib(gpu.free) for gpu in taken]
    if not free or None in free:
        return Found(None, "unknown", need)
    least = min(range(len(free)), key=lambda index: free[index] or 0)
    size, total = (free[least] or 0) / 1024, mib(taken[least].memory)
    found = f"{size:.1f} GiB free" + (f" of {total / 1024:.1f}" if total else "")
    if size >= profile.needs.gpu_memory_gib:
        return Found(True, found, need)
    return Found(False, found, need, "end what else runs on that GPU (nvidia-smi lists it), or take another")


def full_request(profile: Profile, taken: Sequence[Gpu], weights: Weights | None) -> tuple[Found, Capacity | None]:
    """Whether the pool holds one request of `context-length`, on the smallest of the GPUs that the server takes."""
    context = number(profile, "context-length", 0)
    need = f"{context:,} tokens, one full request"
    free = [size for size in (mib(gpu.free) for gpu in taken) if size]
    if weights is None or not free:
        return Found(None, "unknown without a checkpoint" if weights is None else "unknown without a GPU", need), None
    try:
        plan = budget(profile, int(min(free)) * MIB - CONTEXT, weights.on_gpu)
        found = capacity(profile, plan.bytes)
    except Refusal as error:
        return Found(False, error.what, need, f"sm120 plan {profile.name} shows the sum"), None
    fix = "" if found.tokens >= context else f"a shorter context-length, or see sm120 plan {profile.name}"
    return Found(found.tokens >= context, f"{found.tokens:,} tokens", need, fix), found


def host_memory(profile: Profile, weights: Weights | None, found: Capacity | None) -> Found:
    """What the settings need of the host against what is available to this process, its control group included."""
    if profile.on_cpu:
        wanted, parts = profile.needs.memory_gb * 1e9, "tiny"
    else:
        needed = host_need(profile, weights or assumed_weights(profile), found or _planned(profile, weights))
        wanted, parts = needed.bytes, needed.told()
    need = f"{wanted / 1e9:.1f} GB available ({parts})"
    available = available_memory()
    if available is None:
        return Found(None, "unknown", need)
    ok = available >= wanted
    return Found(ok, f"{available / 1e9:.1f} GB available", need, "" if ok else "a smaller --set hicache-size=GB")


def assumed_weights(profile: Profile) -> Weights:
    """The sizes of the published checkpoint, where none is set yet."""
    return Weights(gpu=int(profile.needs.weights_gib * GIB), host=int(profile.needs.table_gb * 1e9))


def read_weights(profile: Profile) -> Weights | None:
    """The weights of the profile's checkpoints; None where they are not set or not whole, which other checks say."""
    if not profile.paths.model or (profile.needs.draft and not profile.paths.draft):
        return None
    try:
        return checkpoint_weights(profile)
    except Refusal:
        return None


def wsl2(profile: Profile) -> Found | None:
    """On WSL2: whether the settings need what fails there; None on another kernel."""
    try:
        release = Path("/proc/sys/kernel/osrelease").read_text()
    except OSError:
        return None
    if "microsoft" not in release.lower():
        return None
    need = "no host memory that the GPU reaches by its host address"
    if profile.on_cpu or not profile.argument("enable-hierarchical-cache"):
        return Found(True, release.strip(), need)
    fix = "--set enable-hierarchical-cache=false --set hicache-storage-backend="
    return Found(
        False, f"{release.strip()}: HiCache's registered memory has another device address (sglang #40232)", need, fix
    )


def mib(text: str) -> float | None:
    """'36447 MiB' as a number of MiB; None for anything else."""
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return None


def _planned(profile: Profile, weights: Weights | None) -> Capacity | None:
    """The pools on a card as published, for the host's share of them, where no GPU was looked at."""
    try:
        plan = budget(profile, 96_609 * MIB, (weights or assumed_weights(profile)).on_gpu)
        return capacity(profile, plan.bytes)
    except Refusal:
        return None
