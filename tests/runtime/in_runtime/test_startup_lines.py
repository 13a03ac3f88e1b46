"""Every line that `assert-startup` reads is rendered from the installed source's own logging call and read back."""

import ast
import importlib.util
import os
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace as Fake

import pytest

from sm120.integration.serve.startup.startup_lines import LINES

SGLANG = Path(importlib.util.find_spec("sglang").submodule_search_locations[0])
GB = 1 << 30

# Names that the f-string of an anchor uses, or the arguments of its %-format, and what must be read back.
SAMPLES = {
    "attention": (
        {"resolved": Fake(decode="trtllm_mha", prefill="flashinfer")},
        {"decode": "trtllm_mha", "prefill": "flashinfer"},
    ),
    "kv": (
        {
            "cache_name": "KV Cache",
            "self": Fake(post_capture_active=False, dtype="torch.float8_e4m3fn"),
            "num_tokens": 824384,
            "k_size_GB": 4.72,
            "v_size_GB": 4.72,
        },
        {"dtype": "torch.float8_e4m3fn", "tokens": "824384", "k": "4.72", "v": "4.72"},
    ),
    "mamba": (
        {
            "size": 24,
            "GB": GB,
            "conv_state": 2 * GB,
            "temporal_state": 3 * GB,
            "intermediate_ssm_gb": 0.0,
            "get_tensor_size_bytes": lambda size: size,
            "self": Fake(_intermediate_conv_window_phys=GB // 50),
        },
        {"slots": "24", "conv": "2.00", "ssm": "3.00", "intermediate": "0.00", "window": "0.02"},
    ),
    "recover": (
        {"spec_state_size": 4, "speculative_num_draft_tokens": 4, "recover_window_bytes": 12072960},
        {"rows": "5", "drafts": "4", "bytes": "12072960"},
    ),
    "gdn": (
        {
            "self": Fake(
                decode_kernel=type("FlashInferGDNKernel", (), {})(),
                extend_kernel=type("FlashInferGDNKernel", (), {})(),
                verify_kernel=type("TritonGDNKernel", (), {})(),
                supports_packed_decode=False,
            )
        },
        {"decode": "FlashInferGDNKernel", "prefill": "FlashInferGDNKernel", "verify": "TritonGDNKernel"},
    ),
    "graph": (
        {
            "capture_name": "target verify",
            "graph_backend": defaultdict(lambda: "CUDA graph"),
            "model_runner": Fake(device="cuda"),
            "runner": Fake(capture_bs=[1, 2, 4]),
            "capture_time": 3.5,
            "memory_usage_gb": 0.4,
            "after_mem": 3.0,
        },
        {"what": "target verify", "sizes": "[1, 2, 4]"},
    ),
    "draft_graph": ({"capture_time": 2.0, "before_mem": 3.5, "after_mem": 3.0}, {}),
    "dflash": (
        ("flashinfer", "DFlashDraftModel", 8, 2048, True),
        {"backend": "flashinfer", "model": "DFlashDraftModel", "block": "8", "window": "2048", "compact": "True"},
    ),
    "host_kv": (("kv", 1_966_528, 27.82), {"pool": "kv", "tokens": "1966528", "gb": "27.82"}),
    "host_states": ((4.13, 70, "page_first"), {"gb": "4.13", "states": "70"}),
    "totals": (
        {
            "self": Fake(
                max_total_num_tokens=824384,
                max_prefill_tokens=16384,
                max_running_requests=4,
                model_config=Fake(context_len=524288),
                device="cuda",
                startup_available_gpu_memory_gb=2.5,
            ),
            "get_schedule": lambda: Fake(chunked_prefill_size=8192),
        },
        {"tokens": "824384", "chunk": "8192", "running": "4", "context": "524288"},
    ),
    "pools": (("KV + INDEXER(k-only) + MAMBA", 48), {"pools": "KV + INDEXER(k-only) + MAMBA"}),
    "storage": (
        {"backend_name": "nixl", "registry_entry": {"module_path": "m", "class_name": "C"}},
        {"backend": "nixl"},
    ),
    "nixl": (
        {
            "self": Fake(backend_name="POSIX"),
            "initparams": {"use_uring": "true"},
            "agent": Fake(get_backend_params=lambda name: {}),
            "plugin_list": ["POSIX"],
        },
        {"plugin": "POSIX", "params": "{'use_uring': 'true'}"},
    ),
    "direct": (("POSIX",), {"plugin": "POSIX"}),
    "arguments": (
        {"_server_args_for_logging": lambda arguments: arguments, "server_args": {"page_size": 64}},
        {"arguments": "{'page_size': 64}"},
    ),
}


def constant_text(node: ast.AST) -> str:
    return "".join(
        part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "\0"
        for part in (node.values if isinstance(node, ast.JoinedStr) else [node])
    )


def render(source: Path, anchor: str, values) -> str:
    """The message of the logging call whose format holds `anchor`; where there are several they are all alike."""
    calls = [
        node
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call)
        and node.args
        and isinstance(node.func, ast.Attribute | ast.Name)
        and getattr(node.func, "attr", getattr(node.func, "id", ""))
        in ("info", "warning", "rank0_log", "log_info_on_rank0")
    ]
    found = [(call, arg) for call in calls for arg in call.args if anchor in constant_text(arg)]
    assert found, f"{source.name}: no logging call with {anchor!r}"
    assert len({ast.dump(arg) for _, arg in found}) == 1, f"{source.name}: logging calls differ with {anchor!r}"
    arg = found[0][1]
    names = values if isinstance(values, dict) else {}
    text = eval(compile(ast.Expression(arg), str(source), "eval"), dict(names))
    if isinstance(values, tuple):
        wanted = text.replace("%%", "").count("%")
        text %= (values + (0,) * wanted)[:wanted]
    return text


@pytest.mark.parametrize("name", LINES)
def test_the_releases_own_words_are_read_back(name):
    line = LINES[name]
    values, wanted = SAMPLES[name]
    text = render(SGLANG / "srt" / line.source, line.anchor, values)
    assert line.find(f"[2026-11-29 19:02:02] {text}\n") == [wanted]
    if folder := os.environ.get("SM120_STARTUP_LINES"):
        Path(folder, name).write_text(text)


@pytest.mark.parametrize("name", LINES)
def test_another_wording_is_not_taken_for_it(name):
    line = LINES[name]
    text = render(SGLANG / "srt" / line.source, line.anchor, SAMPLES[name][0])
    assert line.find(text) and line.find(text.replace(line.anchor.strip(), "reworded")) == []
