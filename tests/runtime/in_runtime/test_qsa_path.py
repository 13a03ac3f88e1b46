"""One QSA layer of Qwen4-exp through the patched modules, on the CPU, against the float64 reference.

Real: indexer (projection, norms, mRoPE, key ring, compression, scores, top-k, expansion), sparse-attention backend with
its metadata, and KV pool with its compressed keys. Stood in for: the forward batch, and the capability where the paged
kernels are asked for (they run in Triton's interpreter). Index keys are kept in fp32 instead of bf16, so that the
selection can be compared with float64 and not only its rounding.
"""

from __future__ import annotations

import types

import pytest
import torch
from sglang.srt.layers.attention.qsa import kernel as qsa_kernel
from sglang.srt.layers.attention.qsa import paged_kernels, paged_sparse_gqa, qsa_indexer
from sglang.srt.layers.attention.qsa.qsa_indexer import QSAIndexer
from sglang.srt.layers.attention.qwen_sparse_attn_backend import QSAMTPSharedSparseIndices, QwenSparseAttnBackend
from sglang.srt.layers.rotary_embedding import mrope
from sglang.srt.mem_cache.qsa_kv_pool import QSATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sm120.kernels._kit.closeness import assert_close
from sm120.kernels.qsa import reference as ref

CONFIG = ref.QsaConfig(index_heads=4, index_dim=64, rotary_dim=32, mrope_section=(6, 5, 5))
LAYER, REQUEST, PAGE, HIDDEN = 3, 1, 64, 32
HEADS, KV_HEADS, DIM = 4, 1, 128
CAPACITY = 2304
# Far enough beyond the budget that fewer blocks score zero (all ReLUs closed) than are left out: no ties to break.
PROMPT = 2240
TOLERANCE = 5e-5


