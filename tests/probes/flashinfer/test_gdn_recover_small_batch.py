"""Recovery phases must reach the kernel that has them, for one user too (B * HV below the wide_vec threshold).

Only the dispatch is driven: the two kernels behind it are replaced by recorders. Where the CuTe DSL is not installed
its decorators are too; no device code is looked at.
"""

import importlib.machinery
import importlib.util
import sys
import types
from unittest import mock

import pytest
import torch


def load_dispatch():
    """The module with the dispatch, with the compiler packages that this machine lacks stood in for."""
    absent = {}
    for name in ("cutlass", "cutlass.cute", "cutlass.cute.runtime", "cuda.bindings.driver"):
        try:
            found = importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            absent[name] = mock.MagicMock(name=name)
    folder = None
    for entry in sys.path:
        spec = importlib.machinery.PathFinder.find_spec("flashinfer", [entry])
        if spec is not None and spec.submodule_search_locations:
            folder = spec.submodule_search_locations[0]
            break
    assert folder is not None, "no flashinfer on the path"
    # the package's own __init__ probes the device: give its children a parent that does not
    parents = {}
    for name, path in {"flashinfer": folder, "flashinfer.gdn_kernels": f"{folder}/gdn_kernels"}.items():
        parents[name] = types.ModuleType(name)
        parents[name].__path__ = [path]
    siblings = {
        f"flashinfer.{name}": mock.MagicMock(name=name)
        for name in ("jit", "jit.cute_dsl_core", "gdn_kernels.device_target", "gdn_kernels.cute_dsl_cache_naming")
    }
    with mock.patch.dict(sys.modules, {**absent, **parents, **siblings}):
        return importlib.import_module("flashinfer.gdn_kernels.gdn_decode_bf16_state")


module = load_dispatch()


class TookTheOtherKernel(Exception):
    """The MTP ILP4 fallback, which has no recovery phases."""


@pytest.fixture
def route(monkeypatch):
    """route(B, T, ...) -> tile_v that the wide_vec kernel was called with; raises where the fallback was taken."""
    called = {}
    monkeypatch.setattr(module, "gated_delta_rule_mtp_wide_vec", lambda **given: called.update(given))

    def fallback(*_arguments, **_named):
        raise TookTheOtherKernel

    monkeypatch.setattr(module, "_get_bf16_mtp_config", fallback)

    def run(B, T, HV=48, **options):
        bf16 = dict(dtype=torch.bfloat16)
        module.gated_delta_rule_mtp(
            A_log=torch.zeros(HV),
            a=torch.zeros(B, T, HV, **bf16),
            dt_bias=torch.zeros(HV),
            q=torch.zeros(B, T, 16, 128, **bf16),
            k=torch.zeros(B, T, 16, 128, **bf16),
            v=torch.zeros(B, T, HV, 128, **bf16),
            b=torch.zeros(B, T, HV, **bf16),
            initial_state_source=torch.zeros(B, HV, 128, 128, **bf16),
            initial_state_indices=torch.arange(B, dtype=torch.int32),
            **options,
        )
        return called["tile_v"]

    return run


def steps(B):
    return torch.zeros(B, dtype=torch.int32)


@pytest.mark.parametrize("B", [1, 2])
@pytest.mark.parametrize("recovery", [1, 3, 8])
def test_recovery_of_a_small_batch_takes_the_narrowest_tile(route, B, recovery):
    assert B * 48 < 128
    try:
        tile = route(B, 8, recovery_steps=recovery)
    except AssertionError as error:
        pytest.fail(f"refused: {error}")
    assert tile == 32


def test_accepted_steps_with_outputs_take_the_kernel_that_writes_them(route):
    try:
        assert route(1, 4, accepted_steps=steps(1)) == 32
    except TookTheOtherKernel:
        pytest.fail("MTP ILP4 stops at the accepted step: the outputs after it stay unwritten")


def test_recovery_only_may_stay_where_it_was(route):
    with pytest.raises(TookTheOtherKernel):
        route(1, 4, accepted_steps=steps(1), disable_output=True)


def test_one_token_with_an_accepted_step_stays_where_it_was(route):
    """Its only step is the accepted one: there is no output after it to be left unwritten."""
    with pytest.raises(TookTheOtherKernel):
        route(1, 1, accepted_steps=steps(1))


def test_a_small_batch_without_recovery_stays_where_it_was(route):
    with pytest.raises(TookTheOtherKernel):
        route(1, 4)


@pytest.mark.parametrize("B", [3, 4, 6, 22])
def test_larger_batches_keep_their_tile(route, B):
    chosen = module._select_wide_vec_tile_v(B, 48)
    assert chosen is not None and route(B, 4, recovery_steps=2) == chosen


def test_one_token_is_refused_with_a_reason(route):
    with pytest.raises((ValueError, AssertionError), match=r"T >= 2|wide_vec"):
        route(1, 1, recovery_steps=1)
