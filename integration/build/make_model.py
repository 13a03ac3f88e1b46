"""Script for the runtime's Python: write one tiny random-weight model and its byte-level tokenizer to a folder.

    python make_model.py FOLDER SPEC.json

No hub, no download; the same spec gives the same bytes. Every family speaks the same language, so that drafts agree
with targets often enough to be accepted, and not always: token t is followed by f(t), where f sends half of the tokens
to one run token and permutes the others, and the layers add a contribution that depends on the whole context and
overrules f in part of the cases. `context` scales that contribution. Without it a wrong KV cache could not change any
token.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3_5TextConfig, Qwen3Config

VOCAB = 320
RUN_TOKEN = ord("r")
EOS = 256
# The seed of the language is not the seed of the weights: a draft with another seed still speaks it.
LANGUAGE_SEED = 20


def main(folder: Path, spec: dict) -> None:
    folder.mkdir(parents=True)
    torch.manual_seed(spec["seed"])
    family = spec["family"]
    if family == "dense":
        write_language_model(folder, spec, dense_config(spec))
    elif family == "hybrid":
        write_language_model(folder, spec, hybrid_config(spec))
    elif family == "dflash":
        write_dflash_draft(folder, spec)
    else:
        raise SystemExit(f"unknown model family {family!r}: use dense, hybrid or dflash")
    write_tokenizer(folder)


def dense_config(spec: dict) -> Qwen3Config:
    return Qwen3Config(
        **{
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            # K or V of one page of 16 float32 tokens and one layer is then 4096 bytes: whole O_DIRECT blocks.
            "head_dim": 32,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": False,
            "eos_token_id": EOS,
            "bos_token_id": EOS,
            "initializer_range": 0.1,
            **spec["config"],
        }
    )


def hybrid_config(spec: dict) -> Qwen3_5TextConfig:
    return Qwen3_5TextConfig(
        **{
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": False,
            "eos_token_id": EOS,
            "bos_token_id": EOS,
            "initializer_range": 0.1,
            # SGLang reads the interval, transformers the list of layer types that follows from it.
            "full_attention_interval": 4,
            **spec["config"],
        }
    )


def write_language_model(folder: Path, spec: dict, config: Qwen3Config | Qwen3_5TextConfig) -> None:
    dtype = getattr(torch, spec["dtype"])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    embedding, head = language(config.hidden_size)
    weights = model.state_dict()
    weights["model.embed_tokens.weight"].copy_(embedding)
    weights["lm_head.weight"].copy_(head)
    for name, tensor in weights.items():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            tensor.mul_(spec["context"])
    model.to(dtype).save_pretrained(folder)
    if spec.get("mtp"):
        add_mtp_head(folder, config, spec, dtype)
    saved = json.loads((folder / "config.json").read_text())
    if spec["family"] == "hybrid":
        saved["full_attention_interval"] = spec["config"].get("full_attention_interval", 4)
    (folder / "config.json").write_text(json.dumps(saved, indent=2))


def language(hidden_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Embedding and head, `[VOCAB, hidden_size]` each, for which head(embedding(t)) is largest at f(t)."""
    generator = torch.Generator().manual_seed(LANGUAGE_SEED)
    embedding = torch.randn(VOCAB, hidden_size, generator=generator)
    # One direction says which half a token is in: the run token has one preimage too many for its own row.
    to_run = torch.zeros(VOCAB, dtype=torch.bool)
    to_run[torch.randperm(EOS, generator=generator)[: EOS // 2]] = True
    to_run[RUN_TOKEN] = True
    embedding[:, 0] = torch.where(to_run, 3.0, -3.0)
    embedding *= hidden_size**0.5 / embedding.norm(dim=1, keepdim=True)
    head = torch.zeros(VOCAB, hidden_size)
    # A permutation of the bytes; tokens above the bytes are never said.
    head[torch.randperm(EOS, generator=generator)] = embedding[:EOS] / 6
    head[RUN_TOKEN] = 0
    head[RUN_TOKEN, 0] = 4.0
    return embedding, head


def add_mtp_head(folder: Path, config: Any, spec: dict, dtype: torch.dtype) -> None:
    """Add `mtp.*` tensors (one full-attention layer, as the real checkpoints have) to a hybrid model's file."""
    hidden, heads, kv_heads, head_dim = (
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
    )
    inner = config.intermediate_size
    shapes = {
        "mtp.layers.0.self_attn.q_proj.weight": (2 * heads * head_dim, hidden),
        "mtp.layers.0.self_attn.k_proj.weight": (kv_heads * head_dim, hidden),
        "mtp.layers.0.self_attn.v_proj.weight": (kv_heads * head_dim, hidden),
        "mtp.layers.0.self_attn.o_proj.weight": (hidden, heads * head_dim),
        "mtp.layers.0.mlp.gate_proj.weight": (inner, hidden),
        "mtp.layers.0.mlp.up_proj.weight": (inner, hidden),
        "mtp.layers.0.mlp.down_proj.weight": (hidden, inner),
    }
    tensors = {name: 0.1 * torch.randn(shape) for name, shape in shapes.items()}
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] *= spec["context"]
    # Norms count from one here: a zero weight is a plain norm.
    for name in ("q_norm", "k_norm"):
        tensors[f"mtp.layers.0.self_attn.{name}.weight"] = torch.zeros(head_dim)
    for name in ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"):
        tensors[f"mtp.{name}.weight"] = torch.zeros(hidden)
    tensors["mtp.pre_fc_norm_embedding.weight"] = torch.zeros(hidden)
    tensors["mtp.pre_fc_norm_hidden.weight"] = torch.zeros(hidden)
    # The embedding of the newest token alone already speaks the language; the target's state is mixed in lightly.
    tensors["mtp.fc.weight"] = torch.cat([torch.eye(hidden), 0.3 * torch.randn(hidden, hidden) / hidden**0.5], dim=1)
    save_file({name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}, folder / "mtp.safetensors")
    write_index(folder)


def write_index(folder: Path) -> None:
    """An index over all weight files: loaders read every file that it names."""
    from safetensors import safe_open

    weight_map = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            weight_map.update(dict.fromkeys(opened.keys(), file.name))
    total = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def write_dflash_draft(folder: Path, spec: dict) -> None:
    """A DFLASH draft for a target of `target_layers` layers: it predicts runs of the run token, and little else.

    Its masked positions carry the run token's own embedding, so that with weak layers every masked position says "run
    token again". Feature i is captured before target layer i + 1, so the last layer cannot be asked for.
    """
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "dtype": spec["dtype"],
        "eos_token_id": EOS,
        "block_size": 4,
        "num_target_layers": 4,
        "dflash_config": {"mask_token_id": RUN_TOKEN, "target_layer_ids": [1, 2]},
        **spec["config"],
    }
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q_size = config["num_attention_heads"] * config["head_dim"]
    kv_size = config["num_key_value_heads"] * config["head_dim"]
    features = len(config["dflash_config"]["target_layer_ids"])
    weights = {
        "fc.weight": torch.randn(hidden, features * hidden) / (features * hidden) ** 0.5,
        "hidden_norm.weight": torch.ones(hidden),
        "norm.weight": torch.ones(hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        shapes = {
            "self_attn.q_proj": (q_size, hidden),
            "self_attn.k_proj": (kv_size, hidden),
            "self_attn.v_proj": (kv_size, hidden),
            "self_attn.o_proj": (hidden, q_size),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        for name, shape in shapes.items():
            scale = spec["context"] if name.endswith(("o_proj", "down_proj")) else 1.0
            weights[f"layers.{layer}.{name}.weight"] = scale * 0.1 * torch.randn(shape)
        for name, size in {
            "self_attn.q_norm": config["head_dim"],
            "self_attn.k_norm": config["head_dim"],
            "input_layernorm": hidden,
            "post_attention_layernorm": hidden,
        }.items():
            weights[f"layers.{layer}.{name}.weight"] = torch.ones(size)
    dtype = getattr(torch, spec["dtype"])
    save_file({name: tensor.to(dtype) for name, tensor in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def write_tokenizer(folder: Path) -> None:
    """One token per byte, in byte order, so that token ids below 256 are bytes."""
    # GPT-2's printable spelling of bytes: printable ones stand for themselves, the others follow from U+0100.
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelling = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    vocab = {spelling[byte]: byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>")
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    fast.save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
