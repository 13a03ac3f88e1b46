"""The calculator: published steps, what fits and what does not, and refusals."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from sm120.integration.cli import app
from sm120.integration.planner import plan
from sm120.integration.profiles import load_profile
from sm120.integration.profiles.capacity import (
    GIB,
    budget_left,
    capacity,
    geometry,
    parse_bytes,
    read_config,
    settings_of,
)
from sm120.integration.profiles.published_tokens import (
    CARD,
    MIB,
    PAIRS,
    free_before_loading,
    ledger,
    missing_fraction,
    planned_here,
    predicted,
)
from sm120.integration.refusal import Refusal


@pytest.fixture(autouse=True)
def no_user_files(monkeypatch, tmp_path):
    monkeypatch.setenv("SM120_CONFIG", str(tmp_path))


def test_the_published_counts_follow_from_one_unknown():
    first, second = PAIRS
    assert predicted(first) == first.after.tokens == 824_384  # by construction: it gives the unknown
    assert predicted(second) == second.after.tokens == 1_194_496
    # The memory that the first pair needs is that of the card, less what the driver and a context take.
    assert 0.98 * CARD < free_before_loading() < 0.99 * CARD
    assert round(missing_fraction(), 4) == 0.92


def test_this_runtimes_own_accounting_is_within_a_thousandth():
    assert abs(planned_here() / 824_384 - 1) < 0.001


def test_the_ledger_adds_up_and_a_wrong_reading_does_not():
    first, second = map(ledger, PAIRS)
    assert (first.budget, first.slots, first.draft_slots) == (78_784 * 14_144, 0, 0)
    assert second.budget == 75_712 * 43_008 - 8 * 153_944_064 == 2_024_669_184
    # Without the draft's own cache, without the slots, or with one request less, nothing near a page would fit.
    brought = second.brought(free_before_loading())
    assert abs(second.budget - brought) < 64 * second.bytes_per_token
    for wrong in (75_712 * 32_768 - 8 * 153_944_064, 75_712 * 43_008, second.budget - 8 * 153_944_064):
        assert abs(wrong - brought) > 64 * second.bytes_per_token
    # Sixteen slots carry four requests only with lazy tracking buffers; otherwise a row of drafts would go too.
    slots = replace(PAIRS[1], after=replace(PAIRS[1].after, settings=("max-mamba-cache-size=16",)))
    assert ledger(slots).draft_slots == -8


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
    more = plan(geometry(profile), settings_of(profile, kv_tokens=found.tokens + page))
    assert sum(pool.bytes for pool in more) > 30 * GIB


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
    assert parse_bytes("96GiB") == 96 * GIB and parse_bytes(" 1.5 GB") == 1_500_000_000 and parse_bytes("7e3") == 7000
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
    done = run(app, ["plan", "flash-next", "--gpu-mem", "96GiB", "--weights", "70GiB"])
    assert done.exit_code == 0 and "tokens: " in done.output and "14,144 B" in done.output
    assert "0.9 is assumed" in done.output
    assert "does not fit" not in done.output
    # Without a size it is what such a card has free, which is less than the card has.
    assumed = run(app, ["plan", "flash-next", "--weights", "70GiB"]).output
    assert assumed == run(app, ["plan", "flash-next", "--weights", "70GiB", "--gpu-mem", "96600MiB"]).output
    assert f"{(96_600 * MIB * 0.9) / GIB - 70:.2f} GiB for pools" in assumed and 96_600 * MIB < CARD
    small = run(app, ["plan", "flash-next", "--weights", "80GiB"])
    assert (
        small.exit_code == 0
        and "a request of 524,288 tokens, the profile's context-length, does not fit" in small.output
    )
    told = run(app, ["plan", "flash-next", "--weights", "70GiB", "--static-fraction", "0.9"])
    assert "assumed" not in told.output and "plan-settings" in str(
        run(app, ["plan", "flash-next", "--weights", "70GiB", "--static-fraction", "0"]).exception
    )
    assert "plan-weights" in str(run(app, ["plan", "flash-next"]).exception)
    done = run(app, ["plan", "--published"])
    assert done.exit_code == 0 and "1,194,496 tokens, published 1,194,496" in done.output
