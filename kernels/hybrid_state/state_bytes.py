"""Bytes of the scratch that speculative decoding adds to a hybrid linear-attention model.

Integers in, integers out: nothing here needs torch or a device, so a capacity estimate can be made anywhere and the
memory estimator, the pool and an operator's calculator cannot drift apart. Every size is for one device, all layers.

``rows`` counts verify rows: the requests that can run at once plus the one padding row that the pools keep.
"""

from typing import NamedTuple


class LinearStateShape(NamedTuple):
    """Per-device geometry of the linear-attention layers: heads and channels after tensor parallelism."""

    layers: int
    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int
    conv_dim: int
    conv_kernel: int
    ssm_itemsize: int
    conv_itemsize: int

    @property
    def ssm_elements(self) -> int:
        """One recurrent state: HV x V x K."""
        return self.num_v_heads * self.head_v_dim * self.head_k_dim

    @property
    def slot_bytes(self) -> int:
        """One persistent slot: recurrent state and conv window."""
        return self.layers * (
            self.ssm_elements * self.ssm_itemsize + self.conv_dim * (self.conv_kernel - 1) * self.conv_itemsize
        )


def conv_window_elements(elements: int, window: int, draft_tokens: int, *, deduplicated: bool) -> int:
    """Elements that hold a conv window of ``elements`` values (channels x ``window``) after each draft token.

    Neighbouring windows of a chain share all but one column, so the deduplicated layout keeps D + window - 1 columns
    per channel instead of D x window.
    """
    _positive(window=window, draft_tokens=draft_tokens)
    if elements % window:
        raise ValueError(f"elements is {elements}, needs to be a multiple of window = {window}")
    columns = draft_tokens + window - 1 if deduplicated else draft_tokens * window
    return elements // window * columns


def intermediate_ssm_bytes(shape: LinearStateShape, *, rows: int, draft_tokens: int) -> int:
    """One recurrent state per draft token: what a verify without recovery keeps."""
    _positive(rows=rows, draft_tokens=draft_tokens)
    return shape.layers * rows * draft_tokens * shape.ssm_elements * shape.ssm_itemsize


def conv_window_bytes(shape: LinearStateShape, *, rows: int, draft_tokens: int, deduplicated: bool) -> int:
    """Conv windows per draft token: needed in every mode, they roll the conv state back."""
    _positive(rows=rows)
    window = shape.conv_kernel - 1
    elements = conv_window_elements(shape.conv_dim * window, window, draft_tokens, deduplicated=deduplicated)
    return shape.layers * rows * elements * shape.conv_itemsize


def recover_window_bytes(shape: LinearStateShape, *, rows: int, draft_tokens: int, itemsize: int) -> int:
    """Keys, values, log-decays and betas of the draft tokens: what a verify with recovery keeps.

    ``itemsize`` is that of a key or value, the model's dtype: the conv state's has a setting of its own.
    """
    _positive(rows=rows, draft_tokens=draft_tokens, itemsize=itemsize)
    inputs = shape.num_k_heads * shape.head_k_dim + shape.num_v_heads * shape.head_v_dim
    gates = 2 * shape.num_v_heads * 4  # log-decay and beta, fp32
    return shape.layers * rows * draft_tokens * (inputs * itemsize + gates)


def slots_in_budget(budget: int, *, slot_bytes: int, row_bytes: int, slots_per_request: int) -> int:
    """Slots K such that K + 1 slots and the verify rows of K / slots_per_request + 1 requests fit into ``budget``.

    The pool keeps one padding slot and one padding row, hence both + 1. Can be <= 0: nothing fits.
    """
    _positive(slot_bytes=slot_bytes, slots_per_request=slots_per_request)
    if row_bytes < 0:
        raise ValueError(f"row_bytes is {row_bytes}, needs to be >= 0")
    # both sides times slots_per_request, to stay in integers
    free = (budget - slot_bytes - row_bytes) * slots_per_request
    return free // (slot_bytes * slots_per_request + row_bytes)


def _positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} is {value}, needs to be >= 1")
