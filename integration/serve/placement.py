"""What a profile's checkpoints take, where, and what is left of a GPU for pools: the budget that the server will have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm120.integration.common.refusal import Refusal
from sm120.integration.serve.capacity import GIB, budget_left, number, read_config
from sm120.integration.serve.planner.resident import VISION_CACHE_MB, Part, later, resident, rope_table
from sm120.integration.serve.planner.weights import Loading, Weights, weights_of
from sm120.integration.serve.profile import Profile

QWEN4 = "Qwen4ExpForConditionalGeneration"
OWN_HEAD = ("NEXTN", "EAGLE", "EAGLE3", "MTP")


@dataclass(frozen=True)
class Budget:
    """`bytes` are for pools: the static part of what is free before loading, less weights and what else is resident."""

    gpu_bytes: int
    fraction: float
    weights: int
    parts: list[Part]
    bytes: int

    @property
    def not_static(self) -> int:
        """What the server keeps free for everything that comes after the pools."""
        return self.gpu_bytes - int(self.gpu_bytes * self.fraction)

    @property
    def short(self) -> int:
        """By how much that is less than what is known to come; negative where it is enough."""
        return sum(part.bytes for part in later()) - self.not_static


def budget(profile: Profile, gpu_bytes: int, weights: int, *, fraction: float | None = None, other: int = 0) -> Budget:
    """The server's budget on a GPU that has `gpu_bytes` free before loading.

    Raises:
        Refusal: `plan-settings` without a static fraction or for one outside (0, 1]; `plan-memory` when nothing is left.
    """
    static = static_fraction(profile, fraction)
    parts = [] if profile.on_cpu else resident_parts(profile)
    if other:
        parts.append(Part("other", other, "as given"))
    left = budget_left(gpu_bytes, weights, static, sum(part.bytes for part in parts))
    return Budget(gpu_bytes, static, weights, parts, left)


def static_fraction(profile: Profile, given: float | None = None) -> float:
    """`given`, else the profile's mem-fraction-static. Without either the server derives one that fits no large model."""
    said = given if given is not None else profile.argument("mem-fraction-static")
    if said is None:
        raise Refusal(
            "plan-settings",
            "mem-fraction-static is not set; left alone, the server derives about 0.8 for a model with a vision tower",
            fix="--set mem-fraction-static=NUMBER in (0, 1]",
        )
    try:
        return float(said)
    except (ValueError, TypeError):
        raise Refusal("plan-settings", f"mem-fraction-static is {said!r}, must be a number in (0, 1]") from None


def checkpoint_weights(profile: Profile) -> Weights:
    """Both checkpoints of a profile, tensor by tensor, for one GPU of `tp-size`; a table on the host is counted whole.

    Raises:
        Refusal: `plan-weights` when no path is set or a checkpoint cannot be read.
    """
    if not profile.paths.model:
        fix = "--weights 78GiB, or --set paths.model=FOLDER"
        raise Refusal("plan-weights", "no weights to take off the memory", fix=fix)
    folder = Path(profile.paths.model)
    found = weights_of(folder, loading_of(profile, config_of(folder)))
    if profile.needs.draft and profile.paths.draft:
        folder = Path(profile.paths.draft)
        online = profile.argument("speculative-draft-model-quantization") == "fp8"
        found += weights_of(folder, Loading(online_fp8=online and not _quantized(config_of(folder))), draft=True)
    ranks = number(profile, "tp-size", 1)
    return Weights(found.gpu // ranks, found.draft // ranks, found.host, found.disk, found.skipped)


def loading_of(profile: Profile, config: Mapping[str, Any]) -> Loading:
    """What decides the place of each tensor of the target, of the profile's settings and the checkpoint's config.json."""
    get, text = profile.argument, _text(config)
    table, table_fp8 = "gpu", None
    if QWEN4 in (config.get("architectures") or []):
        dtype = str(get("dtype", "auto"))
        if dtype == "auto":
            dtype = str(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "bfloat16")
        offload = get("ple-offload-embedding")
        if offload is None:
            offload = not profile.on_cpu and dtype in ("bfloat16", "bf16")
        if offload:
            table = "disk" if get("ple-offload-backend", "pinned") == "file" else "host"
        table_fp8 = True if text.get("ple_embedding_dtype") == "float8_e4m3fn" or get("quantization") == "fp8" else None
    return Loading(
        table=table,  # type: ignore[arg-type]
        table_fp8=table_fp8,
        draft_head=str(get("speculative-algorithm", "")).upper() in OWN_HEAD and not profile.needs.draft,
        vision=sees(profile),
        online_fp8=get("quantization") == "fp8" and not _quantized(config),
    )


def resident_parts(profile: Profile) -> list[Part]:
    """What is on the GPU beside weights when tokens are counted, with the draft's rotary table."""
    try:
        cache = int(profile.environment.get("SGLANG_VLM_CACHE_SIZE_MB", VISION_CACHE_MB))
    except ValueError:
        raise Refusal("plan-settings", "SGLANG_VLM_CACHE_SIZE_MB must be a number of MiB") from None
    target = profile.planner.model
    if profile.paths.model and (Path(profile.paths.model) / "config.json").is_file():
        target = {**target, **_text(config_of(Path(profile.paths.model)))}
    parts = resident(target, profile.rope.target, vision=sees(profile), vision_cache_mb=cache)
    if profile.needs.draft:
        draft: dict[str, Any] = {"head_dim": profile.planner.draft_head_dim or None}
        if profile.paths.draft and (Path(profile.paths.draft) / "config.json").is_file():
            draft |= config_of(Path(profile.paths.draft))
        table = rope_table(draft, profile.rope.draft)
        if table:
            parts.append(Part("rotary table of the draft", table.bytes, table.source))
    return parts


def sees(profile: Profile) -> bool:
    """Whether the vision tower is loaded: both models have one, two arguments leave it out."""
    return not profile.on_cpu and not (profile.argument("language-model-only") or profile.argument("language-only"))


def config_of(folder: Path) -> dict[str, Any]:
    """A checkpoint's config.json, empty where there is none."""
    return read_config(folder) if (folder / "config.json").is_file() else {}


def told(parts: list[Part]) -> str:
    """Parts in one line: name and GiB."""
    return ", ".join(f"{part.name} {part.bytes / GIB:.2f}" for part in parts)


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = config.get("text_config", config)
    return text if isinstance(text, Mapping) else {}


def _quantized(config: Mapping[str, Any]) -> bool:
    return bool(config.get("quantization_config") or _text(config).get("quantization_config"))
