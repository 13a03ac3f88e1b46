"""What upstream has fixed, undone in one place each: the guards beside this file must notice.

Read twice: by the tests, for the table, and through PROOF_EXTRA by the process that runs the guards. There the modules
that belong to the ledger rows named in MUTANTS are imported with their text changed; nothing on disk is.
"""

import linecache
import os
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
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


class _Loader(SourceFileLoader):
    mutants: list[Mutant]

    def get_code(self, fullname: str) -> Any:
        text = mutated(self.get_data(self.path).decode(), self.mutants)
        # Triton compiles what `inspect` shows.
        linecache.cache[self.path] = (len(text), None, text.splitlines(keepends=True), self.path)
        return compile(text, self.path, "exec", dont_inherit=True)


class _Finder:
    """Finds the modules of the chosen mutants, and no others."""

    def __init__(self, chosen: list[Mutant]) -> None:
        self.chosen = chosen

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        mutants = [mutant for mutant in self.chosen if mutant.module == name]
        spec = PathFinder.find_spec(name, path, target) if mutants else None
        if spec is None or spec.origin is None:
            return None
        loader = _Loader(name, spec.origin)
        loader.mutants = mutants
        spec.loader = loader
        return spec


if __name__.startswith("proof_extra"):
    names = os.environ["MUTANTS"].split(",")
    sys.meta_path.insert(0, _Finder([mutant for mutant in MUTANTS if mutant.row in names]))
