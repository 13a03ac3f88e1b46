"""What pack_mask refuses, and what it says about it."""

from __future__ import annotations

import re

import pytest
import torch

from sm120.kernels.xqa_mask import op


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def u16(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint16)


EYE = torch.eye(4, dtype=torch.bool).expand(2, 4, 4).contiguous()

REFUSED = {
    "kind": (("diagonal", 4), {"batch": 1}, "kind: got 'diagonal', needs one of ('causal', 'full', 'tree')"),
    "no drafts": (("causal", 0), {"batch": 1}, "q_len: got 0, needs an int in 1..128"),
    "too many drafts": (("causal", 129), {"batch": 1}, "q_len: got 129, needs an int in 1..128"),
    "fractional q_len": (("causal", 4.0), {"batch": 1}, "q_len: got 4.0, needs an int in 1..128"),
    "neither form": (("causal", 4), {}, "batch, cu_seqlens: needs exactly one of them"),
    "both forms": (("causal", 4), {"batch": 1, "cu_seqlens": i32(0, 4)}, "batch, cu_seqlens: needs exactly one"),
    "negative batch": (("causal", 4), {"batch": -1}, "batch: got -1, needs an int in 0.."),
    "wide lengths": (
        ("causal", 4),
        {"cu_seqlens": torch.tensor([0, 4]), "total_q": 4},
        "cu_seqlens: dtype is torch.int64",
    ),
    "matrix of lengths": (("causal", 4), {"cu_seqlens": i32(0, 4)[None], "total_q": 4}, "cu_seqlens: shape is (1, 2)"),
    "strided lengths": (
        ("causal", 4),
        {"cu_seqlens": i32(0, 9, 4, 9)[::2], "total_q": 4},
        "cu_seqlens: shape (2,) has stride (2,), needs to be contiguous",
    ),
    "no lengths": (("causal", 4), {"cu_seqlens": i32(), "total_q": 4}, "cu_seqlens entries - 1: got -1"),
    "late start": (
        ("causal", 4),
        {"cu_seqlens": i32(1, 4), "total_q": 4},
        "cu_seqlens: got [1, 4], needs to start at 0",
    ),
    "falling lengths": (("causal", 4), {"cu_seqlens": i32(0, 4, 3), "total_q": 4}, "cu_seqlens: got [0, 4, 3], needs"),
    "longer than q_len": (
        ("causal", 4),
        {"cu_seqlens": i32(0, 5), "total_q": 5},
        "cu_seqlens: got [0, 5], needs to start at 0 and to rise by 0..4",
    ),
    "capacity": (
        ("causal", 4),
        {"cu_seqlens": i32(0, 4, 8), "out": u16(7, 2)},
        "cu_seqlens: ends at 8, needs at most the 7 rows of out",
    ),
    "ragged without size": (("causal", 4), {"cu_seqlens": i32(0, 4)}, "total_q: got None"),
    "out dtype": (
        ("causal", 4),
        {"batch": 2, "out": u16(2, 4, 2).int()},
        "out: dtype is torch.int32, needs torch.uint16",
    ),
    "out batch": (("causal", 4), {"batch": 3, "out": u16(2, 4, 2)}, "out: shape is (2, 4, 2), needs (3, 4, 2)"),
    "out width of another q_len": (
        ("causal", 7),
        {"batch": 2, "out": u16(2, 8, 2)},
        "out: shape is (2, 8, 2), needs (2, 7, 2)",
    ),
    "out rows padded to 16": (
        ("causal", 33),
        {"batch": 1, "out": u16(1, 33, 3)},
        "out: shape is (1, 33, 3), needs (1, 33, 4)",
    ),
    "out strided": (
        ("causal", 4),
        {"batch": 2, "out": u16(2, 4, 4)[..., :2]},
        "out: shape (2, 4, 2) has stride (16, 4, 1), needs to be contiguous",
    ),
    "out misaligned": (
        ("causal", 4),
        {"batch": 1, "out": u16(9)[1:].view(1, 4, 2)},
        "out: starts 2 bytes off, needs alignment to 4",
    ),
    "out not a tensor": (("causal", 4), {"batch": 1, "out": [0]}, "out: got list, needs a torch.Tensor"),
    "out elsewhere": (
        ("causal", 4),
        {"batch": 1, "out": u16(1, 4, 2).to("meta"), "device": "cpu"},
        "out: device is meta, needs cpu",
    ),
    "nowhere to run": (("causal", 4), {"batch": 1, "device": "meta"}, "out: device is meta, needs cpu or cuda"),
    "tree of nothing": (("tree", 4), {"batch": 2}, "parents, ancestors: kind 'tree' needs exactly one of them"),
    "tree of both": (
        ("tree", 4),
        {"batch": 2, "parents": i32(*[-1] * 8).view(2, 4), "ancestors": EYE},
        "parents, ancestors: kind 'tree' needs",
    ),
    "parents of a chain": (
        ("causal", 4),
        {"batch": 2, "parents": i32(*[-1] * 8).view(2, 4)},
        "parents, ancestors: kind 'causal' needs neither",
    ),
    "parents dtype": (
        ("tree", 4),
        {"batch": 2, "parents": torch.zeros(2, 4)},
        "parents: dtype is torch.float32, needs torch.int32",
    ),
    "parents shape": (("tree", 4), {"batch": 2, "parents": i32(0, 0, 0, 0)}, "parents: shape is (4,), needs (2, 4)"),
    "own parent": (
        ("tree", 4),
        {"batch": 1, "parents": i32(-1, 0, 2, 1)[None]},
        "parents: request 0 token 2 has parent 2, needs an earlier",
    ),
    "later parent": (
        ("tree", 4),
        {"batch": 2, "parents": i32(-1, 0, 0, 0, -1, 2, 0, 0).view(2, 4)},
        "parents: request 1 token 1 has parent 2",
    ),
    "parent of another request": (
        ("tree", 4),
        {"cu_seqlens": i32(0, 2, 4), "total_q": 4, "parents": i32(-1, 0, 1, 0)},
        "parents: request 1 token 0 has parent 1",
    ),
    "ancestors dtype": (
        ("tree", 4),
        {"batch": 2, "ancestors": EYE.int()},
        "ancestors: dtype is torch.int32, needs torch.bool",
    ),
    "ancestors shape": (
        ("tree", 4),
        {"batch": 2, "ancestors": EYE[:, :, :3].contiguous()},
        "ancestors: shape is (2, 4, 3), needs (2, 4, 4)",
    ),
    "ancestors strided": (
        ("tree", 4),
        {"batch": 2, "ancestors": EYE.transpose(1, 2)[:, ::1].transpose(0, 1).contiguous().transpose(0, 1)},
        "ancestors: shape (2, 4, 4) has stride",
    ),
}


