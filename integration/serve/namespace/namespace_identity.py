"""What the stored bytes mean, as canonical JSON: everything that changes a page, and nothing that does not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sm120.integration.build.identity import digest
from sm120.integration.common.manifest import first_problem
from sm120.integration.common.refusal import Refusal, there_are
from sm120.integration.serve.namespace.arguments import entering, given_arguments, kept_out
from sm120.integration.serve.namespace.checkpoint import Checkpoint

SCHEMA = "sm120-namespace-1"


class Serving(BaseModel):
    """How the model is served, as far as it decides the bytes of a page. Every field has the server's default name."""

    model_config = ConfigDict(extra="forbid", strict=True)

    tp_size: int = Field(1, ge=1)
    pp_size: int = Field(1, ge=1)
    dp_size: int = Field(1, ge=1)
    ep_size: int = Field(1, ge=1)
    dcp_size: int = Field(1, ge=1)
    attn_cp_size: int = Field(1, ge=1)
    dtype: str
    quantization: str = "none"
    kv_cache_dtype: str = "auto"
    mamba_conv_dtype: str = "auto"
    mamba_ssm_dtype: str = "auto"
    page_size: int = Field(ge=1)
    page_padding: int = Field(4096, ge=1)
    hicache_mem_layout: str
    use_direct_io: bool = True
    page_checksum: bool = False
    speculative_algorithm: str = "none"
    speculative_num_steps: int = Field(0, ge=0)
    speculative_eagle_topk: int = Field(0, ge=0)
    speculative_num_draft_tokens: int = Field(0, ge=0)
    speculative_draft_kv_cache_dtype: str = "auto"
    speculative_draft_model_quantization: str = "none"
    prefill_attention_backend: str
    decode_attention_backend: str
    linear_attn_prefill_backend: str = "none"
    linear_attn_decode_backend: str = "none"
    mamba_radix_cache_strategy: str = "none"
    mamba_track_interval: int = Field(0, ge=0)
    gdn_mtp_cache_mode: str = "none"
    chunked_prefill_size: int = -1
    rope_scaling: str = "none"
    arguments: dict[str, Any] = Field(default_factory=dict)
    environment: str = "none"
    torch_version: str
    capability: str = Field(pattern=r"^(cpu|\d+\.\d+)$")


# What is no argument of the server but may be expected here.
NOT_ARGUMENTS = {"storage_dir": "paths do not enter"}


# What has a name and a type of its own here; every other argument of the server enters as it is given.
FIELDS = Serving.model_fields.keys() - {"arguments"}


def parse_serving(fields: list[str]) -> Serving:
    """Parse NAME=VALUE settings.

    Raises:
        Refusal: `namespace-field` for a malformed, repeated, unknown, kept-out, missing or ill-typed field.
    """
    values: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    for field in fields:
        name, separator, text = field.partition("=")
        if not separator or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise Refusal("namespace-field", f"{field!r} is not NAME=VALUE with a lower-case name")
        if name in values or name in arguments:
            raise Refusal("namespace-field", f"{name} is given twice")
        if why := {**kept_out(), **NOT_ARGUMENTS}.get(name):
            raise Refusal("namespace-field", f"{name} is not part of a namespace: {why}")
        if name in FIELDS:
            pass
        elif name in entering():
            arguments[name] = scalar(text)
            continue
        else:
            known = sorted({*FIELDS, *entering()})
            raise Refusal("namespace-field", f"unknown field {name}{there_are(name, known)}")
        kind = Serving.model_fields[name].annotation
        if kind is int:
            if not re.fullmatch(r"-?\d+", text):
                raise Refusal("namespace-field", f"{name} is {text!r}, must be a whole number")
            values[name] = int(text)
        elif kind is bool:
            if text not in ("true", "false"):
                raise Refusal("namespace-field", f"{name} is {text!r}, must be true or false")
            values[name] = text == "true"
        else:
            values[name] = text
    try:
        return Serving(**values, arguments=given_arguments(arguments))
    except ValidationError as error:
        raise Refusal("namespace-field", first_problem(error)) from error


def scalar(text: str) -> bool | int | float | str:
    """A value as a profile writes it: what reads as true, false or a number is one."""
    if re.fullmatch(r"true|false|-?(0|[1-9]\d*)(\.\d+)?", text):
        value: bool | int | float = json.loads(text)
        return value
    return text


# What the server reads from its environment where no argument says it: variable, field.
FROM_ENVIRONMENT = {"SGLANG_MAMBA_CONV_DTYPE": "mamba_conv_dtype", "SGLANG_MAMBA_SSM_DTYPE": "mamba_ssm_dtype"}

# Variables that say where, when or how loudly. SGLang has a thousand others, some of which change a page without
# changing its size (SGLANG_USE_HND_KVCACHE): whatever is not named here counts.
# PORT_* and SERVICE_* come from Kubernetes, in every pod beside a Service that is called sglang.
WITHOUT_MEANING = re.compile(
    r"SGLANG_(LOG_\w+|\w+_(DIR|PATH|PORT|HOST|TIMEOUT|INTERVAL)|HICACHE_NIXL_BACKEND_PLUGIN"
    r"|HOST_IP|LOCAL_IP_NIC|ZMQ_SOURCE_IP|PORT(_\w+)?|SERVICE_(HOST|PORT)(_\w+)?)"
)


def with_environment(serving: Serving, environment: Mapping[str, str]) -> Serving:
    """`serving` with what the server will read from `environment`; a field that was given wins, as its argument does."""
    said = {
        name: value
        for name, value in environment.items()
        if name.startswith("SGLANG_") and not WITHOUT_MEANING.fullmatch(name)
    }
    read = {field: said.pop(name) for name, field in FROM_ENVIRONMENT.items() if name in said}
    if said:
        read["environment"] = json.dumps(said, sort_keys=True)
    return serving.model_copy(update={name: read[name] for name in read.keys() - serving.model_fields_set})


def identity(models: dict[str, Checkpoint], runtime: str, serving: Serving) -> dict[str, Any]:
    """The identity of a namespace; `models` maps a role (target, draft) to its checkpoint."""
    return {
        "schema": SCHEMA,
        "models": {role: checkpoint.model_dump() for role, checkpoint in models.items()},
        "runtime": runtime,
        "serving": serving.model_dump(),
    }


def directory_name(label: str, identity: dict[str, Any]) -> str:
    """Readable part and the first 12 hex digits of the identity's sha256."""
    readable = re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")
    if not readable:
        raise Refusal("namespace-label", f"label {label!r} has no letter or digit")
    return f"{readable}_{digest(identity)[:12]}"


def differences(one: Any, other: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Every leaf in which two identities differ: (dotted name, value in one, value in the other); None where absent."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = []
        for name in sorted(one.keys() | other.keys()):
            found += differences(one.get(name), other.get(name), f"{path}.{name}" if path else name)
        return found
    return [] if one == other else [(path, one, other)]
