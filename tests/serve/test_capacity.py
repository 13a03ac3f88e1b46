"""The calculator: what fits and what does not, and refusals."""

import json
import re

import pytest
from typer.testing import CliRunner

from sm120.integration.cli import app
from sm120.integration.common.refusal import Refusal
from sm120.integration.common.sizes import parse_bytes
from sm120.integration.serve.capacity import GIB, budget_left, capacity, geometry, read_config, settings_of
from sm120.integration.serve.planner import plan
from sm120.integration.serve.profile import load_profile
from sm120.integration.serve.slot_trade import proposed_slots, slot_trade


@pytest.fixture(autouse=True)
def no_user_files(monkeypatch, tmp_path):
    monkeypatch.setenv("SM120_CONFIG", str(tmp_path))


def test_a_reported_startup_allocation_to_its_last_digit():
    """Of the 27B start with 1,118,784 tokens and of Flash-Next with 824,384, in GiB as their logs round."""
    profile = load_profile("qwen38-27b-dflash2")
    found = {pool.name: pool.bytes / GIB for pool in plan(geometry(profile), settings_of(profile, kv_tokens=1_118_784))}
    assert [f"{found[name] / 2:.2f}" for name in ("kv", "draft_kv")] == ["17.07", "5.34"]
    names = ("conv", "ssm", "intermediate_ssm", "conv_window")
    assert [f"{found[name]:.2f}" for name in names] == ["0.07", "3.52", "5.62", "0.05"]
    profile = load_profile("flash-next")
    found = {pool.name: pool.bytes / GIB for pool in plan(geometry(profile), settings_of(profile, kv_tokens=824_384))}
    assert [f"{found['kv'] / 13 * layers / 2:.2f}" for layers in (12, 1)] == ["4.72", "0.39"]


def test_no_more_requests_than_the_slots_allow():
    def rows(*settings):
        return settings_of(load_profile("flash-next", list(settings)), kv_tokens=1).max_running

    assert rows() == 4 and rows("max-mamba-cache-size=16") == 3
    assert rows("max-mamba-cache-size=16", "mamba-radix-cache-strategy=extra_buffer_lazy") == 4
    for value in ("4", "0", ""):
        with pytest.raises(Refusal, match="plan-settings.*max-mamba-cache-size"):
            rows(f"max-mamba-cache-size={value}")


@pytest.mark.parametrize("name", ["flash-next", "qwen38-27b-dflash2"])
def test_tokens_fill_the_budget_to_less_than_a_page(name):
    profile = load_profile(name)
    found = capacity(profile, 30 * GIB)
    page = int(profile.argument("page-size"))
    assert found.tokens % page == 0 and 0 <= found.left < page * found.bytes_per_token
    # What the engine allocates without charging it is named, and small: a padding page, side states and their windows.
    allocated = sum(pool.bytes for pool in found.pools)
    assert allocated == 30 * GIB - found.left + found.uncharged and found.uncharged < 12 << 20


def test_a_cap_on_tokens_is_kept():
    profile = load_profile("flash-next", ["max-total-tokens=100000"])
    assert capacity(profile, 30 * GIB).tokens == 99_968


@pytest.mark.parametrize(
    ("settings", "model", "conv"),
    [
        ((), "bfloat16", "bfloat16"),
        (("dtype=half",), "float16", "bfloat16"),
        (("dtype=float32", "environment.SGLANG_MAMBA_CONV_DTYPE=float16"), "float32", "float16"),
    ],
    ids=["defaults", "half", "apart"],
)
def test_the_conv_state_does_not_follow_the_model_s_dtype(settings, model, conv):
    """In SGLang the former is bfloat16 unless its variable says otherwise; draft windows have the latter."""
    profile = load_profile("flash-next", list(settings))
    found = settings_of(profile, kv_tokens=1)
    assert (found.model_dtype, found.conv_dtype) == (model, conv)
    window = {pool.name: pool.bytes for pool in plan(geometry(profile), found)}["recover_window"]
    assert window == 36 * 5 * 4 * ((16 * 128 + 48 * 128) * (4 if model == "float32" else 2) + 2 * 48 * 4)


def test_slots_and_host():
    found = capacity(load_profile("flash-next"), 30 * GIB)
    assert (found.slots.slots, found.slots.cap, found.slots.idle) == (24, 4, 8)
    assert found.host_tokens == 32 * 10**9 // 14_144 // 64 * 64
    # 24 slots are 20 to admit four requests; running they hold 16. More slots than that do not let more requests run.
    assert (found.slots.reserved_per_request, found.slots.held) == (5, 16)
    more = capacity(load_profile("flash-next", ["max-mamba-cache-size=36"]), 30 * GIB).slots
    assert (more.cap, more.idle) == (4, 20)


