"""Every pool of a hybrid model, in bytes, and how each number comes about."""

from dataclasses import dataclass

from sm120.integration.serve.planner.settings import ITEMSIZE, HybridModel, ServerSettings, linear_shape
from sm120.integration.serve.planner.state_bytes import formulas


@dataclass(frozen=True)
class Pool:
    """One allocation: its bytes, and the formula with the numbers in it."""

    name: str
    bytes: int
    formula: str


def plan(model: HybridModel, settings: ServerSettings) -> list[Pool]:
    """All pools of `model` under `settings`, in the order in which the runtime allocates them.

    Raises ValueError where the two do not fit each other (an index ratio that does not divide the page).
    """
    pools = [*_state_pools(model, settings), *_token_pools(model, settings)]
    if settings.draft_tokens:
        pools += _speculative_pools(model, settings)
    return pools


def kv_bytes_per_token(model: HybridModel, settings: ServerSettings) -> int:
    """Bytes that one cached token costs: K and V of every attention layer, MTP included, and compressed index keys."""
    layers = model.full_layers + model.mtp_layers
    kv = 2 * model.kv_heads * model.head_dim * ITEMSIZE[settings.kv_dtype]
    return layers * (kv + index_bytes_per_token(model, settings))


def charged_bytes(model: HybridModel, settings: ServerSettings) -> int:
    """What the engine takes off its budget before it counts tokens: state slots and the rows of verification.

    Side states, their windows and the pool's padding page are allocated without being charged. Source:
    `_handle_max_mamba_cache` of sglang/srt/mem_cache/kv_cache_configurator.py.
    """
    charged = {"conv", "ssm", "intermediate_ssm", "recover_window", "conv_window"}
    return sum(pool.bytes for pool in plan(model, settings) if pool.name in charged)


def checkpoint_bytes(model: HybridModel, settings: ServerSettings) -> int:
    """Bytes of one slot as it travels to a host or a disk: states, conv windows and side states together."""
    side = model.side_state
    extra = 0
    if side:
        extra = side.layers * side.channels * side.width * ITEMSIZE[settings.conv_dtype] + side.ngram_tokens * 8
    return linear_shape(model, settings).slot_bytes + extra


def _state_pools(model: HybridModel, settings: ServerSettings) -> list[Pool]:
    shape, slots = linear_shape(model, settings), settings.mamba_slots + 1
    conv = shape.layers * slots * shape.conv_dim * (shape.conv_kernel - 1) * shape.conv_itemsize
    ssm = shape.layers * slots * shape.ssm_elements * shape.ssm_itemsize
    pools = [
        Pool(
            "conv",
            conv,
            f"{shape.layers} layers x {slots} slots x {shape.conv_dim} x {shape.conv_kernel - 1} "
            f"x {shape.conv_itemsize}",
        ),
        Pool(
            "ssm", ssm, f"{shape.layers} layers x {slots} slots x {shape.ssm_elements} elements x {shape.ssm_itemsize}"
        ),
    ]
    side = model.side_state
    if side:
        item = ITEMSIZE[settings.conv_dtype]
        short = side.layers * slots * side.channels * side.width * item
        pools.append(
            Pool(
                "ple_short_conv",
                short,
                f"{side.layers} layers x {slots} slots x {side.channels} x {side.width} x {item}",
            )
        )
        pools.append(
            Pool("ple_ngram", slots * side.ngram_tokens * 8, f"{slots} slots x {side.ngram_tokens} tokens x 8")
        )
    return pools


def _token_pools(model: HybridModel, settings: ServerSettings) -> list[Pool]:
    # the pool keeps one page more: slot 0 is where padding is written
    tokens = settings.kv_tokens + settings.page_size
    layers = model.full_layers + model.mtp_layers
    kv = 2 * model.kv_heads * model.head_dim * ITEMSIZE[settings.kv_dtype]
    pools = [Pool("kv", tokens * layers * kv, f"{tokens} tokens x {layers} layers x {kv}")]
    index = index_bytes_per_token(model, settings)
    if index:
        pools.append(Pool("qsa_keys", tokens * layers * index, f"{tokens} tokens x {layers} layers x {index}"))
    if settings.draft_kv_layers:
        draft = 2 * settings.draft_kv_heads * settings.draft_head_dim * ITEMSIZE[settings.kv_dtype]
        size = tokens * settings.draft_kv_layers * draft
        pools.append(Pool("draft_kv", size, f"{tokens} tokens x {settings.draft_kv_layers} layers x {draft}"))
    return pools


def _speculative_pools(model: HybridModel, settings: ServerSettings) -> list[Pool]:
    shape, rows, drafts = linear_shape(model, settings), settings.max_running + 1, settings.draft_tokens
    per_row = f"{shape.layers} layers x {rows} rows x {drafts} drafts"
    if settings.cache_mode == "full":
        size = formulas.intermediate_ssm_bytes(shape, rows=rows, draft_tokens=drafts)
        pools = [Pool("intermediate_ssm", size, f"{per_row} x {shape.ssm_elements} elements x {shape.ssm_itemsize}")]
    else:
        item = ITEMSIZE[settings.model_dtype]
        size = formulas.recover_window_bytes(shape, rows=rows, draft_tokens=drafts, itemsize=item)
        pools = [Pool("recover_window", size, f"{per_row} x ((keys + values) x {item} + fp32 gates)")]
    dedup = settings.deduplicated_conv
    size = formulas.conv_window_bytes(shape, rows=rows, draft_tokens=drafts, deduplicated=dedup)
    how = "D + K - 2 columns, shared" if dedup else "D x (K - 1) columns"
    pools.append(Pool("conv_window", size, f"{shape.layers} layers x {rows} rows x {shape.conv_dim} x {how}"))
    side = model.side_state
    if side:
        item = ITEMSIZE[settings.conv_dtype]
        short = side.layers * rows * drafts * side.channels * side.width * item
        pools.append(Pool("ple_short_conv_window", short, f"{side.layers} layers x {rows} rows x {drafts} drafts"))
        pools.append(Pool("ple_ngram_window", rows * drafts * side.ngram_tokens * 8, f"{rows} rows x {drafts} drafts"))
    return pools


def index_bytes_per_token(model: HybridModel, settings: ServerSettings) -> int:
    """Bytes of one layer's compressed index keys for one token, 0 without them."""
    index = model.sparse_index
    if index is None:
        return 0
    if settings.page_size % index.ratio:
        raise ValueError(f"page_size is {settings.page_size}, needs a multiple of the index ratio {index.ratio}")
    return index.heads * index.head_dim * ITEMSIZE["bfloat16"] // index.ratio
