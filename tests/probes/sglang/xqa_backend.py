"""A real TRTLLMHAAttnBackend on the CPU whose XQA kernel entry is replaced by what the kernel does with its mask.

The kernel takes the mask by pointer and walks it as flat rows of ceil(q_len / 32) 32-bit words: request b starts at row
b * q_len, or at its cumulative length. `XqaKernel` does the same over the memory behind the tensor, so it sees what a
device would see, past the end of a slice included. Q is zero and each draft token's value is a unit vector, so an
output row is the mean of what the token attended, and `attended` reads the set back.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import types
from types import SimpleNamespace

import torch
from sglang.srt.layers.attention import trtllm_mha_backend as module
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.model_executor.forward_batch_info import ForwardMode

PREFIX = 5
PAGE = 16
HEAD_DIM = 48
GARBAGE = HEAD_DIM - 2  # the column of slots that hold nobody's tokens
MAX_CONTEXT = 256


class PastTheEnd(AssertionError):
    """The kernel would have read mask words that lie outside the mask's memory."""


class XqaKernel:
    """Stands where `flashinfer` stands in the backend's module; records calls and attends by flat mask row."""

    def __init__(self) -> None:
        self.calls: list[dict] = []
        self.decode = types.SimpleNamespace(
            trtllm_batch_decode_with_kv_cache=self.fixed,
            xqa_batch_decode_with_kv_cache=self.ragged,
        )

    def fixed(self, query, kv_cache, block_tables, seq_lens, q_len_per_req=1, mask=None, **arguments):
        if arguments.get("cum_seq_lens_q") is not None or arguments.get("max_q_len") is not None:
            raise ValueError("xqa backend does not support cum_seq_lens_q")  # as FlashInfer 0.7.2 does
        assert q_len_per_req == 1 or mask is not None, "Mask is required for speculative decoding"
        assert query.shape[0] == seq_lens.shape[0] * q_len_per_req
        offsets = [b * q_len_per_req for b in range(seq_lens.shape[0] + 1)]
        return self.attend(query, kv_cache, block_tables, seq_lens, q_len_per_req, offsets, mask, arguments)

    def ragged(self, query, kv_cache, block_tables, seq_lens, q_len_per_req, mask, q_cu_seq_lens=None, **arguments):
        assert arguments.get("kv_layout") == "HND", "the entry's default is NHD, the backend's caches are HND"
        assert query.dtype in (torch.float16, torch.bfloat16), "XQA takes fp16 or bf16 queries"
        assert q_len_per_req > 1 and mask is not None and q_cu_seq_lens is not None
        assert q_cu_seq_lens.dtype == torch.int32 and q_cu_seq_lens.shape[0] == seq_lens.shape[0] + 1
        offsets = q_cu_seq_lens.tolist()
        return self.attend(query, kv_cache, block_tables, seq_lens, q_len_per_req, offsets, mask, arguments)

    def attend(self, query, kv_cache, block_tables, seq_lens, q_len, offsets, mask, arguments):
        kv_tokens = int(seq_lens.sum())
        self.calls.append({"q_len": q_len, "mask": mask, "offsets": offsets, "kv_tokens": kv_tokens, **arguments})
        words = None
        if q_len > 1:
            assert mask.dtype == torch.uint16 and mask.is_contiguous()
            memory = torch.as_strided(mask, (mask.untyped_storage().nbytes() // 2,), (1,), 0)
            words = [int(word) for word in memory.to(torch.int64)][mask.storage_offset() :]
        width = (q_len + 31) // 32 * 2
        v = kv_cache[1]  # [pages, heads, page, dim]
        out = arguments.get("out")
        if out is None:
            out = torch.full(query.shape, float("nan"), dtype=arguments.get("out_dtype") or query.dtype)
        for b in range(seq_lens.shape[0]):
            kv_len, length = int(seq_lens[b]), offsets[b + 1] - offsets[b]
            # rows past q_len have no thread block, so the kernel leaves them unwritten
            for r in range(min(length, q_len)):
                seen = []
                for position in range(kv_len):
                    draft = position - (kv_len - length)
                    if draft >= 0 and q_len > 1:
                        word = (offsets[b] + r) * width + draft // 16
                        if word >= len(words):
                            raise PastTheEnd(f"request {b} row {r} reads mask word {word} of {len(words)}")
                        if not words[word] >> (draft % 16) & 1:
                            continue
                    page = int(block_tables[b, position // PAGE])
                    seen.append(v[page, 0, position % PAGE])
                out[offsets[b] + r] = torch.stack(seen).float().mean(0).to(out.dtype)
        return out


def attended(row: torch.Tensor) -> list[int]:
    """Which drafts an output row [heads, dim] saw, GARBAGE among them; the last column counts the prefix."""
    return [j for j in range(HEAD_DIM - 1) if float(row[0, j]) > 0]


class MaskKernel:
    """Stands where the JIT module of the mask kernel stands: row by row, what it is to write."""

    def xqa_mask_fill(self, mask, cu_seqlens, q_len) -> None:
        assert mask.dtype == torch.uint16 and mask.is_contiguous() and cu_seqlens.dtype == torch.int32
        assert mask.dim() == 2 and mask.shape[1] == (q_len + 31) // 32 * 2
        mask.zero_()
        offsets = cu_seqlens.tolist()
        for first, end in itertools.pairwise(offsets):
            for row in range(first, min(end, mask.shape[0], first + q_len)):
                for draft in range(row - first + 1):
                    mask[row, draft // 16] = int(mask[row, draft // 16]) | 1 << draft % 16


class NoTranslation:
    """A pool whose logical and physical slots are the same."""

    is_translating = False

    def read_table(self, *_args, **_kwargs):
        return SimpleNamespace(is_translated=False)

    def space(self, *_args):
        return None


class Bench:
    """The backend, a pool whose request b owns slots b * MAX_CONTEXT.., and the calls a model runner would make."""

    def __init__(
        self,
        monkeypatch,
        *,
        draft_tokens,
        max_running=3,
        splits=1,
        encoder_windows=(),
        exact_sm120=True,
        eager_multiple=1,
    ) -> None:
        """The backend of a model runner.

        encoder_windows   sliding window of each bidirectional layer the model has, -1 for none
        eager_multiple    what eager batches are padded to a multiple of (data-parallel attention does that)
        """
        self.kernel = XqaKernel()
        requests = 32
        slots = requests * MAX_CONTEXT
        self.k_pool = torch.zeros(slots, 1, HEAD_DIM, dtype=torch.bfloat16)
        self.v_pool = torch.zeros(slots, 1, HEAD_DIM, dtype=torch.bfloat16)
        req_to_token = torch.arange(slots, dtype=torch.int32).view(requests, MAX_CONTEXT)
        plain = SimpleNamespace(kind=module.KVCacheAttentionAccessKind.PLAIN, scale_recipe=None)
        quant = SimpleNamespace(resolve_attention_access=lambda *_: plain)

        def parent_init(backend, runner, *_args, **_kwargs):
            backend.req_to_token_pool = runner.req_to_token_pool
            backend.token_to_kv_pool = runner.token_to_kv_pool
            backend.kv_index_translator = NoTranslation()
            backend.use_sliding_window_kv_pool = False
            backend.kv_cache_quant_method = quant

        platform = SimpleNamespace(is_sm90=False, is_sm120=True, is_sm100=False)
        spec = SimpleNamespace(speculative_eagle_topk=1, speculative_num_draft_tokens=draft_tokens)
        monkeypatch.setenv("SGLANG_TRTLLM_MHA_DECODE_SEQ_LEN_SPLITS", str(splits))
        monkeypatch.setattr(module.FlashInferAttnBackend, "__init__", parent_init)
        monkeypatch.setattr(module.TRTLLMHAAttnBackend, "_resolve_swa_kv_pool", lambda *_: None)
        monkeypatch.setattr(module, "get_platform", lambda: platform)
        monkeypatch.setattr(module, "get_spec", lambda: spec)
        monkeypatch.setattr(module, "get_parallel", lambda: SimpleNamespace(attn_tp_size=1))
        monkeypatch.setattr(module, "get_buffer", lambda _name, make: torch.zeros(1, dtype=torch.uint8))
        monkeypatch.setattr(module, "make_persistent_multi_ctas_kv_counter_buffer", lambda *_, **__: None)
        monkeypatch.setattr(module, "flashinfer", self.kernel, raising=False)
        if importlib.util.find_spec("sglang.kernels.ops.attention.xqa_mask") is not None:
            mask_op = importlib.import_module("sglang.kernels.ops.attention.xqa_mask")
            monkeypatch.setattr(mask_op, "_jit_module", MaskKernel)
        if hasattr(module, "get_eager_max_batch_size"):
            monkeypatch.setattr(
                module, "get_eager_max_batch_size", lambda batch: -(-batch // eager_multiple) * eager_multiple
            )
        if hasattr(module, "is_sm120"):
            monkeypatch.setattr(module, "is_sm120", lambda: exact_sm120)
        runner = SimpleNamespace(
            model_config=SimpleNamespace(
                context_len=MAX_CONTEXT, hidden_size=64, num_attention_heads=1, head_dim=HEAD_DIM, v_head_dim=HEAD_DIM
            ),
            prefill_attention_backend_str="trtllm_mha",
            decode_attention_backend_str="trtllm_mha",
            kv_cache_dtype=torch.bfloat16,
            dtype=torch.bfloat16,
            page_size=PAGE,
            device="cpu",
            max_running_requests=max_running,
            req_to_token_pool=SimpleNamespace(req_to_token=req_to_token, size=max_running),
            token_to_kv_pool=SimpleNamespace(get_kv_buffer=lambda _layer: (self.k_pool, self.v_pool)),
            model=SimpleNamespace(
                modules=lambda: [
                    SimpleNamespace(attn_type=AttentionType.ENCODER_ONLY, sliding_window_size=window)
                    for window in encoder_windows
                ]
            ),
        )
        self.backend = module.TRTLLMHAAttnBackend(runner)
        self.request_lengths: list[int] = []

    def batch(self, mode: ForwardMode, lengths: list[int], layout=None, num_tokens: int | None = None):
        """A forward batch of requests with PREFIX tokens and these many draft tokens, values in the pool."""
        self.v_pool.zero_()
        self.v_pool[:, 0, GARBAGE] = 1
        for b, length in enumerate(lengths):
            base = b * MAX_CONTEXT
            self.v_pool[base : base + PREFIX + length].zero_()
            self.v_pool[base : base + PREFIX, 0, HEAD_DIM - 1] = 1
            for j in range(length):
                self.v_pool[base + PREFIX + j, 0, j] = 1
        total = num_tokens or sum(lengths)
        extend = mode.is_draft_extend_v2()
        seq_lens = torch.tensor([PREFIX + (length if extend else 0) for length in lengths], dtype=torch.int64)
        return SimpleNamespace(
            forward_mode=mode,
            batch_size=len(lengths),
            seq_lens=seq_lens,
            input_ids=torch.zeros(total, dtype=torch.int64),
            positions=torch.zeros(total, dtype=torch.int64),
            req_pool_indices=torch.arange(len(lengths)),
            spec_info=SimpleNamespace(
                ragged_verify_layout=layout,
                num_tokens_per_req=lengths[0] if lengths else 0,
                is_draft_input=lambda: extend,
            ),
            out_cache_loc=None,
            kv_loc_plan=None,
            extend_seq_lens=torch.tensor(lengths, dtype=torch.int32),
            extend_seq_lens_cpu=list(lengths),
            extend_prefix_lens_cpu=[PREFIX] * len(lengths),
            encoder_lens=None,
        )

    def forward(self, batch, *, attn_type=AttentionType.DECODER, window_left=-1) -> torch.Tensor:
        """The layer's output rows [total_q, heads, dim]."""
        layer = SimpleNamespace(
            layer_id=0,
            tp_q_head_num=1,
            tp_k_head_num=1,
            tp_v_head_num=1,
            head_dim=HEAD_DIM,
            v_head_dim=HEAD_DIM,
            scaling=1.0,
            sliding_window_size=window_left,
            attn_type=attn_type,
        )
        q = torch.zeros(batch.input_ids.shape[0], HEAD_DIM, dtype=torch.bfloat16)
        out = self.backend.forward_extend(q, None, None, layer, batch, save_kv_cache=False)
        return out.view(-1, 1, HEAD_DIM)

    def eager(self, mode: ForwardMode, lengths: list[int], layout=None, **forward) -> torch.Tensor:
        """Metadata and one layer, without CUDA graphs."""
        batch = self.batch(mode, lengths, layout)
        self.backend.init_forward_metadata(batch)
        return self.forward(batch, **forward)

    def captured(self, mode: ForwardMode, lengths: list[int], layout=None, num_tokens=None, **forward) -> torch.Tensor:
        """The same through the CUDA-graph metadata: capture, then one replay."""
        batch = self.batch(mode, lengths, layout, num_tokens)
        for in_capture in (True, False):
            self.backend.init_forward_metadata_out_graph(batch, in_capture=in_capture)
            self.backend.init_forward_metadata_in_graph(batch)
        return self.forward(batch, **forward)
