"""The planner reproduces the numbers that were measured or published, to the byte."""

from dataclasses import replace

import pytest

from sm120.integration.serve.planner import HybridModel, ServerSettings, plan, slot_report
from sm120.integration.serve.planner.pools import checkpoint_bytes, kv_bytes_per_token
from sm120.integration.serve.planner.settings import SideState, SparseIndex, linear_shape
from sm120.integration.serve.planner.state_bytes import formulas

MIB = 1 << 20
GDN = dict(num_k_heads=16, num_v_heads=48, head_k_dim=128, head_v_dim=128, conv_kernel=4)
FLASH_NEXT = HybridModel(
    linear_layers=36,
    full_layers=12,
    mtp_layers=1,
    kv_heads=2,
    head_dim=256,
    side_state=SideState(layers=1, channels=10_240, width=9, ngram_tokens=2),
    sparse_index=SparseIndex(heads=1, head_dim=128, ratio=4),
    **GDN,
)
QWEN_27B = HybridModel(linear_layers=48, full_layers=16, mtp_layers=0, kv_heads=4, head_dim=256, **GDN)
NEXTN = ServerSettings(
    max_running=4, mamba_slots=24, kv_tokens=824_384, draft_tokens=4, kv_dtype="fp8_e4m3", state_dtype="bfloat16"
)
DFLASH2 = ServerSettings(max_running=4, mamba_slots=24, kv_tokens=100_000, draft_tokens=8, state_dtype="float32")


def size(model, settings, name):
    return {pool.name: pool.bytes for pool in plan(model, settings)}[name]


def none(settings):
    return replace(settings, cache_mode="none")


def test_intermediate_states_of_flash_next_are_1080_mib():
    assert size(FLASH_NEXT, NEXTN, "intermediate_ssm") == 1080 * MIB
    assert round(1080 * MIB / (1 << 30), 4) == 1.0547


def test_intermediate_states_of_27b_dflash2_are_5_625_gib():
    assert size(QWEN_27B, DFLASH2, "intermediate_ssm") == 5.625 * (1 << 30)


def test_a_cached_token_costs_14144_bytes():
    assert kv_bytes_per_token(FLASH_NEXT, NEXTN) == 13 * 1024 + 13 * 64 == 14_144
    assert round(1080 * MIB / 14_144) == 80_067


def test_charged_1122_19_mib_needed_21_09_mib():
    shape = linear_shape(FLASH_NEXT, NEXTN)
    charged_as_whole_slots = shape.slot_bytes * 5 * 4
    assert round(charged_as_whole_slots / MIB, 2) == 1122.19
    assert round(size(FLASH_NEXT, none(NEXTN), "conv_window") / MIB, 2) == 21.09
    dense = formulas.conv_window_bytes(shape, rows=5, draft_tokens=4, deduplicated=False)
    assert round(dense / MIB, 1) == 42.2
    recovered = charged_as_whole_slots - size(FLASH_NEXT, none(NEXTN), "conv_window")
    assert round(recovered / MIB, 2) == 1101.09 and recovered // 14_144 == 81_630


def test_forty_slots_are_eight_requests_that_hold_32_and_leave_8():
    report = slot_report(40)
    assert (report.reserved_per_request, report.held_per_request) == (5, 4)
    assert (report.cap, report.held, report.idle) == (8, 32, 8)


def test_a_checkpoint_of_flash_next_is_59019280_bytes_and_16_past_a_block():
    assert checkpoint_bytes(FLASH_NEXT, NEXTN) == 59_019_280
    assert checkpoint_bytes(FLASH_NEXT, NEXTN) % 4096 == 16
    assert size(FLASH_NEXT, NEXTN, "ple_short_conv") == 25 * 184_320
    assert size(FLASH_NEXT, NEXTN, "ple_ngram") == 25 * 16


def test_the_mode_none_keeps_about_a_hundredth():
    kept = size(FLASH_NEXT, none(NEXTN), "recover_window")
    assert kept == 36 * 5 * 4 * ((16 * 128 + 48 * 128) * 2 + 2 * 48 * 4)
    assert kept / (1080 * MIB) < 0.011
    names = {pool.name for pool in plan(FLASH_NEXT, none(NEXTN))}
    assert "intermediate_ssm" not in names and "conv_window" in names


def test_without_speculation_there_is_no_scratch():
    names = [pool.name for pool in plan(QWEN_27B, replace(DFLASH2, draft_tokens=0))]
    assert names == ["conv", "ssm", "kv"]


def test_a_draft_model_brings_its_own_kv():
    settings = replace(DFLASH2, draft_kv_layers=5, draft_kv_heads=8, draft_head_dim=128)
    assert size(QWEN_27B, settings, "draft_kv") == (100_000 + 64) * 5 * 2 * 8 * 128 * 2


def test_a_config_file_gives_the_same_model():
    text = dict(
        num_hidden_layers=64,
        full_attention_interval=4,
        linear_num_key_heads=16,
        linear_num_value_heads=48,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        num_key_value_heads=4,
        head_dim=256,
    )
    assert HybridModel.from_config({"text_config": text}) == HybridModel.from_config(text) == QWEN_27B
    types = (["linear_attention"] * 3 + ["full_attention"]) * 16
    assert HybridModel.from_config({**text, "layer_types": types}) == QWEN_27B
    with pytest.raises(ValueError, match="no 'head_dim'"):
        HybridModel.from_config({k: v for k, v in text.items() if k != "head_dim"})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dict(draft_tokens=1), "draft_tokens is 1"),
        (dict(cache_mode="some"), "cache_mode is 'some'"),
        (dict(state_dtype="int8"), "state_dtype is 'int8'"),
        (dict(mamba_slots=0), "mamba_slots is 0"),
    ],
    ids=["one_draft", "mode", "dtype", "slots"],
)
def test_settings_that_make_no_sense_are_refused(change, says):
    with pytest.raises(ValueError, match=says):
        ServerSettings(**dict(max_running=4, mamba_slots=24, kv_tokens=64) | change)


def test_geometry_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="multiple of num_k_heads"):
        HybridModel(linear_layers=1, full_layers=1, mtp_layers=0, kv_heads=1, head_dim=64, **GDN | dict(num_v_heads=50))
    with pytest.raises(ValueError, match="page_size is 62, needs a multiple of the index ratio 4"):
        plan(FLASH_NEXT, ServerSettings(max_running=4, mamba_slots=24, kv_tokens=64, page_size=62))


def test_missing_formulas_name_their_file(tmp_path):
    from sm120.integration.serve.planner import state_bytes

    with pytest.raises(ValueError, match="byte formulas are missing"):
        state_bytes.load(tmp_path / "state_bytes.py")
