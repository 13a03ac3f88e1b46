"""Rows of expected, found and source; what was not seen is never ok."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, Literal

from sm120.integration.serve.capacity import geometry, host_of, number, pools_of, settings_of
from sm120.integration.serve.planner import HostTier
from sm120.integration.serve.profile import Profile
from sm120.integration.serve.startup.startup_lines import read, where

Verdict = Literal["ok", "DIFFERENT", "not seen"]
GB = 1 << 30


@dataclass(frozen=True)
class Row:
    """One assertion. `found` is None where no line said anything."""

    name: str
    expected: str
    found: str | None
    verdict: Verdict
    source: str


def passed(rows: list[Row]) -> bool:
    """Whether every row is ok; no rows at all is no pass."""
    return bool(rows) and all(row.verdict == "ok" for row in rows)


def assert_startup(profile: Profile, log: str = "", info: dict[str, Any] | None = None) -> list[Row]:
    """Hold a start's log, and what /server_info answers, against `profile`.

    `expect` of the profile names the assertions; server arguments, graph capture and the sizes that the planner can
    know are held against the profile's other tables. An expectation with a name that is not known here raises
    ValueError: it would never be checked.
    """
    said = read(log)
    rows = [_arguments(profile, said, info)]
    for name, wanted in profile.expect.items():
        if name not in EXPECTATIONS:
            raise ValueError(f"profile {profile.name}: expect.{name} is none of {', '.join(sorted(EXPECTATIONS))}")
        line, take = EXPECTATIONS[name]
        found = take(said[line])
        if name == "kv_tokens" and found is None and info and "max_total_num_tokens" in info:
            rows.append(_row(name, wanted, int(info["max_total_num_tokens"]), "/server_info: max_total_num_tokens"))
            continue
        rows.append(_row(name, wanted, found, where(line)))
    rows += _limits(profile, said)
    rows += _sizes(profile, said)
    return rows


def _row(name: str, wanted: Any, found: Any, source: str) -> Row:
    if found is None:
        return Row(name, _text(wanted), None, "not seen", source)
    if name == "hicache_pools":
        same = set(wanted) <= set(found)
    elif name in ("gdn_decode_kernel", "gdn_prefill_kernel"):
        same = str(found).startswith(str(wanted))
    else:
        same = found == wanted and type(found) is type(wanted)
    return Row(name, _text(wanted), _text(found), "ok" if same else "DIFFERENT", source)


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | set | tuple) else str(value)


def _field(name: str, index: int = 0, kind: type = str) -> Any:
    """Take one group of one occurrence; None where that occurrence is not there."""

    def take(found: list[dict[str, str]]) -> Any:
        try:
            return kind(found[index][name])
        except (IndexError, KeyError, ValueError):
            return None

    return take


def _queue(found: list[dict[str, str]]) -> str | None:
    params = _literal(found[-1]["params"]) if found else None
    if not isinstance(params, dict):
        return None
    on = [name for name in ("uring", "aio", "posix_aio") if params.get(f"use_{name}") == "true"]
    return on[0] if len(on) == 1 else None


def _pools(found: list[dict[str, str]]) -> list[str] | None:
    if not found:
        return None
    return [part.split("(")[0].strip().lower() for part in found[-1]["pools"].split("+")]


def _captured(what: str) -> Any:
    def take(found: list[dict[str, str]]) -> str | None:
        return what if any(entry["what"] == what and _literal(entry["sizes"]) for entry in found) else None

    return take


EXPECTATIONS: dict[str, tuple[str, Any]] = {
    "prefill_backend": ("attention", _field("prefill")),
    "decode_backend": ("attention", _field("decode")),
    # The target's pool is made before the draft's.
    "kv_dtype": ("kv", _field("dtype")),
    "kv_tokens": ("totals", _field("tokens", kind=int)),
    "draft_kv_dtype": ("kv", _field("dtype", index=1)),
    "draft_runner": ("dflash", lambda found: "DFLASH" if found else None),
    "draft_attention_backend": ("dflash", _field("backend")),
    "draft_block_size": ("dflash", _field("block", kind=int)),
    "draft_window_size": ("dflash", _field("window", kind=int)),
    "gdn_decode_kernel": ("gdn", _field("decode")),
    "gdn_prefill_kernel": ("gdn", _field("prefill")),
    "gdn_recover_drafts": ("recover", _field("drafts", kind=int)),
    "mamba_slots": ("mamba", _field("slots", kind=int)),
    "graph_target": ("graph", _captured("target verify")),
    "graph_draft": ("draft_graph", lambda found: "draft" if found else None),
    "hicache_pools": ("pools", _pools),
    "storage_backend": ("storage", _field("backend")),
    "storage_queue": ("nixl", _queue),
    "storage_direct_io": ("direct", lambda found: True if found else None),
}


def _arguments(profile: Profile, said: dict[str, list[dict[str, Any]]], info: dict[str, Any] | None) -> Row:
    """Every argument of the profile against what the server resolved; a field that is gone is not seen."""
    name, source = f"{len(profile.server)} server arguments", where("arguments")
    resolved = _literal(said["arguments"][-1]["arguments"]) if said["arguments"] else None
    if not isinstance(resolved, dict) and info is not None:
        resolved, source = info, "/server_info"
    if not isinstance(resolved, dict):
        return Row(name, "as in the profile", None, "not seen", source)
    different, absent = [], []
    for argument, wanted in profile.server.items():
        field = argument.replace("-", "_")
        if field not in resolved:
            absent.append(argument)
        elif not _same(argument, wanted, resolved[field]):
            different.append(f"{argument}={resolved[field]!r}")
    if different:
        return Row(name, "as in the profile", "; ".join(different), "DIFFERENT", source)
    if absent:
        return Row(name, "as in the profile", f"absent: {', '.join(absent)}", "not seen", source)
    return Row(name, "as in the profile", "all", "ok", source)


# What the server itself resolves to another word for the same thing.
ALIASES = {("speculative-algorithm", "NEXTN"): "EAGLE"}


def _same(argument: str, wanted: Any, found: Any) -> bool:
    return found == wanted or found == ALIASES.get((argument, wanted), wanted)


def _limits(profile: Profile, said: dict[str, list[dict[str, Any]]]) -> list[Row]:
    """What the server lowers without a word: what was asked for beside what is in effect (sglang #38846, #36889)."""
    rows = []
    for argument, line, group in (
        ("max-running-requests", "totals", "running"),
        ("context-length", "totals", "context"),
        ("max-mamba-cache-size", "mamba", "slots"),
    ):
        if profile.argument(argument) is not None:
            found = int(said[line][-1][group]) if said[line] else None
            rows.append(_row(f"{argument}, in effect", number(profile, argument, 0), found, where(line)))
    if profile.argument("max-running-requests") is not None and "graph_target" in profile.expect:
        sizes = [size for entry in said["graph"] for size in _literal(entry["sizes"]) or []]
        # A graph for fewer requests than may run leaves the fullest batches to the slow path.
        rows.append(
            _row(
                "requests of the largest graph",
                number(profile, "max-running-requests", 0),
                max(sizes, default=None),
                where("graph"),
            )
        )
    host = _host(profile, said)
    if host is not None:
        kv = next((entry for entry in said["host_kv"] if entry["pool"] == "kv"), None)
        states = said["host_states"][0] if said["host_states"] else None
        rows.append(_row("host pool, tokens", host.tokens, int(kv["tokens"]) if kv else None, where("host_kv")))
        found = int(states["states"]) if states else None
        rows.append(_row("host pool, states", host.states, found, where("host_states")))
    return rows


def _host(profile: Profile, said: dict[str, list[dict[str, Any]]]) -> HostTier | None:
    """The host pools that belong to the pool that the server made; None without a hybrid's hierarchy."""
    if not profile.planner.model or not profile.argument("enable-hierarchical-cache") or not said["totals"]:
        return None
    return host_of(profile, geometry(profile), settings_of(profile, kv_tokens=int(said["totals"][-1]["tokens"])))


def _sizes(profile: Profile, said: dict[str, list[dict[str, Any]]]) -> list[Row]:
    """Pools of a hybrid against the planner: rounded as the log rounds, the recover window to the byte."""
    if not profile.planner.model:
        return []
    totals = said["totals"]
    tokens = int(totals[-1]["tokens"]) if totals else 0
    model = geometry(profile)
    pools = {pool.name: pool.bytes for pool in pools_of(model, settings_of(profile, kv_tokens=tokens or 1))}
    rows = []
    pairs = [("conv", "conv"), ("ssm", "ssm"), ("intermediate_ssm", "intermediate"), ("conv_window", "window")]
    for pool, group in pairs:
        found = said["mamba"][0][group] if said["mamba"] else None
        wanted = f"{pools.get(pool, 0) / GB:.2f}"
        rows.append(_row(f"{pool} pool, GiB", wanted, found, where("mamba")))
    if "recover_window" in pools:
        found = int(said["recover"][0]["bytes"]) if said["recover"] else None
        rows.append(_row("recover window, bytes", pools["recover_window"], found, where("recover")))
    kv = said["kv"][0] if said["kv"] and tokens else None
    half = "unknown without the number of tokens"
    if tokens:
        half = f"{(tokens + _page(profile)) * model.full_layers * model.kv_heads * model.head_dim / GB:.2f}"
    rows.append(_row("K of the target, GiB", half, kv["k"] if kv else None, where("kv")))
    return rows


def _page(profile: Profile) -> int:
    return number(profile, "page-size", 1)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
