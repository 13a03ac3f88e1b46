"""Checked entry points, as torch operators: pick by exact capability, then run the shipped Triton kernels.

Shapes and dtypes are checked by the kernels' own wrappers (`triton_recover.py` ships inside the runtime and must refuse
bad input there too); this file adds the device check and the torch operators `sm120::gdn_verify_output_only` and
`sm120::gdn_recover_accepted`, so that a traced model can call them.
"""

import torch

from sm120.kernels._lib import capability
from sm120.kernels.recover_ssm import triton_recover

CAPABILITIES = [(12, 0)]


def verify_output_only(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    window: triton_recover.DraftWindow,
) -> torch.Tensor:
    """Outputs [B, T, HV, V] of the draft chains, `state` [slots, HV, V, K] only read, `window` filled for the commit.

    Contract of the arguments: `triton_recover.verify_output_only`. Raises ValueError on a device whose capability is
    not listed, and for every argument that breaks its contract. Source: state-recovery form of the gated delta rule,
    see reference.py.
    """
    _require_device(q)
    return torch.ops.sm120.gdn_verify_output_only(q, k, v, a, b, A_log, dt_bias, state, state_indices, *window)


def recover_accepted(
    state: torch.Tensor,
    window: triton_recover.DraftWindow,
    slots: torch.Tensor,
    last_steps: torch.Tensor,
    track_slots: torch.Tensor | None = None,
    track_steps: torch.Tensor | None = None,
) -> None:
    """Advance `state` [L, slots, HV, V, K] over the accepted drafts in place, checkpoints on the way.

    Contract of the arguments: `triton_recover.recover_accepted`. Raises ValueError like `verify_output_only`.
    """
    _require_device(state)
    torch.ops.sm120.gdn_recover_accepted(state, *window, slots, last_steps, track_slots, track_steps)


def _require_device(tensor: torch.Tensor) -> None:
    # on the CPU the kernels run in Triton's interpreter, or Triton itself says that it has no driver
    if tensor.device.type == "cuda":
        capability.require(torch.cuda.get_device_capability(tensor.device), "recover_ssm", CAPABILITIES)


@torch.library.custom_op("sm120::gdn_verify_output_only", mutates_args=("keep_k", "keep_v", "keep_g", "keep_beta"))
def _verify(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    keep_k: torch.Tensor,
    keep_v: torch.Tensor,
    keep_g: torch.Tensor,
    keep_beta: torch.Tensor,
) -> torch.Tensor:
    window = triton_recover.DraftWindow(keep_k, keep_v, keep_g, keep_beta)
    return triton_recover.verify_output_only(q, k, v, a, b, A_log, dt_bias, state, state_indices, window=window)


@_verify.register_fake
def _(q, k, v, a, b, A_log, dt_bias, state, state_indices, keep_k, keep_v, keep_g, keep_beta):
    return v.new_empty(v.shape)


@torch.library.custom_op("sm120::gdn_recover_accepted", mutates_args=("state",))
def _recover(
    state: torch.Tensor,
    keep_k: torch.Tensor,
    keep_v: torch.Tensor,
    keep_g: torch.Tensor,
    keep_beta: torch.Tensor,
    slots: torch.Tensor,
    last_steps: torch.Tensor,
    track_slots: torch.Tensor | None,
    track_steps: torch.Tensor | None,
) -> None:
    window = triton_recover.DraftWindow(keep_k, keep_v, keep_g, keep_beta)
    triton_recover.recover_accepted(state, window, slots, last_steps, track_slots=track_slots, track_steps=track_steps)


@_recover.register_fake
def _(state, keep_k, keep_v, keep_g, keep_beta, slots, last_steps, track_slots, track_steps):
    return None
