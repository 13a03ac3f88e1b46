"""XQA has one module for all draft lengths where no kernel is specialized for a draft length, i.e. without SM90."""

import importlib
import itertools

import pytest
import torch
from flashinfer.jit import xqa as xqa_jit

# The package has a function of the same name
xqa_api = importlib.import_module("flashinfer.xqa")

FP8 = torch.float8_e4m3fn


def spec_of(q_seq_len: int, group: int = 6, ragged: bool = False, head_dim: int = 256, window: bool = False):
    return xqa_jit.gen_xqa_module(
        torch.bfloat16, FP8, 64, head_dim, group, window, torch.bfloat16, q_seq_len, use_ragged_q=ragged
    )


def flags_of(spec) -> list[str]:
    return [str(flag) for flag in spec.extra_cuda_cflags]


@pytest.fixture
def targets(monkeypatch, tmp_path):
    """Sets the architectures that modules are built for."""

    def set_targets(arch_list: str) -> None:
        monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", arch_list)
        xqa_jit._has_sm90_target.cache_clear()

    yield set_targets
    xqa_jit._has_sm90_target.cache_clear()
    xqa_api._get_xqa_module_cached.cache_clear()


WITHOUT_SM90 = ["12.0a", "12.0f", "12.1a", "10.0a", "10.0a 12.0a"]
WITH_SM90 = ["9.0a", "9.0a 12.0a", "12.0a 9.0a"]


@pytest.mark.parametrize("arch_list", WITHOUT_SM90)
@pytest.mark.parametrize("group", [1, 2, 3, 6, 16])
def test_draft_lengths_share_name_and_flags(arch_list, group, targets):
    targets(arch_list)
    specs = [spec_of(q, group, ragged) for q in (2, 4, 8, 9, 16, 33) for ragged in (False, True)]
    assert len({spec.name for spec in specs}) == 1
    assert len({tuple(flags_of(spec)) for spec in specs}) == 1
    assert not any("SPEC_Q_SEQ_LEN" in flag for flag in flags_of(specs[0]))
    assert "-DSPEC_DEC=1" in flags_of(specs[0])


@pytest.mark.parametrize("arch_list", WITHOUT_SM90)
def test_other_parameters_still_name_the_module(arch_list, targets):
    targets(arch_list)
    specs = [
        spec_of(q, group, False, head_dim, window)
        for q, group, head_dim, window in itertools.product((1, 8), (6, 8), (128, 256), (False, True))
    ]
    assert len({spec.name for spec in specs}) == len(specs)


@pytest.mark.parametrize("arch_list", WITHOUT_SM90 + WITH_SM90)
def test_module_without_drafts_has_its_prebuilt_name(arch_list, targets):
    """Prebuilt modules are built for a list of architectures and looked up on a machine with one of them."""
    targets(arch_list)
    assert spec_of(1).name == (
        "xqa_input_bf16_kv_cache_e4m3_output_bf16_page_size_64_head_dim_256_head_group_ratio_6"
        "_use_sliding_window_False_use_spec_dec_False_spec_q_seq_len_1"
    )


@pytest.mark.parametrize("arch_list", WITH_SM90)
@pytest.mark.parametrize(("group", "eligible"), [(3, [2, 8, 9]), (6, [2]), (16, [2]), (32, [])])
def test_sm90_modules_are_as_before(arch_list, group, eligible, targets):
    targets(arch_list)
    for q in (2, 8, 9):
        for ragged in (False, True):
            spec = spec_of(q, group, ragged)
            specialized = q in eligible and not ragged
            assert spec.name == (
                f"xqa_input_bf16_kv_cache_e4m3_output_bf16_page_size_64_head_dim_256_head_group_ratio_{group}"
                f"_use_sliding_window_False_use_spec_dec_True_spec_q_seq_len_{q}"
                + ("_ragged_q" if q in eligible and ragged else "")
            )
            in_flags = [flag for flag in flags_of(spec) if "SPEC_Q_SEQ_LEN" in flag]
            assert in_flags == ([f"-DSPEC_Q_SEQ_LEN={q}"] if specialized else [])


@pytest.mark.parametrize("arch_list", ["12.0a", "9.0a"])
def test_large_heads_still_refuse_drafts(arch_list, targets):
    targets(arch_list)
    with pytest.raises(ValueError, match="does not support speculative decoding"):
        spec_of(2, head_dim=512)


class RecordingModule:
    def __init__(self):
        self.calls = []

    def xqa_wrapper(self, *args):
        self.calls.append(args)


@pytest.mark.parametrize(("arch_list", "builds"), [("12.0a", 1), ("9.0a 12.0a", 3)])
def test_one_module_is_loaded_and_gets_each_draft_length(arch_list, builds, targets, monkeypatch):
    targets(arch_list)
    xqa_api._get_xqa_module_cached.cache_clear()
    loaded = {}
    registered = []

    def load(spec):
        loaded.setdefault(spec.name, RecordingModule())
        return loaded[spec.name]

    register = xqa_api.register_custom_op
    monkeypatch.setattr(type(spec_of(2)), "build_and_load", load)
    monkeypatch.setattr(
        xqa_api, "register_custom_op", lambda name, **kw: registered.append(name) or register(name, **kw)
    )

    marks = {name: torch.full((1,), i) for i, name in enumerate(("q", "cu", "mask"))}
    for q_seq_len in (8, 9, 2, 8):
        module = xqa_api.get_xqa_module(torch.bfloat16, FP8, 64, 256, 6, False, torch.bfloat16, q_seq_len)
        module.xqa(
            run_sm90_fp8_mha=False,
            sm_count=1,
            num_kv_heads=4,
            sliding_win_size=0,
            q_scale=1.0,
            output=None,
            rcp_out_scale=1.0,
            q=marks["q"],
            sinks=None,
            k_cache=None,
            v_cache=None,
            k_sf_cache=None,
            v_sf_cache=None,
            page_table=None,
            max_seq_len=64,
            seq_lens=None,
            batch_size=1,
            kv_scale=1.0,
            semaphores=None,
            workspace_buffer=None,
            enable_pdl=False,
            q_seq_len=q_seq_len,
            q_cu_seq_lens=marks["cu"],
            mask=marks["mask"],
        )
    assert len(loaded) == builds
    # Registering one name twice is an error
    assert sorted(registered) == sorted({f"flashinfer::{name}" for name in loaded})
    lengths = []
    for fake in loaded.values():
        for args in fake.calls:
            # q_seq_len is the argument in front of the ragged lengths and the mask
            position = next(i for i, arg in enumerate(args) if arg is marks["cu"])
            assert args[position + 1] is marks["mask"]
            lengths.append(args[position - 1])
    assert sorted(lengths) == [2, 8, 8, 9]
