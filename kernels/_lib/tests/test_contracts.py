"""The boundary checks, the comparison and poisoned outputs: each message names the tensor, what it got and needs."""

from __future__ import annotations

import re

import pytest
import torch

from sm120.kernels._kit import closeness, poison, value_coded
from sm120.kernels._lib import capability
from sm120.kernels._lib.contracts import Shapes, check_int, check_tensor


@pytest.mark.parametrize(
    ("tensor", "contract", "says"),
    [
        ([1], {}, "q: got list, needs a torch.Tensor"),
        (torch.zeros(2), {"dtype": torch.int32}, "q: dtype is torch.float32, needs torch.int32"),
        (torch.zeros(2), {"dtype": [torch.int32, torch.int64]}, "q: dtype is torch.float32, needs torch.int32 or"),
        (torch.zeros(2), {"device": "cuda"}, "q: device is cpu, needs cuda"),
        (torch.zeros(2, 3), {"shape": (2, 4)}, "q: shape is (2, 3), needs (2, 4)"),
        (torch.zeros(2, 3), {"shape": (2,)}, "q: shape is (2, 3), needs (2)"),
        (torch.zeros(2, 3), {"shape": (None, 4)}, "q: shape is (2, 3), needs (*, 4)"),
        (torch.zeros(2, 3), {"shape": ("T", "T")}, "q: shape is (2, 3), needs T = 2 in every place"),
        (torch.zeros(3, 2).t(), {"stride": (3, 1)}, "q: stride is (1, 2), needs (3, 1)"),
        (torch.zeros(3, 2).t(), {"contiguous": True}, "q: shape (2, 3) has stride (1, 2), needs to be contiguous"),
        (torch.zeros(9, dtype=torch.uint8)[1:], {"align": 2}, "q: starts 1 bytes off, needs alignment to 2 bytes"),
    ],
)
def test_a_tensor_that_breaks_its_contract_is_named(tensor, contract, says) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(says)):
        check_tensor("q", tensor, **contract)


def test_letters_are_bound_by_the_first_tensor_and_required_of_the_next() -> None:
    shapes = Shapes()
    check_tensor("q", torch.zeros(2, 5), shape=("B", "T"), shapes=shapes)
    check_tensor("k", torch.zeros(2, 7), shape=("B", None), shapes=shapes)
    with pytest.raises(ValueError, match=re.escape("v: shape is (3, 5), needs (2, 5)")):
        check_tensor("v", torch.zeros(3, 5), shape=("B", "T"), shapes=shapes)


def test_extents_of_one_have_no_stride() -> None:
    check_tensor("q", torch.zeros(4, 1, 3)[:, :1].expand(4, 1, 3), shape=(4, 1, 3), stride=(3, 77, 1))


@pytest.mark.parametrize("value", [0, 129, True, 3.0, None])
def test_an_int_out_of_range_is_named(value) -> None:
    with pytest.raises(ValueError, match=re.escape(f"draft_len: got {value!r}, needs an int in 1..128")):
        check_int("draft_len", value, 1, 128)


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (torch.tensor([1.0, 2.0, 3.1]), "o: relative RMS error .* worst at .2,.: 3.1, reference 3"),
        (torch.tensor([1.0, float("nan"), 3.0]), "o: NaN in one of both at 1 places, first .1,"),
        (torch.tensor([1.0, float("inf"), 3.0]), r"o: \+inf in one"),
        (torch.tensor([1.0, 2.0]), "o: shape"),
    ],
)
def test_a_difference_is_reported_with_the_tensor_and_the_place(result, says) -> None:
    reference = torch.tensor([1.0, 2.0, 3.0])
    closeness.assert_close("o", reference, reference.clone(), 0.0)
    with pytest.raises(AssertionError, match=says):
        closeness.assert_close("o", reference, result, 1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_outputs_start_as_nan(dtype) -> None:
    assert poison.unwritten((3, 5), dtype).float().isnan().all()


def test_integer_outputs_start_as_a_pattern_and_may_be_empty() -> None:
    assert (poison.unwritten((4,), torch.uint16).view(torch.uint8) == 0xA5).all()
    assert poison.unwritten((0, 3), torch.uint16).numel() == 0


@pytest.mark.parametrize(("offset", "side"), [(-1, "before"), (6, "past")])
def test_a_write_beside_a_guarded_output_is_noticed(offset: int, side: str) -> None:
    with poison.guarded((2, 3), torch.int32) as out:
        out.fill_(1)
    with pytest.raises(AssertionError, match=f"bytes written {side}"), poison.guarded((2, 3), torch.int32) as out:
        torch.as_strided(out, (1,), (1,), out.storage_offset() + offset).fill_(7)


@pytest.mark.parametrize("prefix_len", [0, 1, 21])
def test_unit_values_tell_the_attended_set(prefix_len: int) -> None:
    values = value_coded.unit_values(prefix_len, 6)
    for code in range(1, 2**6):
        drafts = [j for j in range(6) if code >> j & 1]
        row = values[[*range(prefix_len), *(prefix_len + j for j in drafts)]].mean(0)
        assert value_coded.attended(prefix_len, row) == drafts
    with pytest.raises(AssertionError, match="not a mean"):
        value_coded.attended(prefix_len, torch.arange(7.0, dtype=torch.float64))


def test_a_mean_of_powers_alone_is_ambiguous() -> None:
    values = value_coded.power_values(1, 6)[:, 0]
    assert values[[0, 2, 6]].mean() == values[[0, 1, 4, 5, 6]].mean() == 23
    with pytest.raises(ValueError, match=r"q_len: got 51, needs 1\.\.50"):
        value_coded.power_values(1, 51)


def test_capabilities_are_exact_pairs_with_reasons() -> None:
    assert capability.arch((12, 0)) == "sm_120a"
    assert [row.pair for row in capability.CAPABILITIES if row.supported] == [(12, 0)]
    capability.require((12, 0), "k", [(12, 0)])
    with pytest.raises(ValueError, match=r"k: device capability is \(12, 1\).*GB10"):
        capability.require((12, 1), "k", [(12, 0)])
    with pytest.raises(ValueError, match=r"capability: got \(13, 0\), needs one of \(12, 0\)"):
        capability.arch((13, 0))
