"""Seeded problems for the kernel tests, and the float64 answer for each of their requests."""

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from sm120.kernels._kit import mutated_module, poison
from sm120.kernels.recover_ssm import reference, triton_recover

# an SM120 device, or the simulated one where there is none: same problems, same oracle
DEVICE = "cuda"


def index(values: list[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


@dataclass
class Problem:
    """One verify round: inputs, a NaN-poisoned pool of states, and which slot each request owns."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    A_log: torch.Tensor
    dt_bias: torch.Tensor
    state: torch.Tensor  # [1, slots, HV, V, K]
    slots: torch.Tensor  # [B]
    window: triton_recover.DraftWindow  # [1, rows, D, ...]

    def verify(self, kernels: ModuleType = triton_recover) -> torch.Tensor:
        arguments = (self.q, self.k, self.v, self.a, self.b, self.A_log, self.dt_bias, self.state[0], self.slots)
        window = kernels.DraftWindow(*(x[0] for x in self.window))
        return kernels.verify_output_only(*arguments, window=window)

    def recover(self, last_steps: list[int], kernels: ModuleType = triton_recover, **track: list[int]) -> torch.Tensor:
        """Recover into a copy of the pool and return it."""
        state = self.state.clone()
        window = kernels.DraftWindow(*self.window)
        kernels.recover_accepted(
            state, window, self.slots, index(last_steps), **{n: index(x) for n, x in track.items()}
        )
        return state

    def answer(self, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        """float64 outputs [T, HV, V] and states after every token [T, HV, V, K] of one request."""
        exact = lambda x: x.double().cpu().numpy()  # noqa: E731
        inputs = (exact(x[request]) for x in (self.q, self.k, self.v, self.a, self.b))
        w = reference.window(*inputs, exact(self.A_log), exact(self.dt_bias))
        outputs, states = reference.recurrence(exact(self.state[0, self.slots[request]]), w)
        return torch.from_numpy(outputs), torch.from_numpy(states)


def problem(
    B: int = 2,
    T: int = 4,
    *,
    H: int = 1,
    HV: int = 2,
    K: int = 64,
    V: int = 64,
    state_dtype: torch.dtype = torch.float32,
    dtype: torch.dtype = torch.bfloat16,
    depth: int | None = None,
    seed: int = 0,
    device: str = DEVICE,
) -> Problem:
    """Slots are handed out backwards with gaps; every slot, row and column that nobody owns is NaN."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape: torch.from_numpy(rng.standard_normal(shape)).float().to(device)  # noqa: E731
    slots = torch.arange(2 * B - 1, 0, -2, dtype=torch.int32, device=device)
    state = poison.unwritten((1, 2 * B + 1, HV, V, K), state_dtype, device)
    state[0, slots.long()] = normal(B, HV, V, K).to(state_dtype)
    depth = depth or T
    window = triton_recover.DraftWindow(
        k=poison.unwritten((1, B + 1, depth, H, K), dtype, device),
        v=poison.unwritten((1, B + 1, depth, HV, V), dtype, device),
        g=poison.unwritten((1, B + 1, depth, HV), torch.float32, device),
        beta=poison.unwritten((1, B + 1, depth, HV), torch.float32, device),
    )
    return Problem(
        q=normal(B, T, H, K).to(dtype),
        k=normal(B, T, H, K).to(dtype),
        v=normal(B, T, HV, V).to(dtype),
        a=normal(B, T, HV).to(dtype),
        b=normal(B, T, HV).to(dtype),
        A_log=normal(HV),
        dt_bias=normal(HV),
        state=state,
        slots=slots,
        window=window,
    )


def mutant(folder: Path, *edits: tuple[str, str]) -> ModuleType:
    """The shipped kernel file with each (old, new) applied exactly once, imported as a module of its own."""
    module = mutated_module.load(Path(triton_recover.__file__), folder, *edits)
    module._tile = triton_recover._tile
    return module
