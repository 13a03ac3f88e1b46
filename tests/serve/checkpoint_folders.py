"""Checkpoint folders of real sizes that take no room: shards whose headers are whole and whose bytes are a hole."""

import json
import struct
from math import prod

GIB = 1 << 30
BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1}
# Qwen3.8-Flash-Next-NVFP4 as published: 126.0 GiB, of which 51,200,245,760 bytes are the FP8 table.
FLASH_NEXT, TABLE = int(126.0 * GIB), 51_200_245_760
TABLE_SHARD = "model.language_model.layers.0.ple.ple_embedding.ngram_embedding.shard_{}.weight"


def shard(path, tensors):
    """`tensors`: name to (dtype, shape)."""
    head, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = prod(shape) * BYTES[dtype]
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)


def flash_next(folder, *, table_dtype="F8_E4M3", **config):
    """Flash-Next in NVFP4: layers and vision tower, the MTP layer, and the table in two of its shards."""
    folder.mkdir()
    rows, mtp = TABLE // 160, int(4.3 * GIB)
    half = rows // 2
    shard(
        folder / "model-00001-of-00002.safetensors",
        {
            "model.language_model.layers.0.mlp.experts.w": ("U8", [FLASH_NEXT - TABLE - mtp]),
            "mtp.layers.0.mlp.experts.w": ("U8", [mtp]),
            "model.language_model.layers.0.ple.ple_embedding.hashstats_counts": ("F32", [64]),
        },
    )
    shard(
        folder / "model-00002-of-00002.safetensors",
        {TABLE_SHARD.format(i): (table_dtype, [n, 160]) for i, n in enumerate((half, rows - half))},
    )
    named = {"architectures": ["Qwen4ExpForConditionalGeneration"], "vision_config": {}, **config}
    (folder / "config.json").write_text(json.dumps(named))
    return folder


def qwen_27b(folder):
    """Qwen3.8-27B in FP8 blocks: 64 layers of 5,120 with 17,408 wide MLPs, embeddings, head and tower in bfloat16."""
    folder.mkdir()
    hidden, wide, vocabulary = 5120, 17_408, 248_320
    names = {
        "model.language_model.embed_tokens.weight": ("BF16", [vocabulary, hidden]),
        "lm_head.weight": ("BF16", [vocabulary, hidden]),
        "model.visual.blocks.w": ("BF16", [460_000_000]),
        "mtp.layers.0.w": ("BF16", [425_000_000]),
    }
    for layer in range(64):
        at = f"model.language_model.layers.{layer}"
        linear = [("in_proj_qkv", 10_240), ("in_proj_z", 6144), ("out_proj", 6144)]
        full = [("q_proj", 12_288), ("k_proj", 1024), ("v_proj", 1024), ("o_proj", 6144)]
        mixer = full if layer % 4 == 3 else linear
        for name, rows in (*mixer, ("gate_proj", wide), ("up_proj", wide), ("down_proj", wide)):
            names[f"{at}.{name}.weight"] = ("F8_E4M3", [rows, hidden])
            names[f"{at}.{name}.weight_scale_inv"] = ("BF16", [rows // 128, hidden // 128])
    shard(folder / "model.safetensors", names)
    config = {"architectures": ["Qwen3_5ForConditionalGeneration"], "quantization_config": {"quant_method": "fp8"}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def dflash2(folder):
    """Its draft, in bfloat16: five layers of the target's width with 32 query and 8 key heads of 128."""
    folder.mkdir()
    hidden, wide = 5120, 17_408
    names = {"fc.weight": ("BF16", [hidden, 5 * hidden])}
    for layer in range(5):
        for name, rows in (("q", 4096), ("k", 1024), ("v", 1024), ("o", 4096)):
            names[f"layers.{layer}.self_attn.{name}_proj.weight"] = ("BF16", [rows, hidden])
        for name in ("gate", "up", "down"):
            names[f"layers.{layer}.mlp.{name}_proj.weight"] = ("BF16", [wide, hidden])
    shard(folder / "model.safetensors", names)
    (folder / "config.json").write_text(json.dumps({"architectures": ["DFlashDraftModel"], "head_dim": 128}))
    return folder
