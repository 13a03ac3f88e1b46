"""The float64 reference has the properties that define QSA, and the same tests reject wrong variants of it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sm120.kernels.qsa import reference as ref

EDGE_LENGTHS = [1, 3, 4, 5, 63, 64, 65, 2047, 2048, 2051, 2052, 8192]
FULL = ref.QsaConfig()
SMALL = ref.QsaConfig(index_heads=2, index_dim=16, budget=32, rotary_dim=16, mrope_section=(3, 3, 2))


def inputs(tokens: int, config: ref.QsaConfig, heads: int = 4, kv_heads: int = 2, dim: int = 8, hidden: int = 24):
    generator = torch.Generator().manual_seed(tokens)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return dict(
        hidden=normal(tokens, hidden),
        rope_positions=torch.arange(tokens).expand(3, -1) + torch.tensor([[0], [2], [5]]),
        weight=normal((config.index_heads + 1) * config.index_dim, hidden),
        q_norm=normal(config.index_dim) * 0.1,
        k_norm=normal(config.index_dim) * 0.1,
        q=normal(tokens, heads, dim),
        k=normal(tokens, kv_heads, dim),
        v=normal(tokens, kv_heads, dim),
        config=config,
        scale=dim**-0.5,
    )


@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 31, 32, 35])
def test_short_contexts_equal_dense_attention_exactly(tokens):
    """Up to budget + ratio - 1 tokens nothing is left out, so not even a rounding may differ."""
    args = inputs(tokens, SMALL)
    dense = ref.dense_attention(args["q"], args["k"], args["v"], args["scale"])
    assert torch.equal(ref.qsa_layer(**args), dense)


@pytest.mark.parametrize("length", EDGE_LENGTHS)
def test_selection_of_edge_lengths_at_full_geometry(length):
    position, visible = length - 1, length // FULL.ratio
    scores = torch.rand(visible, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    blocks = ref.select_blocks(scores, visible, FULL.block_topk)
    tokens = ref.expand_blocks(blocks, position, length, FULL)
    assert len(tokens) == len(set(tokens)) == min(length, FULL.budget + length % FULL.ratio)
    assert max(tokens) == position and min(tokens) >= 0
    if length <= FULL.budget + FULL.ratio - 1:
        assert sorted(tokens) == list(range(length))
    else:
        left_out = set(range(visible)) - set(blocks)
        assert min(scores[blocks]) >= max(scores[list(left_out)])


def test_first_context_that_leaves_a_block_out_is_2052():
    scores = torch.zeros(513, dtype=torch.float64)
    scores[7] = -1.0
    tokens = ref.expand_blocks(ref.select_blocks(scores, 513, 512), 2051, 2052, FULL)
    assert sorted(set(range(2052)) - set(tokens)) == [28, 29, 30, 31]


def test_long_contexts_attend_the_blocks_that_score_highest():
    """Value-coded: Q = K = 0, so the output of a row is the mean of the values it attended."""
    args = inputs(64, SMALL)
    args["v"] = torch.eye(64, dtype=torch.float64)[:, None, :].expand(-1, 2, -1).contiguous()
    args["q"] = torch.zeros(64, 4, 64, dtype=torch.float64)
    args["k"] = torch.zeros(64, 2, 64, dtype=torch.float64)
    out = ref.qsa_layer(**args)
    index_q, raw_k = ref.project_index(args["hidden"], args["weight"], SMALL)
    index_q = ref.rotate(ref.gemma_rms_norm(index_q, args["q_norm"], SMALL.eps), args["rope_positions"], SMALL)
    keys = ref.compress_keys(raw_k, args["rope_positions"], args["k_norm"], SMALL)
    for position in (40, 51, 63):
        attended = set(torch.nonzero(out[position, 0]).flatten().tolist())
        visible = (position + 1) // SMALL.ratio
        scores = ref.block_scores(index_q[position], keys[:visible])
        tail = set(range(visible * SMALL.ratio, position + 1))
        blocks = sorted({token // SMALL.ratio for token in attended - tail})
        assert attended == {b * SMALL.ratio + i for b in blocks for i in range(SMALL.ratio)} | tail
        assert sorted(scores[blocks].tolist()) == sorted(torch.topk(scores, SMALL.block_topk).values.tolist())


def test_empty_row_gives_zeros():
    q, kv = torch.ones(2, 2, 4), torch.ones(3, 1, 4)
    slots = torch.tensor([[-1, -1], [-1, 2]])
    out = ref.sparse_attention(q, kv, kv, slots, 1.0)
    assert torch.equal(out[0], torch.zeros(2, 4, dtype=torch.float64))
    assert torch.equal(out[1], torch.ones(2, 4, dtype=torch.float64))


def test_mrope_axes_follow_the_interleaved_sections():
    """Pairs 0..31 read t,h,w,t,h,w,… until a section runs out; the last pairs (30, 31) are temporal again."""
    x = torch.ones(1, FULL.index_dim)
    still = ref.rotate(x, torch.zeros(3, 1), FULL)
    assert torch.equal(still, x.double())
    seen = []
    for axis in range(3):
        positions = torch.zeros(3, 1)
        positions[axis] = 1.0
        moved = ref.rotate(x, positions, FULL)[0, :32] != 1.0
        seen.append(moved)
    axes = [[a for a in range(3) if seen[a][pair]] for pair in range(32)]
    assert axes == [[pair % 3] if pair < 30 or pair % 3 == 0 else [1] if pair == 31 else [0] for pair in range(32)]


def test_rotation_keeps_norm_and_the_rest_of_the_head():
    x = torch.randn(5, 2, FULL.index_dim, generator=torch.Generator().manual_seed(0))
    out = ref.rotate(x, torch.arange(5).expand(3, -1), FULL)
    assert torch.allclose(out.square().sum(-1), x.double().square().sum(-1))
    assert torch.equal(out[..., FULL.rotary_dim :], x[..., FULL.rotary_dim :].double())


def test_compressed_key_turns_at_the_groups_first_position():
    raw = torch.randn(8, SMALL.index_dim, generator=torch.Generator().manual_seed(2))
    positions = torch.arange(8).expand(3, -1)
    keys = ref.compress_keys(raw, positions, torch.zeros(SMALL.index_dim), SMALL)
    mean = ref.gemma_rms_norm(raw[4:8].double().mean(0), torch.zeros(SMALL.index_dim), SMALL.eps)
    assert torch.equal(keys[1], ref.rotate(mean[None], torch.full((3, 1), 4), SMALL)[0])
    assert not torch.allclose(keys[1], ref.rotate(mean[None], torch.full((3, 1), 7), SMALL)[0])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 40))
@settings(max_examples=200, deadline=None)
def test_selected_scores_are_the_largest_multiset(values, topk):
    scores = torch.tensor(values, dtype=torch.float64)
    blocks = ref.select_blocks(scores, len(values), topk)
    assert len(set(blocks)) == len(blocks) == min(topk, len(values))
    assert sorted(scores[blocks].tolist()) == sorted(values)[-len(blocks) :]
    threshold = min(scores[blocks]).item()
    tied = [i for i, value in enumerate(values) if value == threshold]
    kept = [block for block in blocks if scores[block] == threshold]
    if len(values) > topk:
        assert sorted(kept) == tied[: len(kept)]


@given(st.integers(0, 9000), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_shared_index_row_has_no_holes_in_any_phase(anchor, step):
    visible = (anchor + 1) // FULL.ratio
    blocks = list(range(visible))[-FULL.block_topk :]
    frozen = ref.expand_blocks(blocks, anchor, anchor + 1, FULL)
    row = ref.pad_rows([ref.append_drafts(frozen, anchor + 1, anchor + step)], FULL.budget + FULL.ratio - 1 + 5)[0]
    valid = row[row >= 0]
    assert (
        set(row[: valid.numel()].tolist())
        == set(valid.tolist())
        == set(frozen) | set(range(anchor + 1, anchor + step + 1))
    )


def test_order_and_padding_of_slots_do_not_matter():
    generator = torch.Generator().manual_seed(5)
    q, kv = torch.randn(1, 4, 8, generator=generator), torch.randn(30, 2, 8, generator=generator)
    slots = torch.tensor([[3, 17, 9, 4, 29]])
    out = ref.sparse_attention(q, kv, kv, slots, 0.5)
    shuffled = torch.tensor([[-1, 29, 9, -1, 3, 4, -1, 17]])
    assert torch.allclose(out, ref.sparse_attention(q, kv, kv, shuffled, 0.5), rtol=1e-14)


def test_fp8_pool_with_scales_equals_the_dequantised_pool():
    generator = torch.Generator().manual_seed(6)
    k, v = torch.randn(12, 2, 8, generator=generator), torch.randn(12, 2, 8, generator=generator) * 300
    fk, fv = ref.quantize_kv(k, 0.25), ref.quantize_kv(v, 0.5)
    assert fv.float().abs().max() == 448.0
    q, slots = torch.randn(2, 4, 8, generator=generator), torch.tensor([[0, 5, 11], [2, 3, -1]])
    scaled = ref.sparse_attention(q, fk.float(), fv.float(), slots, 0.3, 0.25, 0.5)
    plain = ref.sparse_attention(q, fk.double() * 0.25, fv.double() * 0.5, slots, 0.3)
    assert torch.allclose(scaled, plain, rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(ratio=1), "ratio: got 1"),
        (dict(budget=2050), "budget: got 2050"),
        (dict(mrope_section=(11, 11, 11)), "mrope_section"),
    ],
)
def test_bad_geometry_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ref.QsaConfig(**arguments)


class TestMutations:
    """Each deliberately wrong variant has to fail a test above."""

    def test_dropping_the_causal_tail(self, monkeypatch):
        monkeypatch.setattr(ref, "expand_blocks", lambda b, p, n, c: [x * c.ratio + i for x in b for i in range(4)])
        with pytest.raises(AssertionError):
            test_short_contexts_equal_dense_attention_exactly(5)

    def test_rotating_at_the_groups_last_position(self, monkeypatch):
        honest = ref.compress_keys
        monkeypatch.setattr(ref, "compress_keys", lambda k, p, w, c: honest(k, p + c.ratio - 1, w, c))
        with pytest.raises(AssertionError):
            test_compressed_key_turns_at_the_groups_first_position()

    def test_tail_at_fixed_columns(self, monkeypatch):
        monkeypatch.setattr(ref, "append_drafts", lambda f, n, p: f + [-1] * (2051 - len(f)) + list(range(n, p + 1)))
        with pytest.raises(AssertionError):
            test_shared_index_row_has_no_holes_in_any_phase()

    def test_selecting_the_lowest_scores(self, monkeypatch):
        honest = ref.select_blocks
        monkeypatch.setattr(ref, "select_blocks", lambda s, n, k: honest(-s, n, k))
        with pytest.raises(AssertionError):
            test_selected_scores_are_the_largest_multiset()
