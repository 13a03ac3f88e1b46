"""The log lines that are read, each with the place in the pinned release that writes it.

`source` is a file below `sglang/srt`, `anchor` literal text of the logging call there. A test renders every anchor's
call from the installed source with made-up values and reads it back, so that a release that words a line differently
fails that test and, until then, shows as "not seen".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Line:
    """`pattern` is searched in each line of the log; its named groups are what the line says."""

    name: str
    source: str
    anchor: str
    pattern: str

    def find(self, log: str) -> list[dict[str, str]]:
        """What every occurrence says, in order."""
        return [match.groupdict() for match in re.finditer(self.pattern, log)]


NUMBER = r"-?\d+(?:\.\d+)?"
LINES = {
    line.name: line
    for line in (
        Line(
            "attention",
            "model_executor/model_runner_components/attention_backend_setup.py",
            "Using hybrid attention backend for decode and prefill: ",
            r"Using hybrid attention backend for decode and prefill: decode_backend=(?P<decode>\w+), "
            r"prefill_backend=(?P<prefill>\w+)\.",
        ),
        Line(
            "kv",
            "mem_cache/memory_pool.py",
            ", K size: ",
            r"(?m)(?:^|\] )KV Cache is allocated\. dtype: (?P<dtype>[\w.]+), #tokens: (?P<tokens>\d+), "
            rf"K size: (?P<k>{NUMBER}) GB, V size: (?P<v>{NUMBER}) GB",
        ),
        Line(
            "mamba",
            "mem_cache/memory_pool.py",
            "intermediate_ssm_state_cache size: ",
            rf"Mamba Cache is allocated\. max_mamba_cache_size: (?P<slots>\d+), conv_state size: (?P<conv>{NUMBER})GB, "
            rf"ssm_state size: (?P<ssm>{NUMBER})GB intermediate_ssm_state_cache size: (?P<intermediate>{NUMBER})GB "
            rf"intermediate_conv_window_cache size: (?P<window>{NUMBER})GB",
        ),
        Line(
            "recover",
            "mem_cache/memory_pool.py",
            "GDN recover window is allocated. rows: ",
            r"GDN recover window is allocated\. rows: (?P<rows>\d+), draft tokens: (?P<drafts>\d+), "
            r"size: (?P<bytes>\d+) bytes",
        ),
        Line(
            "gdn",
            "layers/attention/linear/gdn_backend.py",
            "GDN kernel dispatcher: decode=",
            r"GDN kernel dispatcher: decode=(?P<decode>\w+), extend=(?P<prefill>\w+), verify=(?P<verify>\w+) ",
        ),
        Line(
            "graph",
            "model_executor/model_runner_components/cuda_graph_setup.py",
            " end. bs=",
            rf"Capture (?P<what>[\w ]+?) CUDA graph end\. bs=(?P<sizes>\[[^\]]*\]), elapsed={NUMBER} s, "
            rf"mem usage={NUMBER} GB",
        ),
        Line(
            "draft_graph",
            "speculative/eagle_worker_v2.py",
            "Capture draft decode CUDA graph end. ",
            r"Capture draft decode CUDA graph end\. ",
        ),
        Line(
            "dflash",
            "speculative/dflash_worker_v2.py",
            "Initialized DFLASH draft runner. attention_backend=",
            r"Initialized DFLASH draft runner\. attention_backend=(?P<backend>\w+), model=(?P<model>\w+), "
            r"block_size=(?P<block>\w+), draft_window_size=(?P<window>\w+), compact_cache=(?P<compact>\w+)",
        ),
        Line(
            "totals",
            "managers/scheduler.py",
            "max_total_num_tokens=",
            r"max_total_num_tokens=(?P<tokens>\d+), chunked_prefill_size=(?P<chunk>-?\w+), "
            r"max_prefill_tokens=\w+, max_running_requests=(?P<running>\d+), context_len=(?P<context>\d+), ",
        ),
        Line(
            "pools",
            "mem_cache/hybrid_cache/hybrid_pool_assembler.py",
            "Attached hybrid pool stack to UnifiedRadixCache: pools=",
            r"Attached hybrid pool stack to UnifiedRadixCache: pools=(?P<pools>[\w ()+-]+), transfer_layer_id_max=",
        ),
        Line(
            "host_kv",
            "mem_cache/pool_host/base.py",
            " GB host memory.",
            rf"Allocating (?P<pool>\w+) hierarchical KV host pool: (?P<tokens>\d+) tokens, (?P<gb>{NUMBER}) GB host memory",
        ),
        Line(
            "host_states",
            "mem_cache/pool_host/mamba.py",
            " GB host memory for hierarchical Mamba cache (",
            rf"Allocating (?P<gb>{NUMBER}) GB host memory for hierarchical Mamba cache \((?P<states>\d+) state slots, ",
        ),
        Line(
            "storage",
            "mem_cache/storage/backend_factory.py",
            "Creating storage backend '",
            r"Creating storage backend '(?P<backend>\w+)' ",
        ),
        Line(
            "nixl",
            "mem_cache/storage/nixl/nixl_utils.py",
            "NixlBackendSelection.create_backend: backend_name ",
            r"NixlBackendSelection\.create_backend: backend_name (?P<plugin>\w+) initparams (?P<params>\{[^}]*\}) ",
        ),
        Line(
            "direct",
            "mem_cache/storage/nixl/hicache_nixl.py",
            "HiCacheNixl: O_DIRECT is active with a file-based backend (",
            r"HiCacheNixl: O_DIRECT is active with a file-based backend \((?P<plugin>\w+)\)\.",
        ),
        Line("arguments", "entrypoints/engine.py", "server_args=", r"server_args=(?P<arguments>\{.*\})"),
    )
}


def where(name: str) -> str:
    """File of the release and text of the call, for the table."""
    return f"{LINES[name].source}: {LINES[name].anchor.strip()!r}"


def read(log: str) -> dict[str, list[dict[str, Any]]]:
    """Everything that the log says in lines that are known here; a line that is not there has no occurrences."""
    return {name: line.find(log) for name, line in LINES.items()}
