"""The shipped Triton source, in the strict interpreter, against the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from sm120.kernels._kit import mutated_module
from sm120.kernels._kit.closeness import assert_close
from sm120.kernels.qsa import op, triton_sparse_gqa
from sm120.kernels.qsa import reference as ref

EDGE_LENGTHS = [1, 3, 4, 5, 63, 64, 65, 2047, 2048, 2051, 2052, 8192]
CONFIG = ref.QsaConfig()
# The interpreter's cost is per operation: wide tiles for the long rows; the shipped tiles have tests of their own.
WIDE = triton_sparse_gqa.LaunchConfig(block_n=512, num_warps=4)
FP8 = torch.float8_e4m3fn
# Output rounding dominates: half a unit in the last place of the output, relative to its RMS.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 4e-4, torch.bfloat16: 3e-3}
pytestmark = pytest.mark.interpreter


@dataclass
class Case:
    """Inputs of `op.attention` and the float64 result; unselected slots and slot 0 are NaN."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    indices: torch.Tensor
    lengths: torch.Tensor
    table: torch.Tensor
    table_rows: torch.Tensor
    scale: float
    k_scale: float = 1.0
    v_scale: float = 1.0

    def expected(self) -> torch.Tensor:
        valid = (self.indices >= 0) & (self.indices < self.lengths[:, None])
        positions = self.indices.clamp_min(0).long().clamp_max(self.table.shape[1] - 1)
        slots = self.table[self.table_rows.long()[:, None], positions]
        slots = torch.where(valid, slots, -1)
        k, v = (x.double() if x.dtype != FP8 else x.float().double() for x in (self.k, self.v))
        return ref.sparse_attention(self.q, k, v, slots, self.scale, self.k_scale, self.v_scale)

    def run(self, splits: int = 1, config: triton_sparse_gqa.LaunchConfig | None = None) -> torch.Tensor:
        selected = triton_sparse_gqa.select_slots(self.indices, self.lengths, self.table, self.table_rows)
        arguments = (self.q, self.k, self.v, selected, self.scale, self.k_scale, self.v_scale, splits)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("FP8_CONFIG", "WIDE_CONFIG") if config else ():
                patch.setattr(triton_sparse_gqa, name, config)
            return triton_sparse_gqa.sparse_gqa(*arguments)

    def check(self, **run) -> None:
        assert_close("out", self.expected(), self.run(**run), TOLERANCE[self.q.dtype])


