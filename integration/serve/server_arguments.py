"""From a profile to the words of a command line, its environment, and the identity of what it will store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm120.integration.common.gpus import ORDER
from sm120.integration.common.refusal import Refusal
from sm120.integration.common.server_command import command_line
from sm120.integration.serve.namespace.arguments import given_arguments
from sm120.integration.serve.namespace.namespace_identity import FIELDS, Serving, with_environment
from sm120.integration.serve.planner.resident import stretched_positions
from sm120.integration.serve.profile import Profile

PLACEHOLDER = {"model": "MODEL", "draft": "DRAFT", "storage": "STORAGE"}


@dataclass(frozen=True)
class Machine:
    """What the machine answers to the profile's "auto"."""

    io_uring: bool
    direct_io: bool


MODEL_KEY = "model"
"""What every key of a page says where it would name the model: the namespace knows which one, by its content."""


def storage_config(profile: Profile, machine: Machine) -> dict[str, Any]:
    """The value of --hicache-storage-backend-extra-config; "auto" becomes what the machine can do.

    Raises:
        Refusal: `profile-schema` for a queue that NIXL's POSIX plugin does not have.
    """
    config = dict(profile.storage)
    queue = config.pop("queue", "auto")
    if queue == "auto":
        queue = "io_uring" if machine.io_uring else "libaio"
    keys = {"io_uring": "use_uring", "libaio": "use_aio"}
    if queue not in keys:
        raise Refusal("profile-schema", f"storage.queue is {queue!r}, must be auto, io_uring or libaio")
    if config.get("use_direct_io", "auto") == "auto":
        config["use_direct_io"] = machine.direct_io
    return {keys[queue]: "true", "model_key": MODEL_KEY, **config}


def overrides(wanted: Mapping[str, Any], rope: Mapping[str, Any], checkpoint: Path | None) -> dict[str, Any]:
    """Configuration overrides for one checkpoint, nested where its config.json nests its text model.

    SGLang replaces a nested `rope_parameters` as a whole, so what the checkpoint says is merged in here: a YaRN factor
    must not take the base frequency away. The factor alone does not lengthen the context that SGLang accepts, so the
    longer one goes with it. Without a readable config.json only the wanted values are given.
    """
    if not wanted and not rope:
        return {}
    config: dict[str, Any] = {}
    if checkpoint is not None:
        path = checkpoint / "config.json"
        try:
            config = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise Refusal("profile-checkpoint", f"not a readable config.json: {error}", path=path) from None
        if not isinstance(config, dict) or not isinstance(config.get("text_config", {}), dict):
            raise Refusal("profile-checkpoint", "not the configuration of a model", path=path)
    text = config.get("text_config", config)
    values: dict[str, Any] = dict(wanted)
    if rope:
        own = text.get("rope_parameters") or text.get("rope_scaling") or {}
        values["rope_parameters"] = {**own, **rope}
        if longer := stretched_positions(rope):
            values.setdefault("max_position_embeddings", longer)
    return {"text_config": values} if "text_config" in config else values


def arguments(profile: Profile, machine: Machine, *, host: str, port: int, model: str | None = None) -> list[str]:
    """The whole command line behind `bin/serve`; paths that are not set appear as MODEL, DRAFT and STORAGE."""
    model = model or profile.paths.model
    values: dict[str, Any] = {"model-path": model or PLACEHOLDER["model"]}
    if profile.needs.draft:
        values["speculative-draft-model-path"] = profile.paths.draft or PLACEHOLDER["draft"]
    values |= {"host": host, "port": port, **profile.server}
    target = overrides(profile.model_settings, profile.rope.target, Path(model) if model else None)
    if target:
        values["json-model-override-args"] = json.dumps(target, sort_keys=True)
    if profile.needs.draft and profile.rope.draft:
        draft = overrides({}, profile.rope.draft, Path(profile.paths.draft) if profile.paths.draft else None)
        values["speculative-draft-json-model-override-args"] = json.dumps(draft, sort_keys=True)
    if profile.argument("hicache-storage-backend"):
        values["hicache-storage-backend-extra-config"] = json.dumps(storage_config(profile, machine), sort_keys=True)
    return command_line(values)


def environment(profile: Profile, storage: Path | None) -> dict[str, str]:
    """What the server's environment gets on top of its own."""
    extra = {**profile.environment, **({} if profile.on_cpu else ORDER)}
    if storage is not None:
        extra["SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR"] = str(storage)
        extra["SGLANG_HICACHE_NIXL_BACKEND_PLUGIN"] = "POSIX"
    return extra


def serving(profile: Profile, machine: Machine, torch_version: str, environment: Mapping[str, str]) -> Serving:
    """What decides the bytes of a stored page: of the profile, and of all of the server's `environment`."""
    get = profile.argument
    backend = get("attention-backend", "auto")
    extra = storage_config(profile, machine)
    rope = {"target": profile.rope.target, "draft": profile.rope.draft, "config": profile.model_settings}
    names = [
        "tp_size", "pp_size", "dp_size", "ep_size", "dcp_size", "attn_cp_size", "quantization", "kv_cache_dtype",
        "mamba_ssm_dtype", "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk",
        "speculative_num_draft_tokens", "speculative_draft_kv_cache_dtype", "speculative_draft_model_quantization",
        "linear_attn_prefill_backend", "linear_attn_decode_backend",
        "mamba_radix_cache_strategy", "mamba_track_interval", "gdn_mtp_cache_mode", "chunked_prefill_size",
    ]  # fmt: skip
    given = {name: get(name.replace("_", "-")) for name in names if get(name.replace("_", "-")) is not None}
    others = {name: value for name, value in profile.server.items() if name.replace("-", "_") not in FIELDS}
    said = Serving(
        dtype=get("dtype", "auto"),
        page_size=get("page-size", 1),
        hicache_mem_layout=get("hicache-mem-layout", "page_first"),
        use_direct_io=bool(extra["use_direct_io"]),
        page_checksum=bool(extra.get("page_checksum", False)),
        prefill_attention_backend=get("prefill-attention-backend", backend),
        decode_attention_backend=get("decode-attention-backend", backend),
        rope_scaling=json.dumps(rope, sort_keys=True) if any(rope.values()) else "none",
        arguments=given_arguments(others),
        torch_version=torch_version,
        capability=profile.capability,
        **given,
    )
    return with_environment(said, environment)
