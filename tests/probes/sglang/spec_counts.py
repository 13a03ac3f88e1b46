"""Runs upstream's accounting of speculative steps: batch results in, per-request numbers and the log line out."""

from __future__ import annotations

import logging
from array import array
from dataclasses import dataclass
from types import SimpleNamespace
from unittest import mock

import torch
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.scheduler_components import batch_result_processor, metrics_reporter
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm


@dataclass
class Step:
    """One verify: the `width` of its rows (drafts + 1) and, for every request in it, the tokens it accepted."""

    width: int
    accepted: dict[str, int]
    cap_lens: dict[str, int] | None = None
    compact: bool = False
    # What a registered algorithm's result says instead of a width: how wide its rows of output are, and how many of the
    # tokens in one are no drafts.
    stride_only: bool = False
    num_non_draft: int = 1


class Accounting:
    """The scheduler's result processor and the tokenizer's summary, without anything between."""

    def __init__(self, names: list[str], algorithm: SpeculativeAlgorithm = SpeculativeAlgorithm.EAGLE):
        self.algorithm = algorithm
        self.reqs = {name: Req(name, "", array("q", [1]), SamplingParams()) for name in names}
        for req in self.reqs.values():
            req.kv = SimpleNamespace(kv_committed_len=0)
        self.reporter = object.__new__(metrics_reporter.SchedulerMetricsReporter)
        self.reporter.__dict__.update(
            enable_mfu_metrics=False,
            current_scheduler_metrics_enabled=False,
            is_stats_logging_rank=True,
            scheduler_status_logger=None,
            decode_log_interval=1,
            last_decode_stats_tic=0.0,
            _graph_backend_label="graph",
            scheduler=mock.MagicMock(
                spec_algorithm=algorithm, disaggregation_mode=DisaggregationMode.NULL, enable_fpm=False
            ),
        )
        self.reporter.reset_metrics()

    def take(self, step: Step) -> None:
        """Process one decode result as `process_batch_result_decode` does, up to the metrics."""
        names = list(step.accepted)
        result = GenerationBatchResult(
            next_token_ids=torch.zeros(len(names) * step.width, dtype=torch.int64),
            accept_lens=torch.tensor([step.accepted[name] + step.num_non_draft for name in names]),
            cap_lens=None if step.cap_lens is None else torch.tensor([step.cap_lens[name] for name in names]),
            num_non_draft_tokens_per_req=step.num_non_draft,
            **{"speculative_output_stride" if step.stride_only else "speculative_num_draft_tokens": step.width},
        )
        if step.compact:
            # The pristine release has no word for it: its result does not say which rows were verified.
            result.verified_cap_lens_only = True
        batch = ScheduleBatch(reqs=[self.reqs[name] for name in names])
        batch.spec_algorithm = self.algorithm
        batch.has_grammar = False
        processor = SimpleNamespace(
            metrics_reporter=self.reporter,
            model_worker=mock.MagicMock(),
            advance_grammar_fsm=lambda *_: None,
        )
        batch_result_processor.SchedulerBatchResultProcessor._resolve_spec_v2_tokens(processor, result, batch)
        counts = {
            "num_accept_tokens": result.get_num_generated_tokens(len(names)),
            "num_block_accept_tokens": result.num_block_accept_tokens,
            "num_cap_tokens": result.num_cap_tokens,
        }
        if hasattr(result, "num_proposed_drafts"):
            counts["num_proposed_drafts"] = result.num_proposed_drafts
        self.reporter.update_spec_metrics(len(names), result.num_correct_drafts, **counts)

    def summary(self, name: str) -> dict:
        """`meta_info` of one request."""
        req = self.reqs[name]
        received = SimpleNamespace(
            spec_verify_ct=[req.spec_verify_ct],
            spec_num_correct_drafts=[req.spec_num_correct_drafts],
            spec_num_proposed_drafts=[getattr(req, "spec_num_proposed_drafts", None)],
            spec_num_cap_tokens=[req.spec_num_cap_tokens],
            spec_num_block_accept_tokens=[req.spec_num_block_accept_tokens],
            spec_correct_drafts_histogram=[req.spec_correct_drafts_histogram],
            spec_cap_lens_histogram=[req.spec_cap_lens_histogram],
            completion_tokens=[req.spec_verify_ct + req.spec_num_correct_drafts],
        )
        meta_info: dict = {}
        TokenizerManager._calculate_spec_decoding_metrics(mock.MagicMock(), meta_info, received, 0)
        return meta_info

    def logged_rate(self) -> float:
        """The accept rate of the decode log line since the last one, to its two decimals."""
        self.reporter.forward_ct_decode = 1
        self.reporter.num_generated_tokens = 0
        with mock.patch.object(metrics_reporter.logger, "info") as info:
            metrics_reporter.logger.setLevel(logging.INFO)
            self.reporter.report_decode_stats(False, SimpleNamespace(reqs=[], forward_iter=1))
        line = info.call_args.args[0]
        return float(line.split("accept rate: ")[1].split(",")[0])