class Layer:
    """The modules of one layer around one request, driven forward by forward."""

    def __init__(self, window: int = 1) -> None:
        generator = torch.Generator().manual_seed(11)

        def normal(*shape):
            return torch.randn(*shape, generator=generator)

        width = (CONFIG.index_heads + 1) * CONFIG.index_dim
        self.arguments = dict(
            hidden=normal(CAPACITY, HIDDEN),
            rope_positions=torch.arange(CAPACITY).expand(3, -1) + torch.tensor([[0], [3], [9]]),
            weight=normal(width, HIDDEN),
            q_norm=normal(CONFIG.index_dim) * 0.1,
            k_norm=normal(CONFIG.index_dim) * 0.1,
            q=normal(CAPACITY, HEADS, DIM),
            k=normal(CAPACITY, KV_HEADS, DIM),
            v=normal(CAPACITY, KV_HEADS, DIM),
            config=CONFIG,
            scale=DIM**-0.5,
        )
        self.pool = self._pool(window)
        self.backend = self._backend()
        self.indexer = self._indexer()
        self.attention = types.SimpleNamespace(
            layer_id=LAYER,
            tp_q_head_num=HEADS,
            tp_k_head_num=KV_HEADS,
            tp_v_head_num=KV_HEADS,
            head_dim=DIM,
            qk_head_dim=DIM,
            v_head_dim=DIM,
            scaling=DIM**-0.5,
            k_scale_float=None,
            v_scale_float=None,
        )

    def _pool(self, window: int) -> QSATokenToKVPool:
        pool = QSATokenToKVPool(
            size=CAPACITY + 3 * PAGE,
            dtype=torch.float32,
            page_size=PAGE,
            head_num=KV_HEADS,
            head_dim=DIM,
            full_attention_layer_ids=[LAYER],
            device="cpu",
            mamba_pool=types.SimpleNamespace(mem_usage=0, get_kv_size_bytes=lambda: (0, 0)),
            qsa_index_kv_heads=1,
            qsa_index_head_dim=CONFIG.index_dim,
            qsa_compress_ratio=CONFIG.ratio,
            qsa_token_topk=CONFIG.budget,
            num_request_slots=3,
            qsa_max_window=window,
        )
        pool.index_state_dtype = pool.qsa_compressed_dtype = torch.float32
        pool.qsa_key_state_buffer_pool = [b.float() for b in pool.qsa_key_state_buffer_pool]
        pool.qsa_compressed_k_buffer_pool = [b.float() for b in pool.qsa_compressed_k_buffer_pool]
        for store in (pool.full_kv_pool.k_buffer[0], pool.full_kv_pool.v_buffer[0]):
            store.fill_(float("nan"))
        return pool

    def _backend(self) -> QwenSparseAttnBackend:
        pages = 2 + torch.randperm(CAPACITY // PAGE, generator=torch.Generator().manual_seed(5))
        self.slots = (pages[:, None] * PAGE + torch.arange(PAGE)).flatten()
        req_to_token = torch.zeros(3, CAPACITY, dtype=torch.int32)
        req_to_token[REQUEST] = self.slots
        config = types.SimpleNamespace(
            indexer_n_heads=CONFIG.index_heads,
            indexer_kv_heads=1,
            indexer_head_dim=CONFIG.index_dim,
            indexer_budget=CONFIG.budget,
            indexer_compress_ratio=CONFIG.ratio,
            hidden_size=HIDDEN,
            rms_norm_eps=CONFIG.eps,
        )
        self.model_config = config
        return QwenSparseAttnBackend(
            types.SimpleNamespace(
                token_to_kv_pool=self.pool,
                device="cpu",
                model_config=types.SimpleNamespace(hf_text_config=config, context_len=CAPACITY),
                req_to_token_pool=types.SimpleNamespace(req_to_token=req_to_token),
            )
        )

    def _indexer(self) -> QSAIndexer:
        rotary = mrope.MRotaryEmbedding(
            head_size=CONFIG.index_dim,
            rotary_dim=CONFIG.rotary_dim,
            max_position_embeddings=CAPACITY + 64,
            base=CONFIG.theta,
            is_neox_style=True,
            dtype=torch.float32,
            mrope_section=list(CONFIG.mrope_section),
            mrope_interleaved=True,
        )
        indexer = QSAIndexer(self.model_config, layer_id=LAYER, rotary_emb=rotary)
        indexer.index_qk_proj.weight.data = self.arguments["weight"].clone()
        for norm, weight in ((indexer.q_layernorm, "q_norm"), (indexer.k_layernorm, "k_norm")):
            norm._weight_loader(norm.weight, self.arguments[weight])
            norm._forward_method = norm.forward_native
        return indexer

    def forward(self, mode: ForwardMode, first: int, count: int, attend: bool = True) -> torch.Tensor | None:
        """One forward over the tokens first..first + count - 1; [count, HEADS, DIM].

        attend   False only writes the caches: attending thousands of prompt rows on the CPU takes minutes.
        """
        span = slice(first, first + count)
        end = first + count
        verify, decode = mode.is_target_verify(), mode.is_decode()
        length = first if verify else end
        rope = self.arguments["rope_positions"][:, span]
        batch = types.SimpleNamespace(
            forward_mode=mode,
            batch_size=1,
            positions=torch.arange(first, end),
            mrope_positions=rope,
            seq_lens=torch.tensor([length]),
            seq_lens_cpu=torch.tensor([length]),
            req_pool_indices=torch.tensor([REQUEST]),
            extend_seq_lens=None if verify or decode else torch.tensor([count]),
            extend_seq_lens_cpu=None if verify or decode else [count],
            input_ids=torch.zeros(count, dtype=torch.long),
            out_cache_loc=self.slots[span],
            spec_info=types.SimpleNamespace(topk=1, draft_token_num=count) if verify else None,
            attn_cp_metadata=None,
            _original_forward_mode=None,
        )
        self.backend.init_forward_metadata(batch)
        backend = self.backend
        if backend.should_reuse_mtp_sparse_indices(batch):
            selected = backend.lookup_mtp_sparse_indices(batch, LAYER)
        else:
            metadata = backend.get_indexer_metadata(LAYER, batch)
            selected = self.indexer.forward_cuda(self.arguments["hidden"][span], rope, batch, metadata)
            if backend.should_capture_mtp_sparse_indices(batch):
                backend.capture_mtp_sparse_indices(selected, batch, LAYER, metadata)
        run = backend.forward_decode if decode else backend.forward_extend
        q, k, v = (self.arguments[name][span].clone() for name in ("q", "k", "v"))
        self.selected = selected
        if not attend:
            self.pool.set_kv_buffer(self.attention, batch.out_cache_loc, k, v)
            return None
        return run(q, k, v, self.attention, batch, topk_indices=selected).reshape(count, HEADS, DIM)

    def tied_blocks(self, tokens: int) -> int:
        """How many blocks that the last token leaves out score no less than one that it takes."""
        index_q, raw_k = ref.project_index(self.arguments["hidden"][:tokens], self.arguments["weight"], CONFIG)
        rope = self.arguments["rope_positions"][:, :tokens]
        index_q = ref.rotate(ref.gemma_rms_norm(index_q, self.arguments["q_norm"], CONFIG.eps), rope, CONFIG)
        keys = ref.compress_keys(raw_k, rope, self.arguments["k_norm"], CONFIG)
        ranked = ref.block_scores(index_q[-1], keys).sort(descending=True).values
        return int((ranked[CONFIG.block_topk :] >= ranked[CONFIG.block_topk - 1]).sum())

    def expected(self, tokens: int, first: int) -> torch.Tensor:
        cut = {
            name: value[:tokens] if name in ("hidden", "q", "k", "v") else value
            for name, value in self.arguments.items()
        }
        cut["rope_positions"] = cut["rope_positions"][:, :tokens]
        return ref.qsa_layer(**cut, first=first)


@pytest.fixture(autouse=True)
def native_rope(monkeypatch):
    """The choice between the Triton and the torch form of interleaved mRoPE asks a server configuration."""
    monkeypatch.setattr(mrope, "attention_backends", lambda: ("torch_native", "torch_native"))


def serve_paged(monkeypatch) -> None:
    """From here on as on an SM120 device with --qsa-sparse-kernels paged; wide tiles, for the interpreter's sake."""
    for module in (paged_kernels, qsa_kernel, qsa_indexer):
        monkeypatch.setattr(module, "use_paged_kernels", lambda: True)
    from sglang.srt.layers.attention import qwen_sparse_attn_backend

    monkeypatch.setattr(qwen_sparse_attn_backend, "use_paged_kernels", lambda: True)
    monkeypatch.setattr(paged_sparse_gqa, "WIDE_CONFIG", paged_sparse_gqa.LaunchConfig(512, 4))


@pytest.mark.parametrize("paged", [False, True], ids=["default", "paged"])
def test_short_context_equals_dense_attention(monkeypatch, paged):
    """Prefill, a second chunk behind a prefix, one verify window and decode: nothing is left out below the budget."""
    if paged:
        serve_paged(monkeypatch)
    layer = Layer(window=4)
    out = [layer.forward(ForwardMode.EXTEND, 0, 64), layer.forward(ForwardMode.EXTEND, 64, 5)]
    out += [layer.forward(ForwardMode.TARGET_VERIFY, 69, 4), layer.forward(ForwardMode.DECODE, 73, 1)]
    dense = ref.dense_attention(
        layer.arguments["q"][:74], layer.arguments["k"][:74], layer.arguments["v"][:74], layer.arguments["scale"]
    )
    assert_close("short context", dense, torch.cat(out), TOLERANCE)


@pytest.mark.parametrize("paged", [False, True], ids=["default", "paged"])
def test_long_context_equals_the_reference(monkeypatch, paged):
    """Beyond 2051 tokens: a prefixed chunk, verify windows with rejected drafts, then decode."""
    check_long_context(monkeypatch, paged, window=4)


def test_a_ring_of_one_group_is_noticed(monkeypatch):
    """The released ring holds one group: a verify window then pools keys of the next group into this one's."""
    monkeypatch.setattr(QwenSparseAttnBackend, "_require_chain_speculation", lambda *arguments: None)
    with pytest.raises(AssertionError, match="long context"):
        check_long_context(monkeypatch, paged=False, window=1)


def check_long_context(monkeypatch, paged: bool, window: int) -> None:
    layer = Layer(window)
    layer.forward(ForwardMode.EXTEND, 0, PROMPT, attend=False)
    if paged:
        serve_paged(monkeypatch)
    out = [layer.forward(ForwardMode.EXTEND, PROMPT, 6)]
    length = PROMPT + 6
    honest = {name: layer.arguments[name].clone() for name in ("hidden", "k", "v", "q")}
    for accept in (1, 3, 2, 4):
        for name in ("hidden", "k", "v", "q"):  # rejected drafts are other tokens
            rejected = slice(length + accept, length + 4)
            layer.arguments[name][rejected] = -3.0 * honest[name][rejected] + 1.0
        out.append(layer.forward(ForwardMode.TARGET_VERIFY, length, 4)[:accept])
        for name, value in honest.items():
            layer.arguments[name].copy_(value)
        length += accept
    for _ in range(5):
        out.append(layer.forward(ForwardMode.DECODE, length, 1))
        length += 1
    got, expected = torch.cat(out), layer.expected(length, first=PROMPT)
    assert layer.tied_blocks(length) == 0, "the scores tie at the threshold: selections may differ"
    assert_close("long context", expected, got, TOLERANCE)


@pytest.mark.parametrize("paged", [False, True], ids=["default", "paged"])
@pytest.mark.parametrize("prompt", [61, PROMPT - 2])
def test_drafts_attend_the_shared_selection_and_every_drafted_token(monkeypatch, prompt, paged):
    layer = Layer()
    shared = QSAMTPSharedSparseIndices(
        layer_ids=[LAYER],
        num_requests=3,
        token_topk=CONFIG.budget + CONFIG.ratio - 1,
        tail_width=5,
        device="cpu",
    )
    layer.backend.set_mtp_shared_sparse_indices(shared)
    layer.forward(ForwardMode.EXTEND, 0, prompt, attend=False)
    frozen = layer.selected[-1][layer.selected[-1] >= 0].tolist()
    if paged:
        serve_paged(monkeypatch)
    for step in range(3):
        position = prompt + step
        got = layer.forward(ForwardMode.DECODE, position, 1)
        row = ref.pad_rows([ref.append_drafts(frozen, prompt, position)])
        expected = ref.sparse_attention(
            layer.arguments["q"][position : position + 1],
            layer.arguments["k"],
            layer.arguments["v"],
            row,
            layer.arguments["scale"],
        )
        assert_close(f"draft step {step}", expected, got, TOLERANCE)