def make_case(
    rows: list[list[int]],
    lengths: list[int],
    *,
    group: int = 12,
    kv_heads: int = 1,
    dim: int = 128,
    page: int = 64,
    dtype: torch.dtype = torch.float32,
    pool: torch.dtype | None = None,
    width: int | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    seed: int = 0,
) -> Case:
    """Rows of token positions, each of a request of its own whose pages lie scattered and permuted in the pool."""
    generator = torch.Generator().manual_seed(seed)
    pages_per_request = max(1, -(-max(lengths) // page))
    order = torch.randperm(pages_per_request * len(rows), generator=generator) + 1
    first = order.reshape(len(rows), pages_per_request) * page
    table = (first[:, :, None] + torch.arange(page)).reshape(len(rows), -1).to(torch.int32)
    slots = int(table.max()) + 1
    shape = (slots, kv_heads, dim)
    k = torch.randn(shape, generator=generator)
    v = torch.randn(shape, generator=generator)
    used = torch.zeros(slots, dtype=torch.bool)
    for row, tokens in enumerate(rows):
        inside = [token for token in tokens if 0 <= token < lengths[row]]
        used[table[row, inside].long()] = True
    pool = pool or dtype
    if pool == FP8:
        k, v = ref.quantize_kv(k, k_scale), ref.quantize_kv(v, v_scale)
        for x in (k, v):
            x.view(torch.uint8)[~used] = 0x7F
    else:
        k, v = k.to(pool), v.to(pool)
        k[~used], v[~used] = float("nan"), float("nan")
    return Case(
        q=torch.randn(len(rows), group * kv_heads, dim, generator=generator).to(dtype),
        k=k,
        v=v,
        indices=ref.pad_rows(rows, width or max(1, *map(len, rows))),
        lengths=torch.tensor(lengths, dtype=torch.int32),
        table=table,
        table_rows=torch.arange(len(rows), dtype=torch.int32),
        scale=dim**-0.5,
        k_scale=k_scale,
        v_scale=v_scale,
    )


def selection(length: int, seed: int = 0) -> list[int]:
    """What the indexer selects for the last token of a context, from random scores."""
    visible = length // CONFIG.ratio
    scores = torch.rand(visible, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    blocks = ref.select_blocks(scores, visible, CONFIG.block_topk)
    return ref.expand_blocks(blocks, length - 1, length, CONFIG)


@pytest.mark.parametrize("pool", [torch.bfloat16, FP8], ids=["bf16", "fp8"])
@pytest.mark.parametrize("length", EDGE_LENGTHS)
def test_edge_lengths(length, pool):
    scales = dict(k_scale=0.25, v_scale=0.5) if pool == FP8 else {}
    make_case([selection(length)], [length], dtype=torch.bfloat16, pool=pool, width=2055, **scales).check(config=WIDE)


@pytest.mark.parametrize("pool", [torch.bfloat16, FP8], ids=["bf16", "fp8"])
def test_shipped_tiles_at_flash_next_geometry(pool):
    rows = [list(range(n)) for n in (1, 31, 64, 65)]
    make_case(rows, [1, 31, 64, 65], kv_heads=2, dim=256, dtype=torch.bfloat16, pool=pool).check()


@pytest.mark.parametrize("splits", [2, 3, 8])
@pytest.mark.parametrize("pool", [torch.bfloat16, FP8], ids=["bf16", "fp8"])
def test_split_rows(pool, splits):
    """Rows with fewer tiles than splits leave some splits empty; the empty row leaves all of them empty."""
    rows = [list(range(200)), [5], []]
    case = make_case(rows, [200, 9, 3], dtype=torch.bfloat16, pool=pool)
    case.check(splits=splits)
    assert torch.equal(case.run(splits=splits)[2], torch.zeros_like(case.q[2]))


def test_empty_rows_give_zeros():
    case = make_case([[], [2, 0], [7]], [3, 3, 3], width=4)
    out = case.run()
    assert torch.equal(out[0], torch.zeros_like(out[0])) and torch.equal(out[2], torch.zeros_like(out[2]))
    assert_close("out", case.expected(), out, TOLERANCE[torch.float32])
    assert op.attention(
        case.q[:0], case.k, case.v, case.indices[:0], case.lengths[:0], case.table, case.table_rows[:0], 1.0
    ).shape == (0, 12, 128)


@pytest.mark.parametrize("splits", [0, 3])
def test_rows_of_no_indices_give_zeros(splits):
    case = make_case([[], []], [3, 0], kv_heads=2, dtype=torch.bfloat16)
    case.q[:] = float("nan")
    case.indices = case.indices[:, :0]
    out = op.attention(
        case.q, case.k, case.v, case.indices, case.lengths, case.table, case.table_rows, 1.0, splits=splits
    )
    assert out.dtype == torch.bfloat16 and torch.equal(out, torch.zeros(2, 24, 128, dtype=torch.bfloat16))


def test_the_capability_list_is_read_once(monkeypatch):
    op._capabilities.cache_clear()
    reads = []
    monkeypatch.setattr(op.tomllib, "loads", lambda text: reads.append(text) or {"capabilities": [[12, 0]]})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, 0))
    for _ in range(3):
        op._require_implementation(torch.device("cuda"))
    op._capabilities.cache_clear()
    assert len(reads) == 1


@pytest.mark.parametrize("group", [1, 2, 5, 8, 12, 16])
def test_group_sizes(group):
    make_case([list(range(70)), [3, 1]], [70, 4], group=group, kv_heads=2, dtype=torch.float16).check()


@pytest.mark.parametrize("page", [16, 32, 64, 128])
def test_page_sizes(page):
    make_case([list(range(150)), list(range(0, 90, 3))], [150, 90], page=page, pool=FP8, dtype=torch.float16).check()


def test_value_coded_rows_name_the_tokens_they_attended():
    """Q = K = 0 and one-hot V: the output is 1/n at exactly the attended tokens."""
    rows = [[9, 3, 77, 40], list(range(100)), [0]]
    case = make_case(rows, [80, 100, 1], dim=128)
    case.q.zero_()
    case.k[~case.k.isnan()] = 0.0
    for row, tokens in enumerate(rows):
        for token in tokens:
            case.v[case.table[row, token].long()] = torch.nn.functional.one_hot(torch.tensor(token), 128).float()
    out = case.run()
    for row, tokens in enumerate(rows):
        attended = torch.nonzero(out[row, 3] > 1e-6).flatten().tolist()
        assert attended == sorted(tokens)
        assert torch.allclose(out[row, 3, tokens], torch.tensor(1.0 / len(tokens)))


def test_holes_order_and_tokens_past_the_length():
    """-1 anywhere, any order, and positions of rejected drafts (not below the length) change nothing."""
    tokens = [5, 60, 2, 33, 64, 17]
    case = make_case([tokens], [65])
    plain = case.run()
    for row in (
        [-1, 17, -1, 2, 60, 65, 5, -1, 100, 33, 64],
        [64, 33, -1, 17, 5, 2, 60],
        [-7, 5, 60, 2, 33, 64, 17, 65, 66],
    ):
        shuffled = replace(case, indices=ref.pad_rows([row], 2055))
        assert_close("permuted", plain.double(), shuffled.run(), 1e-6)


def test_fp8_pool_equals_its_dequantised_pool():
    case = make_case([list(range(100))], [100], dtype=torch.float16, pool=FP8, k_scale=0.25, v_scale=0.5)
    wide = replace(case, k=(case.k.float() * 0.25).half(), v=(case.v.float() * 0.5).half(), k_scale=1.0, v_scale=1.0)
    assert_close("fp8 against dequantised", wide.run().double(), case.run(), 4e-4)


def test_every_e4m3_code_reaches_the_output():
    """One token a row, weight one: the output is that token's value times v_scale, for all 254 finite codes."""
    case = make_case([[0], [1]], [1, 2], dtype=torch.float32, pool=FP8, group=1, v_scale=0.5)
    codes = torch.tensor([c for c in range(256) if c & 0x7F != 0x7F], dtype=torch.uint8)
    for row, part in enumerate((codes[:127], codes[127:])):
        slot = case.table[row, row].long()
        case.v.view(torch.uint8)[slot, 0, :127] = part
        case.v.view(torch.uint8)[slot, 0, 127] = 0
    out = case.run()
    for row, part in enumerate((codes[:127], codes[127:])):
        assert torch.equal(out[row, 0, :127], part.view(FP8).float() * 0.5)


def test_slots_beyond_32_bit_offsets():
    """Slot times stride passes 2^31 elements: a broadcast pool view makes such a stride without the memory."""
    case = make_case([[0, 1, 2]], [3], dim=128)
    stride = 2**30
    storage = torch.zeros(1, dtype=torch.uint8).untyped_storage()
    try:
        storage.resize_((3 * stride + 128) * 4)
    except RuntimeError:
        pytest.fail("13 GB of untouched address space could not be reserved")
    pool = torch.empty(0, dtype=torch.float32).set_(storage, 0, (4, 1, 128), (stride, 128, 1))
    values = torch.randn(3, 128, generator=torch.Generator().manual_seed(1))
    for slot in range(1, 4):
        pool[slot, 0] = values[slot - 1]
    table = torch.tensor([[1, 2, 3]], dtype=torch.int32)
    replace(case, k=pool, v=pool, table=table).check()


def test_packed_keys_without_a_table():
    """Prefill without a prefix: positions count from the row's sequence start in the fresh K/V."""
    generator = torch.Generator().manual_seed(2)
    k, v = torch.randn(9, 1, 128, generator=generator), torch.randn(9, 1, 128, generator=generator)
    q = torch.randn(9, 12, 128, generator=generator)
    starts, lengths = torch.tensor([0] * 4 + [4] * 5), torch.tensor([4] * 4 + [5] * 5)
    rows = [list(range(i + 1)) for i in range(4)] + [list(range(i + 1)) for i in range(5)]
    selected = triton_sparse_gqa.select_slots(ref.pad_rows(rows), lengths, None, starts)
    out = triton_sparse_gqa.sparse_gqa(q, k, v, selected, 0.1)
    for part in (slice(0, 4), slice(4, 9)):
        assert_close("fresh prefill", ref.dense_attention(q[part], k[part], v[part], 0.1), out[part], 2e-6)


def test_shared_request_rows_of_a_verify_window():
    """Four draft rows of one request read one table line, each up to its own length."""
    case = make_case([list(range(40))], [40])
    rows = [list(range(n)) for n in (37, 38, 39, 40)]
    window = replace(
        case,
        q=torch.randn(4, 12, 128, generator=torch.Generator().manual_seed(4)),
        indices=ref.pad_rows(rows),
        lengths=torch.tensor([37, 38, 39, 40]),
        table_rows=torch.zeros(4, dtype=torch.int64),
    )
    window.check()
    expected = window.expected()
    got = op.attention(
        window.q, window.k, window.v, window.indices, window.lengths, window.table, window.table_rows, window.scale
    )
    assert_close("through the op", expected, got, TOLERANCE[torch.float32])


def test_split_choice_fills_the_device_and_keeps_rows_whole():
    assert triton_sparse_gqa.choose_splits(4, 2, 2055, 188) == 16
    assert triton_sparse_gqa.choose_splits(64, 2, 2055, 188) == 5
    assert triton_sparse_gqa.choose_splits(4096, 2, 2055, 188) == 1
    assert triton_sparse_gqa.choose_splits(1, 2, 100, 188) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(q=torch.zeros(1, 12, 96)), "head dim is 96"),
        (dict(q=torch.zeros(1, 12, 128, dtype=torch.float64)), "q: dtype"),
        (dict(q=torch.zeros(1, 17, 128)), "17 heads over 1 KV heads"),
        (dict(k_pool=torch.zeros(200, 1, 128, dtype=torch.bfloat16)), "k_pool: dtype"),
        (dict(v_pool=torch.zeros(200, 1, 128, dtype=FP8)), "v_pool: dtype"),
        (dict(indices=torch.zeros(1, 3, dtype=torch.int64)), "indices: dtype"),
        (dict(indices=torch.zeros(2, 3, dtype=torch.int32)), "indices: shape"),
        (
            dict(indices=torch.full((1, 2**20 + 1), -1, dtype=torch.int32)),
            r"indices width: got 1048577, needs an int in 0\.\.1048576",
        ),
        (dict(lengths=torch.tensor([0.5])), "lengths: dtype"),
        (dict(table=torch.full((1, 9), 10_000, dtype=torch.int32)), "table: selects slots 10000"),
        (dict(table_rows=torch.tensor([3])), "table_rows"),
        (dict(table=torch.zeros(1, 1, dtype=torch.int32)), "indices: largest is 2"),
        (dict(k_scale=0.0), "k_scale: got 0.0"),
        (dict(v_scale=0.5), "v_scale: got 0.5, needs 1.0"),
        (dict(splits=-1), "splits"),
    ],
)
def test_bad_inputs_are_named(change, message):
    case = make_case([[0, 1, 2]], [3])
    arguments = dict(
        q=case.q,
        k_pool=case.k,
        v_pool=case.v,
        indices=case.indices,
        lengths=case.lengths,
        table=case.table,
        table_rows=case.table_rows,
        scale=1.0,
    )
    with pytest.raises(ValueError, match=message):
        op.attention(**arguments | change)


