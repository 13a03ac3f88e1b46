"""Where the engine puts each tensor of a checkpoint, read from the headers of its shards; no weight is read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sm120.integration.common.refusal import Refusal

Place = Literal["gpu", "draft", "host", "disk", "skipped"]

HEADER_MAX = 128 << 20
BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


class Tensor(NamedTuple):
    """One entry of a shard's header; `bytes` as stored."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Loading:
    """What decides where a tensor goes. `table` is where a Qwen4-Exp's n-gram table lies, `table_fp8` whether as FP8.

    `draft_head` says that the checkpoint's own MTP layer is the draft, `vision` that the vision tower is loaded,
    `online_fp8` that unquantized projections become FP8 while they are loaded.
    """

    table: Literal["gpu", "host", "disk"] = "gpu"
    table_fp8: bool | None = None
    draft_head: bool = False
    vision: bool = True
    online_fp8: bool = False


@dataclass(frozen=True)
class Weights:
    """Bytes by place: the target and the draft on the GPU, the table on the host or on a disk, and what is not loaded."""

    gpu: int = 0
    draft: int = 0
    host: int = 0
    disk: int = 0
    skipped: int = 0

    @property
    def on_gpu(self) -> int:
        """Bytes of target and draft together."""
        return self.gpu + self.draft

    def __add__(self, other: Weights) -> Weights:
        return Weights(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def weights_of(folder: Path, loading: Loading, *, draft: bool = False) -> Weights:
    """Sum the tensors of a checkpoint folder by place; of a `draft` checkpoint all that is loaded is the draft's.

    Raises:
        Refusal: `plan-weights` for a folder without shards, a file that is no safetensors file or is shorter than its
            header says, and a shard of the index that is not there.
    """
    found = Weights()
    for tensor in tensors(folder):
        place, size = place_of(tensor, loading)
        if draft and place == "gpu":
            place = "draft"
        found = replace(found, **{place: getattr(found, place) + size})
    return found


def place_of(tensor: Tensor, loading: Loading) -> tuple[Place, int]:
    """Where the loaders of Qwen3.5 and Qwen4-Exp put a tensor, and how many bytes it takes there.

    Source: `load_weights` of sglang/srt/models/qwen3_5.py and qwen4_exp.py, `ple_offload_embedding` of
    arg_groups/model_overrides/qwen4_exp.py.
    """
    name = tensor.name
    if "rotary_emb.inv_freq" in name or re.search(r"\.ple\.ple_embedding\.(.*\.)?(hashstats_|token_lookup)", name):
        return "skipped", tensor.bytes
    if re.search(r"\.ple\.ple_embedding\.ngram_embedding\.shard_\d+\.weight$", name):
        size = tensor.bytes
        if loading.table_fp8 is not None:
            size = prod(tensor.shape) * (1 if loading.table_fp8 else 2)
        return loading.table, size
    if "mtp" in name:
        return ("draft", tensor.bytes) if loading.draft_head else ("skipped", tensor.bytes)
    if "visual" in name and not loading.vision:
        return "skipped", tensor.bytes
    if loading.online_fp8 and tensor.dtype in ("BF16", "F16") and name.endswith("_proj.weight"):
        return "gpu", tensor.bytes // 2
    return "gpu", tensor.bytes


def tensors(folder: Path) -> Iterator[Tensor]:
    """Every tensor of the shards that the engine reads: those of the index where there is one, else all.

    As in the engine's loader, `consolidated.safetensors` beside `model.safetensors` is the same weights once more.
    """
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            listed = set(json.loads(index.read_text())["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise Refusal("plan-weights", f"not a shard index: {error!r}", path=index) from None
        missing = sorted(str(name) for name in listed - {file.name for file in files})
        if missing:
            raise Refusal(
                "plan-weights", f"lists {missing[0]}, which is not there", path=index, fix="finish the download"
            )
        files = [file for file in files if file.name in listed]
    elif [file.name for file in files] == ["consolidated.safetensors", "model.safetensors"]:
        files = files[1:]
    if not files:
        raise Refusal(
            "plan-weights", "no *.safetensors there", path=folder, fix="--weights 78GiB, or finish the download"
        )
    for file in files:
        yield from _header(file)


def _header(file: Path) -> Iterator[Tensor]:
    def refused(what: str) -> Refusal:
        return Refusal("plan-weights", f"not a safetensors file: {what}", path=file, fix="download it again")

    try:
        with file.open("rb") as handle:
            prefix = handle.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or not 2 <= length <= HEADER_MAX:
                raise refused(f"header length {length}")
            head: Any = json.loads(handle.read(length))
        room = file.stat().st_size - 8 - length
    except (OSError, ValueError) as error:
        raise refused(str(error)) from None
    if not isinstance(head, Mapping):
        raise refused("the header is no table")
    for name, entry in head.items():
        if name == "__metadata__":
            continue
        try:
            start, end = entry["data_offsets"]
            dtype, shape = str(entry["dtype"]), tuple(int(extent) for extent in entry["shape"])
        except (KeyError, TypeError, ValueError) as error:
            raise refused(f"{name}: {error!r}") from None
        if dtype not in BITS or end - start != (prod(shape) * BITS[dtype] + 7) // 8:
            raise refused(f"{name}: {end - start} bytes for {dtype} {list(shape)}")
        if end > room:
            raise Refusal("plan-weights", f"ends before {name}", path=file, fix="finish the download")
        yield Tensor(name, dtype, shape, end - start)