@pytest.mark.parametrize(("positional", "named", "says"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_argument_is_named(positional, named, says, host) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(says)):
        op.pack_mask(*positional, **named)


def test_another_capability_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from sm120.kernels._lib import capability

    with pytest.raises(ValueError, match=r"xqa_mask: device capability is \(12, 1\), needs one of \[\(12, 0\)\]: GB10"):
        capability.require((12, 1), "xqa_mask", op.CAPABILITIES)


def test_without_a_host_build_the_way_to_get_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(op.importlib, "import_module", missing)
    op._host.cache_clear()
    with pytest.raises(RuntimeError, match="pip install -e"):
        op._host()


def test_no_allocation_when_an_output_is_given(host, monkeypatch: pytest.MonkeyPatch) -> None:
    out = u16(3, 8, 2)
    monkeypatch.setattr(torch, "empty", None)
    assert op.pack_mask("causal", 8, batch=3, out=out) is out


def test_the_op_traces_as_one_mutation() -> None:
    """torch.compile sees an operator that writes `out` and returns nothing."""
    schema = torch.ops.sm120.xqa_mask_pack_.default._schema
    assert schema.arguments[0].alias_info.is_write and not schema.returns
    out = u16(1, 8, 2).to("meta")
    torch.ops.sm120.xqa_mask_pack_(out, None, None, None, 1, 8, False)
