"""What a test of the kernel runs and compares: one call into poisoned memory, on the CPU build or on a device."""

from __future__ import annotations

import functools
import tomllib

import numpy as np
import torch
from mrope_cpu_build import KERNEL, Case, rounding, run

from sm120.kernels._lib.host_library import HostLibrary
from sm120.kernels._lib.poison import guarded
from sm120.kernels.mrope import reference
from sm120.kernels.mrope.op import Fp8Store, fused_qk_norm_mrope

DTYPES = tomllib.loads((KERNEL / "kernel.toml").read_text())["dtypes"]
YARN = reference.Yarn(4.0, 3.0, 19.0, 1.1386294)


def variants_of(row: dict[str, object], compiled: list[str]) -> list[str]:
    """The compiled variants of a row of the dtype table; asserts that both axis counts and both pairings are there."""
    assert row["relative_error"] == rounding({"bf16": torch.bfloat16, "fp16": torch.float16}[row["activations"]])
    names = [
        name for name in compiled
        if name.startswith(f"mrope_{row['activations']}_{row['table']}_") and name.endswith(f"_{row['store']}")
    ]  # fmt: skip
    assert {name.split("_")[5] for name in names} == {"a1", "a3"}, "the row's variants are not all compiled"
    assert any("_neox_" in name for name in names) and any("_gptj_" in name for name in names)
    return names


def store_for(case: Case, slots: int = 12, device: str = "cpu") -> Fp8Store | None:
    """FP8 caches around `slots` rows of NaN, the first of which is no slot but the row before slot 0."""
    if not case.stores:
        return None
    random = np.random.default_rng(3)
    index = random.permutation(slots - 1)[: case.tokens] if case.tokens < slots else np.arange(case.tokens)
    index[1::3] = -1
    caches = [torch.full((max(slots, case.tokens + 1), case.num_kv_heads, case.head_dim), float("nan")) for _ in "kv"]
    k, v = (cache.to(torch.float8_e4m3fn).to(device)[1:] for cache in caches)
    return Fp8Store(k, v, torch.from_numpy(index).to(device), k_scale=0.037, v_scale=0.0031)


def assert_right(case: Case, built: HostLibrary | None, schedule: str = "forward", **options: object) -> torch.Tensor:
    """Run one case into a guarded, NaN-poisoned output; assert that it is the reference, rounded once. Returns it.

    `built` is the CPU build to run under `schedule`; None runs the op on the device.
    """
    device = "cuda" if built is None else "cpu"
    call = fused_qk_norm_mrope if built is None else functools.partial(run, built, schedule=schedule)
    store = store_for(case, device=device)
    tensors = [tensor.to(device) for tensor in case.tensors()]
    with guarded((case.tokens, case.width), case.dtype, device) as out:
        call(*tensors, out=out, store=store, **(case.arguments() | options))
        result = out.cpu().clone()
    assert torch.equal(tensors[0].cpu(), case.qkv), "qkv: changed by a call that has an output"
    expected = case.expected()
    allowed = rounding(case.dtype) * expected.abs() + 1e-5
    worst = ((result.double() - expected).abs() - allowed).max() if case.tokens else -1.0
    assert worst <= 0, f"{case.variant}: out is {worst:.3g} further from the reference than one rounding explains"
    if store is not None:
        assert_stored(case, result, store)
    return result


def assert_stored(case: Case, result: torch.Tensor, store: Fp8Store) -> None:
    """The caches hold the rounded K and V over their scales in the tokens' slots, and nothing anywhere else."""
    heads = case.qkv.view(case.tokens, -1, case.head_dim)
    k = result[:, case.num_q_heads * case.head_dim :].view(case.tokens, -1, case.head_dim)
    v = heads[:, case.num_q_heads + case.num_kv_heads :]
    for name, value, cache, scale in (("k", k, store.k_cache, store.k_scale), ("v", v, store.v_cache, store.v_scale)):
        whole = (cache._base if cache._base is not None else cache).cpu()
        want = torch.full(whole.shape, float("nan")).to(torch.float8_e4m3fn)
        inverse = float(np.float32(1.0 / scale))
        for token, slot in enumerate(store.slots.tolist()):
            if slot >= 0:
                exact = reference.fp8_store_value(value[token].double().numpy(), inverse)
                want[1 + slot] = torch.from_numpy(exact).float().to(torch.float8_e4m3fn)
        assert torch.equal(whole.view(torch.uint8) & 0x7F, want.view(torch.uint8) & 0x7F), f"{name}_cache: wrong bytes"
        assert torch.equal(torch.signbit(whole.float()[1:]), torch.signbit(want.float()[1:])), f"{name}_cache: signs"
