"""Compare a result with its reference by relative root-mean-square error, with the tensor's name in the message."""

from __future__ import annotations

import torch

ABSOLUTE_FLOOR = 1e-6


def relative_rms(reference: torch.Tensor, result: torch.Tensor) -> float:
    """RMS of (result - reference) over RMS of reference, both taken as float64; 0.0 for empty tensors."""
    if reference.numel() == 0:
        return 0.0
    want = reference.detach().double().cpu()
    error = (result.detach().double().cpu() - want).square().mean().sqrt()
    return float(error / want.square().mean().sqrt().clamp_min(ABSOLUTE_FLOOR))


def assert_close(name: str, reference: torch.Tensor, result: torch.Tensor, tolerance: float) -> None:
    """Raise AssertionError unless shapes agree, both are finite in the same places and the error is in tolerance.

    A NaN in `result` alone is a slot that the kernel never wrote (see `poison.unwritten`) or read by mistake.
    """
    assert reference.shape == result.shape, f"{name}: shape {tuple(result.shape)}, reference {tuple(reference.shape)}"
    want, got = reference.detach().double().cpu(), result.detach().double().cpu()
    for kind, test in (("NaN", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf)):
        differ = test(want) != test(got)
        if differ.any():
            where = tuple(differ.nonzero()[0].tolist())
            raise AssertionError(f"{name}: {kind} in one of both at {int(differ.sum())} places, first {where}")
    finite = torch.isfinite(want)
    error = relative_rms(want[finite], got[finite])
    if error > tolerance:
        difference = torch.where(finite, (got - want).abs(), 0)
        worst = tuple(torch.unravel_index(difference.argmax(), difference.shape))
        where = tuple(int(i) for i in worst)
        raise AssertionError(
            f"{name}: relative RMS error {error:.3e} > {tolerance:.3e}; worst at {where}: "
            f"{float(got[where]):.6g}, reference {float(want[where]):.6g}"
        )