class TestMutations:
    """A deliberately wrong kernel has to fail the test that is meant to catch it."""

    def mutate(self, monkeypatch, folder: Path, old: str, new: str) -> None:
        # A wrong kernel may read slots that were never written: they name slot 0, whose rows are NaN.
        zeros = ("slots = torch.empty(", "slots = torch.zeros(")
        wrong = mutated_module.load(Path(triton_sparse_gqa.__file__), folder, zeros, (old, new))
        for name in ("select_slots", "sparse_gqa"):
            monkeypatch.setattr(triton_sparse_gqa, name, getattr(wrong, name))

    @pytest.mark.parametrize(
        ("old", "new", "test"),
        [
            ("position < tl.load(lengths + row)", "position < 100000", test_holes_order_and_tokens_past_the_length),
            ("rank - 1, slot", "cols, slot", test_holes_order_and_tokens_past_the_length),
            ("tl.minimum(col, last - 1)", "tl.minimum(col, first)", test_shared_request_rows_of_a_verify_window),
            ("scores = tl.where((col < last)[None, :], scores * scale_log2, -float(\"inf\"))",
             "scores = scores * scale_log2", test_value_coded_rows_name_the_tokens_they_attended),
            ("total * shrink + ", "total + ", lambda: test_group_sizes(12)),
            ("((pairs >> 8) & 0xFF)", "(pairs & 0xFF)", test_fp8_pool_equals_its_dequantised_pool),
            ("tl.where(total > 0, v_scale / total, 0.0)", "(v_scale / total)", test_empty_rows_give_zeros),
            ("weight = tl.exp2(tl.load(lse + cell) - peak)", "weight = 1.0",
             lambda: test_split_rows(torch.bfloat16, 3)),
        ],
    )  # fmt: skip
    def test_is_rejected(self, monkeypatch, tmp_path, old, new, test):
        self.mutate(monkeypatch, tmp_path, old, new)
        with pytest.raises(AssertionError):
            test()
