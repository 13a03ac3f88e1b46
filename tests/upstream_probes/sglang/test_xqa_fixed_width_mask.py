"""XQA verify at the full draft width is causal, and its workspaces and query dtype are its own (sglang#32269)."""

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from xqa_backend import Bench, attended


@pytest.mark.parametrize("draft_tokens", [2, 8, 16, 17, 33])
@pytest.mark.parametrize("requests", [1, 3])
def test_each_draft_sees_itself_and_those_before(monkeypatch, draft_tokens, requests):
    bench = Bench(monkeypatch, draft_tokens=draft_tokens)
    rows = bench.eager(ForwardMode.TARGET_VERIFY, [draft_tokens] * requests)
    assert len(rows) == draft_tokens * requests
    for place, row in enumerate(rows):
        assert attended(row) == list(range(place % draft_tokens + 1))


def test_the_first_eight_mib_of_the_workspace_are_left_to_xqa_semaphores(monkeypatch):
    # The bench's workspace is one byte: what fmha_v2 may write to must begin behind the semaphores, so nothing is left.
    assert Bench(monkeypatch, draft_tokens=4).backend.fmha_v2_workspace_buffer.numel() == 0


@pytest.mark.parametrize(
    "mode", [ForwardMode.TARGET_VERIFY, ForwardMode.DRAFT_EXTEND_V2], ids=["verify", "draft-extend"]
)
def test_queries_stay_in_16_bits_with_an_fp8_cache(monkeypatch, mode):
    bench = Bench(monkeypatch, draft_tokens=4)
    bench.backend.data_type = torch.float8_e4m3fn
    dtypes, attend = [], bench.kernel.attend

    def recorded(query, *arguments):
        dtypes.append(query.dtype)
        return attend(query, *arguments)

    bench.kernel.attend = recorded
    bench.eager(mode, [4, 4])
    assert dtypes == [torch.bfloat16]
