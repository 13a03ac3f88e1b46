"""Script for the runtime's Python: a tiny Qwen4-Exp text model, whose first layer has n-gram and short-conv side states.

    python make_ple_model.py FOLDER PROVE_FOLDER

It speaks the language of the other proof models (PROVE_FOLDER/make_model.py), so their drafts are accepted now and
then. transformers has no such class: the file is written by the names that the runtime's loader reads.
"""

import importlib.util
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

HIDDEN, STREAMS, LOWRANK, INNER, LAYERS = 64, 2, 8, 128, 4
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
K_HEADS, V_HEADS, LINEAR_DIM, CONV = 1, 2, 64, 4
NGRAM, NGRAM_HEADS, NGRAM_BASE, PLE_DIM, PLE_CONV = 3, 2, 211, 64, 4
# Heads get the primes from the base on (one after the other), padded together to a multiple of 8.
NGRAM_SIZES = (211, 223, 227, 229)


def main(folder: Path, kit: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_model", kit / "make_model.py")
    common = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(common)
    folder.mkdir(parents=True)
    torch.manual_seed(11)
    weights = language_model(common)
    save_file({name: x.half().contiguous() for name, x in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config(common), indent=2))
    common.write_tokenizer(folder)


def config(common) -> dict:
    text = {
        "model_type": "qwen4_exp_text",
        "vocab_size": common.VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "layer_types": ["linear_attention"] * 3 + ["indexed_attention"],
        "full_attention_interval": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "linear_conv_kernel_dim": CONV,
        "linear_key_head_dim": LINEAR_DIM,
        "linear_value_head_dim": LINEAR_DIM,
        "linear_num_key_heads": K_HEADS,
        "linear_num_value_heads": V_HEADS,
        "output_gate_type": None,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.25},
        "max_position_embeddings": 8192,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "hc_count": STREAMS,
        "hc_lowrank": LOWRANK,
        "ple_layer_ids": [1],
        "ple_embed_dim": PLE_DIM,
        "ple_conv_kernel_size": PLE_CONV,
        "ngram_size": NGRAM,
        "heads_per_ngram": NGRAM_HEADS,
        "ngram_vocab_size_base": NGRAM_BASE,
        "make_ngram_vocab_size_divisible_by": 8,
        "split_ngram_parts": 1,
        "eos_token_id": common.EOS,
        "bos_token_id": common.EOS,
        "tie_word_embeddings": False,
        "dtype": "float16",
    }
    return {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "model_type": "qwen4_exp",
        "text_config": text,
        "language_model_only": True,
        "tie_word_embeddings": False,
        "dtype": "float16",
        "eos_token_id": common.EOS,
    }


def language_model(common) -> dict[str, torch.Tensor]:
    embedding, head = common.language(HIDDEN)
    weights = {"model.language_model.embed_tokens.weight": embedding, "lm_head.weight": head}
    for layer in range(LAYERS):
        attention = full_attention() if layer == LAYERS - 1 else linear_attention()
        parts = attention | mlp()
        for stage in ("attn", "mlp"):
            parts |= {f"{stage}_hyper_connection.{name}": x for name, x in streams().items()}
            parts[f"{stage}_hyper_connection.block_inject_weight.weight"] = torch.zeros(STREAMS, STREAMS * HIDDEN)
        if layer == 0:
            parts |= {f"ple.{name}": x for name, x in side_embedding().items()}
        weights |= {f"model.language_model.layers.{layer}.{name}": x for name, x in parts.items()}
    weights |= {f"model.language_model.hyper_connection_mixer.{name}": x for name, x in streams().items()}
    return weights


def normal(*shape: int, scale: float = 0.1) -> torch.Tensor:
    return scale * torch.randn(shape)


def linear_attention() -> dict[str, torch.Tensor]:
    keys, values = K_HEADS * LINEAR_DIM, V_HEADS * LINEAR_DIM
    return {
        "linear_attn.in_proj_qkv.weight": normal(2 * keys + values, HIDDEN),
        "linear_attn.in_proj_z.weight": normal(values, HIDDEN),
        "linear_attn.in_proj_a.weight": normal(V_HEADS, HIDDEN),
        "linear_attn.in_proj_b.weight": normal(V_HEADS, HIDDEN),
        "linear_attn.conv1d.weight": normal(2 * keys + values, 1, CONV, scale=0.5),
        "linear_attn.A_log": normal(V_HEADS),
        "linear_attn.dt_bias": normal(V_HEADS),
        "linear_attn.norm.weight": torch.ones(LINEAR_DIM),
        "linear_attn.out_proj.weight": normal(HIDDEN, values, scale=0.3),
    }


def full_attention() -> dict[str, torch.Tensor]:
    return {
        "self_attn.q_proj.weight": normal(2 * HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj.weight": normal(KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj.weight": normal(KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj.weight": normal(HIDDEN, HEADS * HEAD_DIM, scale=0.3),
        "self_attn.q_norm.weight": torch.zeros(HEAD_DIM),
        "self_attn.k_norm.weight": torch.zeros(HEAD_DIM),
    }


def mlp() -> dict[str, torch.Tensor]:
    return {
        "mlp.gate_proj.weight": normal(INNER, HIDDEN),
        "mlp.up_proj.weight": normal(INNER, HIDDEN),
        "mlp.down_proj.weight": normal(HIDDEN, INNER, scale=0.3),
    }


def streams() -> dict[str, torch.Tensor]:
    """A read of the residual streams: norms count from one, and half of every stream is taken."""
    return {
        "hc_norm.weight": torch.zeros(STREAMS * HIDDEN),
        "input_mix_weight_down.weight": normal(LOWRANK, STREAMS * HIDDEN),
        "input_mix_weight_up.weight": normal(STREAMS * HIDDEN, LOWRANK),
    }


def side_embedding() -> dict[str, torch.Tensor]:
    """N-grams say much here: a wrong context or convolution window changes tokens."""
    rows = -(-sum(NGRAM_SIZES) // 8) * 8
    wide = STREAMS * HIDDEN
    return {
        "ple_embedding.ngram_embedding.shard_0.weight": normal(rows, PLE_DIM // len(NGRAM_SIZES), scale=1.0),
        "key_proj.weight": normal(wide, PLE_DIM),
        "value_proj.weight": normal(HIDDEN, PLE_DIM, scale=0.5),
        "norm_key.weight": torch.zeros(wide),
        "norm_query.weight": torch.zeros(wide),
        "norm_conv.weight": torch.zeros(wide),
        "conv1d.weight": normal(wide, 1, PLE_CONV, scale=0.6),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