def test_a_config_wins_over_the_profiles_table(tmp_path):
    profile = load_profile("flash-next")
    config = {"text_config": {**profile.planner.model, "num_key_value_heads": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert capacity(profile, 30 * GIB, read_config(tmp_path)).tokens < capacity(profile, 30 * GIB).tokens
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(Refusal, match="not a JSON object"):
        read_config(tmp_path)
    with pytest.raises(Refusal, match="not a readable config.json"):
        read_config(tmp_path / "none.json")
    with pytest.raises(Refusal, match="no 'head_dim'"):
        geometry(profile, {key: value for key, value in profile.planner.model.items() if key != "head_dim"})


def test_sizes():
    assert (
        parse_bytes("96GiB") == 96 * GIB
        and parse_bytes(" 1.5 GB") == 1_500_000_000
        and parse_bytes("7e9") == 7_000_000_000
    )
    with pytest.raises(Refusal, match=r"'70' would be that many bytes(.|\n)*fix: 70GiB"):
        parse_bytes("70")
    for text in ("", "GiB", "96 G", "-1GiB", "0", "1..2GB", "nan"):
        with pytest.raises(Refusal, match="plan-size"):
            parse_bytes(text)


def test_what_does_not_fit_is_refused():
    assert budget_left(100, 50, 0.9) == 40
    for arguments in ((100, 95, 0.9), (100, 50, 0.9, 40)):
        with pytest.raises(Refusal, match="leaves nothing"):
            budget_left(*arguments)
    for fraction in (0, 1.5, -1):
        with pytest.raises(Refusal, match="static fraction"):
            budget_left(100, 1, fraction)
    with pytest.raises(Refusal, match="do not fit"):
        capacity(load_profile("flash-next"), GIB)
    with pytest.raises(Refusal, match="plan-model"):
        capacity(load_profile("cpu-proof"), GIB)
    with pytest.raises(Refusal, match="plan-settings"):
        capacity(load_profile("flash-next", ["kv-cache-dtype=nvfp4"]), GIB)


def test_the_command_line():
    run = CliRunner(env={"COLUMNS": "200"}).invoke
    done = run(app, ["plan", "flash-next", "--weights", "78.3GiB"])
    assert done.exit_code == 0 and "tokens: 827,264" in done.output and "14,144 B" in done.output
    assert "mem-fraction-static 0.97" in done.output and "DOES NOT FIT" not in done.output
    # Without a size it is what such a card has free, which is less than the card has.
    assert done.output == run(app, ["plan", "flash-next", "--weights", "78.3GiB", "--gpu-mem", "96600MiB"]).output
    small = run(app, ["plan", "flash-next", "--weights", "83GiB"])
    assert small.exit_code == 1 and "DOES NOT FIT: a request of 524,288 tokens" in small.output
    tight = run(app, ["plan", "flash-next", "--weights", "78.3GiB", "--static-fraction", "0.995"])
    assert tight.exit_code == 0 and "tight" in tight.output
    for words in (["--static-fraction", "0"], ["--set", "mem-fraction-static="], ["--set", "mem-fraction-static=x"]):
        assert "plan-settings" in str(run(app, ["plan", "flash-next", "--weights", "70GiB", *words]).exception)
    assert "plan-weights" in str(run(app, ["plan", "flash-next"]).exception)
    assert "plan-size" in str(run(app, ["plan", "flash-next", "--weights", "70"]).exception)


def test_slots_are_traded_for_tokens():
    """A published log: 12 slots found 5.4 % of the prompt tokens, 36 found 95.6 %."""
    profile = load_profile("flash-next")
    assert (
        proposed_slots(profile) == 36 and proposed_slots(load_profile("flash-next", ["max-running-requests=2"])) == 18
    )
    lines = "\n".join(slot_trade(profile, 13 * GIB))
    counts = {int(slots): int(tokens.replace(",", "")) for slots, tokens in
              re.findall(r"(\d+) slots: .*?, ([\d,]+) tokens", lines)}  # fmt: skip
    assert sorted(counts) == [12, 24, 36, 48] and "--set max-mamba-cache-size=36" in lines
    # Each is what a start with that number would have.
    for slots, tokens in counts.items():
        assert capacity(load_profile("flash-next", [f"max-mamba-cache-size={slots}"]), 13 * GIB).tokens == tokens
