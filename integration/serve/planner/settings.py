"""What the planner needs to know: a model's geometry from its config.json, and the server's settings."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sm120.integration.serve.planner.state_bytes import formulas

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8_e4m3": 1}


class SideState(NamedTuple):
    """PLE side state of a slot: short-conv channels x width per layer, and the n-gram context in tokens."""

    layers: int
    channels: int
    width: int
    ngram_tokens: int


class SparseIndex(NamedTuple):
    """QSA compressed index keys: heads x dim, one per `ratio` tokens."""

    heads: int
    head_dim: int
    ratio: int


@dataclass(frozen=True)
class HybridModel:
    """Geometry of one hybrid model on one device."""

    linear_layers: int
    full_layers: int
    mtp_layers: int
    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int
    conv_kernel: int
    kv_heads: int
    head_dim: int
    side_state: SideState | None = None
    sparse_index: SparseIndex | None = None

    def __post_init__(self) -> None:
        for name in ("linear_layers", "num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be >= 1")
        if self.conv_kernel < 2:
            raise ValueError(f"conv_kernel is {self.conv_kernel}, needs to be >= 2")
        if self.num_v_heads % self.num_k_heads:
            raise ValueError(f"num_v_heads is {self.num_v_heads}, needs a multiple of num_k_heads = {self.num_k_heads}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "HybridModel":
        """From a decoded config.json (its `text_config` where it has one). Raises ValueError naming a missing key."""
        text = config.get("text_config", config)

        def need(key: str) -> Any:
            if text.get(key) is None:
                raise ValueError(f"config: no {key!r}; the planner knows hybrids of gated delta net and full attention")
            return text[key]

        layers, interval = need("num_hidden_layers"), text.get("full_attention_interval", 4)
        types = text.get("layer_types")
        linear = types.count("linear_attention") if types else layers - layers // interval
        ple = sorted({int(i) for i in text.get("ple_layer_ids") or []})
        side = None
        if ple:
            ngram = int(text.get("ngram_size", 3))
            width = (int(text.get("ple_conv_kernel_size", 4)) - 1) * ngram
            side = SideState(len(ple), need("hidden_size") * int(text.get("hc_count", 4)), width, ngram - 1)
        index = None
        if text.get("indexer_head_dim"):
            budget, blocks = need("indexer_budget"), need("indexer_block_topk")
            index = SparseIndex(int(text.get("indexer_kv_heads", 1)), int(text["indexer_head_dim"]), budget // blocks)
        return cls(
            linear_layers=linear,
            full_layers=layers - linear,
            mtp_layers=int(text.get("mtp_num_hidden_layers", 0)),
            num_k_heads=need("linear_num_key_heads"),
            num_v_heads=need("linear_num_value_heads"),
            head_k_dim=need("linear_key_head_dim"),
            head_v_dim=need("linear_value_head_dim"),
            conv_kernel=need("linear_conv_kernel_dim"),
            kv_heads=need("num_key_value_heads"),
            head_dim=need("head_dim"),
            side_state=side,
            sparse_index=index,
        )

    def sharded(self, ranks: int) -> "HybridModel":
        """One of `ranks` tensor-parallel shares: heads are divided, key heads are kept at one, the index is whole.

        Raises ValueError where heads do not divide evenly.
        """
        for name in ("num_k_heads", "num_v_heads"):
            if ranks < 1 or getattr(self, name) % ranks:
                raise ValueError(f"tp_size is {ranks}, needs a divisor of {name} = {getattr(self, name)}")
        return replace(
            self,
            num_k_heads=self.num_k_heads // ranks,
            num_v_heads=self.num_v_heads // ranks,
            kv_heads=max(1, self.kv_heads // ranks),
        )

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: queries, keys and values side by side."""
        return 2 * self.num_k_heads * self.head_k_dim + self.num_v_heads * self.head_v_dim


@dataclass(frozen=True)
class ServerSettings:
    """What the server is started with. `draft_tokens` counts the anchor; 0 is no speculation."""

    max_running: int
    mamba_slots: int
    kv_tokens: int
    page_size: int = 64
    draft_tokens: int = 0
    cache_mode: str = "full"
    kv_dtype: str = "bfloat16"
    state_dtype: str = "float32"
    conv_dtype: str = "bfloat16"
    model_dtype: str = "bfloat16"
    draft_kv_layers: int = 0
    draft_kv_heads: int = 0
    draft_head_dim: int = 0
    deduplicated_conv: bool = True

    def __post_init__(self) -> None:
        for name in ("max_running", "mamba_slots", "kv_tokens", "page_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be >= 1")
        if self.draft_tokens < 0 or self.draft_tokens == 1:
            raise ValueError(f"draft_tokens is {self.draft_tokens}, needs 0 (no speculation) or at least 2")
        if self.cache_mode not in ("full", "none"):
            raise ValueError(f"cache_mode is {self.cache_mode!r}, needs 'full' or 'none'")
        for name in ("kv_dtype", "state_dtype", "conv_dtype", "model_dtype"):
            if getattr(self, name) not in ITEMSIZE:
                raise ValueError(f"{name} is {getattr(self, name)!r}, needs one of {sorted(ITEMSIZE)}")


def linear_shape(model: HybridModel, settings: ServerSettings) -> Any:
    """The model's linear-attention layers in the terms of the formulas that the runtime uses."""
    return formulas.LinearStateShape(
        layers=model.linear_layers,
        num_k_heads=model.num_k_heads,
        num_v_heads=model.num_v_heads,
        head_k_dim=model.head_k_dim,
        head_v_dim=model.head_v_dim,
        conv_dim=model.conv_dim,
        conv_kernel=model.conv_kernel,
        ssm_itemsize=ITEMSIZE[settings.state_dtype],
        conv_itemsize=ITEMSIZE[settings.conv_dtype],
    )
