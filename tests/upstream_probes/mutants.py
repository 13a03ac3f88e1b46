"""What upstream has fixed, undone in one place each: the guards beside this file must notice.

A fix is undone in the living process: the functions whose code a change of the module's text would change get that
code. Nothing on disk changes, and nothing heavy is imported twice.
"""

import importlib
import inspect
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """One fix undone: `old` stands once in `module`; `guards` are the test functions that must fail then."""

    row: str
    project: str
    module: str
    old: str
    new: str
    guards: frozenset[str]


def _mutant(row: str, module: str, old: str, new: str, *guards: str) -> Mutant:
    project = {"sglang": "sglang", "nixl_cu13": "nixl"}[module.split(".")[0]]
    return Mutant(row, project, module, old, new, frozenset(guards))


_XQA = "sglang.srt.layers.attention.trtllm_mha_backend"
_POOL = "sglang.srt.mem_cache.memory_pool"

MUTANTS = [
    _mutant(
        "xqa-fixed-width-mask",
        _XQA,
        "bits = (row + 1 - 16 * word).clamp(0, 16)",
        "bits = (draft_len + 0 * row - 16 * word).clamp(0, 16)",  # every draft sees every draft
        "test_each_draft_sees_itself_and_those_before",
    ),
    _mutant(
        "xqa-draft-extend-query-dtype",
        _XQA,
        "            and (not self.is_xqa_impl or not uses_decode_kernel)\n",
        "",
        "test_queries_stay_in_16_bits_with_an_fp8_cache",
    ),
    _mutant(
        "xqa-workspace-split",
        _XQA,
        "semaphore_bytes = _XQA_SEMAPHORE_BYTES if self.is_xqa_impl else 0",
        "semaphore_bytes = 0",
        "test_the_first_eight_mib_of_the_workspace_are_left_to_xqa_semaphores",
    ),
    _mutant(
        "fused-mrope-triton",
        "sglang.kernels.ops.attention.fused_qk_rmsnorm_rope_gate",
        "MROPE=mrope,",
        "MROPE=False,",  # only the temporal row of the positions is read
        "test_each_lane_turns_by_its_own_axis",
    ),
    _mutant(
        "yarn-cache-extension",
        "sglang.srt.layers.rotary_embedding.yarn",
        "compute_inv_freq=lambda: self._compute_inv_freq(self.scaling_factor),",
        "compute_inv_freq=lambda: self._compute_inv_freq(1.0),",  # the base formula
        "test_extended_rows_continue_the_cache",
    ),
    _mutant(
        "qsa-exact-gate",
        "sglang.srt.layers.attention.qwen_sparse_attn_backend",
        "if not (is_sm100_supported() or is_sm120()):",
        "if torch.cuda.get_device_capability()[0] != 12:",
        "test_no_other_does",
    ),
    _mutant(
        "qsa-fp8-unit-scale",
        "sglang.srt.layers.attention.qwen_sparse_attn_backend",
        "            v=pool.get_value_buffer(layer.layer_id),\n            req_to_token=",
        "            v=pool.get_value_buffer(layer.layer_id).view(torch.uint8),\n            req_to_token=",  # codes, not values
        "test_prefill_behind_a_prefix_attends_to_dequantised_rows",
    ),
    _mutant(
        "hicache-load-fence",
        "sglang.srt.managers.cache_controller",
        "        if self.load_fence_stream is not None:\n",
        "        if False:\n",
        "test_a_load_waits_for_the_stream_that_may_still_write",
    ),
    _mutant(
        "cow-ordering",
        _POOL,
        "            self.layer_transfer_counter.wait_until(last_mamba_layer - self.start_layer)\n",
        "",
        "test_copy_on_write_waits_for_the_last_mamba_layer",
    ),
    _mutant(
        "ngram-ordering",
        _POOL,
        "            self.layer_transfer_counter.wait_until(first_mamba_layer - self.start_layer)\n",
        "",
        "test_an_ngram_read_waits_for_the_first_mamba_layer",
    ),
    _mutant(
        "ple-host-pool",
        _POOL,
        "                        for sibling in self._slot_siblings\n                        for _, buffer",
        "                        for sibling in ()\n                        for _, buffer",
        "test_a_restored_slot_has_its_side_states",
        "test_side_states_are_there_before_the_first_layer_is_announced",
        "test_a_storage_page_carries_them",
    ),
    _mutant(
        "qsa-host-pool",
        "sglang.srt.mem_cache.pool_host.qsa",
        "for b in buffers\n            ],",
        "for b in buffers[:1]\n            ],",  # later layers' keys stay behind
        "test_compressed_keys_return_to_the_page_of_their_tokens",
        "test_a_storage_page_holds_every_layers_groups",
    ),
    _mutant(
        "nixl-path-device-ids",
        "sglang.srt.mem_cache.storage.nixl.nixl_registry",
        "base = self._file_devid_next\n",
        "base = 1\n",
        "test_nested_registrations_have_disjoint_ids",
        "test_concurrent_registrations_have_disjoint_ids",
    ),
    _mutant(
        "nixl-device-id-registry",
        "nixl_cu13._api",
        "        self.agent.registerMem(reg_descs, handle_list)\n",
        "        try:\n            self.agent.registerMem(reg_descs, handle_list)\n"
        "        except nixlBind.nixlBackendError:\n            pass\n",  # the refusal is lost, as if it were not there
        "test_a_live_id_is_refused_for_another_file",
    ),
]


def mutated(text: str, mutants: list[Mutant]) -> str:
    """`text` with each of `mutants` (of one module) in it.

    Raises:
        LookupError: upstream's text changed under a mutant; it has to be written anew for this release.
    """
    for mutant in mutants:
        if text.count(mutant.old) != 1:
            raise LookupError(f"{mutant.row}: {mutant.module} has {text.count(mutant.old)} × {mutant.old!r}, not 1")
        text = text.replace(mutant.old, mutant.new)
    return text


def undo(mutants: list[Mutant]) -> None:
    """Undo these fixes in this process, importing their modules where that was not done.

    Raises:
        LookupError: as `mutated`, or when a change touches no function that can be found.
    """
    for name in dict.fromkeys(mutant.module for mutant in mutants):
        module = importlib.import_module(name)
        path = module.__file__
        text = Path(path).read_text()
        old = _functions(compile(text, path, "exec"))
        new = _functions(compile(mutated(text, [mutant for mutant in mutants if mutant.module == name]), path, "exec"))
        changed = [qualname for qualname in old if _shape(old[qualname]) != _shape(new[qualname])]
        if not changed:
            raise LookupError(f"{name}: no function changes")
        for qualname in changed:
            function: Any = module
            for part in qualname.split("."):
                function = inspect.getattr_static(function, part)
            inspect.unwrap(function).__code__ = new[qualname]


def _functions(module: CodeType) -> dict[str, CodeType]:
    """Code of the module's functions and methods by qualified name, not of what is nested in them."""
    found, todo = {}, [module]
    while todo:
        for code in (const for const in todo.pop().co_consts if isinstance(const, CodeType)):
            if code.co_flags & inspect.CO_NEWLOCALS:
                found[code.co_qualname] = code
            else:
                todo.append(code)  # a class
    return {name: code for name, code in found.items() if "<" not in name}


def _shape(code: CodeType) -> tuple:
    """What code does, without the lines that it stands on."""
    consts = tuple(_shape(const) if isinstance(const, CodeType) else repr(const) for const in code.co_consts)
    return code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
