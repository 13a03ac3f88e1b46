"""The registered operator: what it says that it writes, that it traces without running, and what it hands on."""

from __future__ import annotations

import pytest
import torch
from mrope_cpu_build import Case
from mrope_oracle import YARN, store_for
from torch.fx.experimental.proxy_tensor import make_fx

from sm120.kernels.mrope import op

PARTIAL = "mrope_bf16_f32_d64_r32_a3_neox_gemma_fp8"
PHASE = "mrope_fp16_phase_d128_r128_a1_gptj_plain_none"
OPERATOR = torch.ops.sm120.fused_qk_norm_mrope.default


def test_the_schema_writes_the_output_and_the_caches_and_nothing_else() -> None:
    written = [argument.name for argument in OPERATOR._schema.arguments if argument.is_write]
    assert written == ["out", "k_cache", "v_cache"] and not OPERATOR._schema.returns


@pytest.mark.parametrize("name", [PARTIAL, PHASE])
@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in_place"])
def test_it_traces_as_one_operator_without_running(name: str, in_place: bool) -> None:
    case = Case(name, yarn=YARN)
    store = store_for(case)
    out = None if in_place else torch.empty(case.tokens, case.width, dtype=case.dtype)

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        return op.fused_qk_norm_mrope(*tensors, out=out, store=store, **case.arguments())

    graph = make_fx(call, tracing_mode="fake", _allow_non_fake_inputs=True)(*case.tensors()).graph
    assert [node.target for node in graph.nodes if node.op == "call_function"] == [OPERATOR]
    node = next(node for node in graph.nodes if node.op == "call_function")
    assert (node.args[0] is node.args[1]) == in_place
    assert next(iter(graph.nodes)).name in str(node.args[1]), "qkv itself is what is read"


@pytest.mark.parametrize("name", [PARTIAL, PHASE])
@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in_place"])
def test_every_argument_arrives_at_the_launch(name: str, in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch that the operator lays out on the CPU is the one of the checked arguments, address by address."""
    case = Case(name, yarn=YARN)
    store, tensors = store_for(case), case.tensors()
    arguments = case.arguments() | {"store": store, "check_positions": True}
    arguments["out"] = None if in_place else torch.empty(case.tokens, case.width, dtype=case.dtype)
    expected = op.prepare(*tensors, **arguments)
    laid_out = []
    prepare = op.prepare

    def watched(*tensors: torch.Tensor, **options: object) -> op.Launch:
        assert options["check_positions"] is True
        laid_out.append(prepare(*tensors, **options))
        return laid_out[0]

    monkeypatch.setattr(op, "prepare", watched)
    with pytest.raises(ValueError, match="qkv: device is cpu, needs cuda"):
        op.fused_qk_norm_mrope(*tensors, **arguments)
    assert (laid_out[0].variant, laid_out[0].blocks) == (expected.variant, expected.blocks) == (name, expected.blocks)
    assert bytes(laid_out[0].params) == bytes(expected.params)


def test_a_wrong_tensor_is_a_named_error_through_the_operator() -> None:
    case = Case(PARTIAL)
    qkv, q_weight, *rest = case.tensors()
    with pytest.raises(ValueError, match=r"q_weight: dtype is torch\.float32, needs torch\.bfloat16"):
        op.fused_qk_norm_mrope(qkv, q_weight.float(), *rest, store=store_for(case), **case.arguments())


def test_a_store_with_a_part_missing_is_refused() -> None:
    case = Case(PARTIAL)
    a = case.arguments()
    sizes = [a[key] for key in ("num_q_heads", "num_kv_heads", "head_dim", "rotary_dim", "eps", "axis_map")]
    store, tensors = store_for(case), case.tensors()
    with pytest.raises(ValueError, match="k_cache, v_cache, slots: some are missing"):
        OPERATOR(tensors[0], *tensors, store.k_cache, store.v_cache, None, *sizes, True, True, 1.0, 1.0, 1.0, False)
