"""XQA refuses a mask that its kernel would misread, and takes ragged draft lengths through the common decode entry."""

from __future__ import annotations

import pytest
import torch
from flashinfer import decode, xqa
from torch._subclasses.fake_tensor import FakeTensorMode

BATCH, Q_LEN, HEADS, KV_HEADS, DIM, PAGE = 3, 8, 6, 1, 64, 16


@pytest.fixture
def launches(monkeypatch) -> list[dict]:
    """What would have been launched: the compiled module is replaced by a recorder, the device by an SM120 one."""
    calls: list[dict] = []

    class Module:
        def xqa(self, *args):
            calls.append({"q_seq_len": args[-3], "q_cu_seq_lens": args[-2], "mask": args[-1]})

    for module in (xqa_module(), decode):
        monkeypatch.setattr(module, "get_compute_capability", lambda *_: (12, 0))
        monkeypatch.setattr(module, "get_device_sm_count", lambda *_: 188)
        monkeypatch.setattr(module, "device_support_pdl", lambda *_: False)
    monkeypatch.setattr(xqa_module(), "get_xqa_module", lambda *_: Module())
    return calls


def xqa_module():
    import sys

    return sys.modules[xqa.__module__]


def masks(*shape: int, dtype=torch.uint16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def call(mask, q_len=Q_LEN, batch=BATCH, device="cpu", cu_seqlens=None, rows=None):
    """The public entry point with tensors of the right kind."""
    shape = (batch, 1, q_len, HEADS, DIM) if cu_seqlens is None else (rows, HEADS, DIM)
    q = torch.zeros(shape, dtype=torch.bfloat16, device=device)
    cache = torch.zeros(4, PAGE, KV_HEADS, DIM, dtype=torch.bfloat16, device=device)
    xqa(
        q,
        cache,
        cache,
        torch.zeros(batch, 2, dtype=torch.int32, device=device),
        torch.full((batch, 1), 20, dtype=torch.int32, device=device),
        torch.empty_like(q),
        torch.zeros(64, dtype=torch.uint8, device=device),
        torch.zeros(64, dtype=torch.uint8, device=device),
        KV_HEADS,
        PAGE,
        q_seq_len=q_len,
        mask=mask,
        q_cu_seq_lens=cu_seqlens,
    )


@pytest.mark.parametrize("q_len", [2, 8, 32, 33, 65])
def test_the_documented_mask_reaches_the_kernel(launches, q_len) -> None:
    mask = masks(BATCH, q_len, (q_len + 31) // 32 * 2)
    call(mask, q_len)
    assert launches[0]["mask"] is mask


@pytest.mark.parametrize(
    "mask",
    [masks(BATCH + 5, Q_LEN, 2), masks((BATCH + 5) * Q_LEN, 2), masks(1, BATCH * Q_LEN, 2)],
    ids=["more-requests", "more-rows", "one-run-of-rows"],
)
def test_a_persistent_mask_of_the_largest_batch_serves_a_smaller_one(launches, mask) -> None:
    call(mask)
    assert launches[0]["mask"] is mask


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (masks(BATCH, Q_LEN, 2, dtype=torch.int32), "uint16"),
        (masks(BATCH, Q_LEN, 2, dtype=torch.bool), "uint16"),
        (masks(BATCH, Q_LEN, 1), "words"),
        (masks(BATCH, Q_LEN, 4), "words"),
        (masks(BATCH, Q_LEN - 1, 2), "rows"),
        (masks(BATCH, Q_LEN + 1, 2), "rows"),
        (masks(BATCH - 1, Q_LEN, 2), "rows"),
        (masks(Q_LEN, BATCH, 2).transpose(0, 1), "contiguous"),
        (masks(BATCH, Q_LEN, 4)[..., :2], "contiguous"),
        (masks(BATCH * Q_LEN * 2), "words"),
        (masks(BATCH, Q_LEN, 2).to("meta"), "must be on cpu"),
    ],
    ids=[
        "int32",
        "bool",
        "rows-of-16-bits",
        "rows-of-64-bits",
        "narrower-block",
        "wider-block",
        "fewer-requests",
        "transposed",
        "sliced",
        "flat",
        "elsewhere",
    ],
)
def test_a_mask_that_would_be_misread_is_refused(launches, mask, says) -> None:
    with pytest.raises(ValueError, match=says):
        call(mask)
    assert not launches


def test_a_ragged_mask_has_one_row_for_every_query_token(launches) -> None:
    with FakeTensorMode():
        cu_seqlens = torch.zeros(BATCH + 1, dtype=torch.int32, device="cuda")
        call(torch.zeros(11, 2, dtype=torch.uint16, device="cuda"), device="cuda", cu_seqlens=cu_seqlens, rows=11)
        assert launches.pop()["q_seq_len"] == Q_LEN
        with pytest.raises(ValueError, match="11 rows"):
            call(torch.zeros(10, 2, dtype=torch.uint16, device="cuda"), device="cuda", cu_seqlens=cu_seqlens, rows=11)
        assert not launches


def common_decode(**arguments):
    cache = torch.zeros(4, KV_HEADS, PAGE, DIM, dtype=torch.bfloat16)
    return decode.trtllm_batch_decode_with_kv_cache(
        query=torch.zeros(11, HEADS, DIM, dtype=torch.bfloat16),
        kv_cache=(cache, cache),
        workspace_buffer=torch.zeros(9 * 2**20, dtype=torch.uint8),
        block_tables=torch.zeros(BATCH, 2, dtype=torch.int32),
        seq_lens=torch.full((BATCH,), 20, dtype=torch.int32),
        max_seq_len=32,
        backend="xqa",
        **arguments,
    )


def test_the_common_decode_entry_takes_ragged_lengths(monkeypatch, launches) -> None:
    received = {}
    monkeypatch.setattr(decode, "xqa", lambda *args, **kwargs: received.update(kwargs, q=args[0], out=args[5]))
    cu_seqlens = torch.tensor([0, 3, 3, 11], dtype=torch.int32)
    mask = masks(11, 2)
    try:
        out = common_decode(q_len_per_req=None, max_q_len=Q_LEN, cum_seq_lens_q=cu_seqlens, mask=mask)
    except ValueError as error:
        pytest.fail(f"ragged lengths are refused: {error}")
    assert received["q_cu_seq_lens"] is cu_seqlens and received["mask"] is mask
    assert received["q_seq_len"] == Q_LEN
    assert received["q"].shape == received["out"].shape == out.shape == (11, HEADS, DIM)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"max_q_len": 8}, "together"),
        ({"cum_seq_lens_q": torch.zeros(4, dtype=torch.int32)}, "together"),
        ({"max_q_len": 1, "cum_seq_lens_q": torch.zeros(4, dtype=torch.int32)}, "max_q_len >= 2"),
        ({"max_q_len": 8, "q_len_per_req": 4, "cum_seq_lens_q": torch.zeros(4, dtype=torch.int32)}, "either"),
        ({"q_len_per_req": None}, "needs q_len_per_req"),
    ],
    ids=["no-offsets", "no-maximum", "single-token", "both-forms", "neither-form"],
)
def test_half_a_description_of_the_lengths_is_refused(launches, arguments, says) -> None:
    with pytest.raises(ValueError, match=says):
        common_decode(**arguments)
