"""What the installed server makes of both profiles on a card of 96,609 MiB: its own resolution, not only its parser."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from sm120.integration.build.installed_runtime import PROOF_LAYER, Runtime
from sm120.integration.common.checkout import find_checkout
from sm120.integration.serve.profile import Profile, load_profile
from sm120.integration.serve.server_arguments import Machine, arguments

SCRIPT = Path(__file__).parent / "on_a_card" / "resolve.py"
MIB = 96_609
KINDS = {
    "qwen38-27b-dflash2": ("qwen3_5", "Qwen3_5ForConditionalGeneration", {"quant_method": "fp8"}),
    "flash-next": (
        "qwen4_exp",
        "Qwen4ExpForConditionalGeneration",
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    ),
}
ROPE = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
ROPE |= {"mrope_section": [11, 11, 10], "mrope_interleaved": True}


def checkpoints(folder: Path, profile: Profile) -> list[str]:
    """Configurations with the profile's geometry, without weights: resolution reads no more."""
    kind, architecture, quantization = KINDS[profile.name]
    text = {"max_position_embeddings": 262144, "vocab_size": 248320, "hidden_size": 5120, "num_attention_heads": 24}
    text |= {"intermediate_size": 17408, **profile.planner.model, "model_type": f"{kind}_text", "rope_parameters": ROPE}
    if profile.name == "flash-next":  # what the planner does not count; the checkpoint numbers its layers from one
        text |= {"indexer_n_heads": 8, "indexer_compress_ratio": 4, "eos_token_id": 0}
        text["ple_layer_ids"] = [layer + 1 for layer in text["ple_layer_ids"]]
    target = {"model_type": kind, "architectures": [architecture], "text_config": text}
    draft = {**text, "model_type": "qwen3", "architectures": ["DFlashDraftModel"], "num_hidden_layers": 5}
    draft |= {"head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 8, "block_size": 8}
    draft |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7}}
    draft |= {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 16, 31, 46, 61]}}
    for name, config in (("target", target), ("draft", draft)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
    return [f"paths.model={folder / 'target'}", *([f"paths.draft={folder / 'draft'}"] if profile.needs.draft else [])]


def resolved(folder: Path, name: str, *settings: str) -> dict:
    """Every field that the profile gives, and the fraction, as the server has them before it loads a model."""
    paths = checkpoints(folder, load_profile(name))
    profile = load_profile(name, [*paths, *settings])
    line = arguments(profile, Machine(True, True), host="127.0.0.1", port=30000)
    fields = sorted({"mem_fraction_static", *(key.replace("-", "_") for key in profile.server)})
    runtime = Runtime(find_checkout().runtime.absolute())
    without = ("CUDA_VISIBLE_DEVICES", "TRITON_INTERPRET", "PYTHONPATH")
    environment = {key: value for key, value in runtime.environment().items() if key not in without}
    environment["CPU_LAYER"] = str(PROOF_LAYER)
    done = subprocess.run(
        [str(runtime.python), str(SCRIPT), ",".join(fields), *line],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(autouse=True)
def no_user_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SM120_CONFIG", str(tmp_path))


@pytest.mark.xdist_group("in_runtime")
@pytest.mark.parametrize("name", KINDS)
def test_the_server_keeps_what_the_profile_says(tmp_path: Path, name: str) -> None:
    found = resolved(tmp_path, name)
    changed = {
        key: (value, found[key.replace("-", "_")])
        for key, value in load_profile(name).server.items()
        if found[key.replace("-", "_")] != value
    }
    # NEXTN is a name of what runs as EAGLE.
    assert changed == ({"speculative-algorithm": ("NEXTN", "EAGLE")} if name == "flash-next" else {})


@pytest.mark.long
def test_the_server_s_own_fraction_leaves_no_room_for_flash_next(tmp_path: Path) -> None:
    """Why the profile gives one: 80.3 GiB are resident before the first page."""
    found = resolved(tmp_path, "flash-next", "mem-fraction-static=")
    assert found["mem_fraction_static"] * MIB / 1024 < 80.3
