"""QSA's sparse decode is taken on capability (12, 0) exactly, never on all of major 12 (sglang#36806)."""

import pytest
import torch
from sglang.srt.layers.attention import qwen_sparse_attn_backend as module
from sglang.srt.utils import common


@pytest.fixture
def on(monkeypatch):
    def capability(major, minor):
        monkeypatch.setattr(common, "is_cuda", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (major, minor))
        monkeypatch.setattr(module, "is_sm100_supported", lambda: False)
        common.is_sm120.cache_clear()
        module._resolve_trtllm_sparse_decode.cache_clear()
        return module._resolve_trtllm_sparse_decode()

    yield capability
    common.is_sm120.cache_clear()
    module._resolve_trtllm_sparse_decode.cache_clear()


def test_sm120_takes_it(on):
    assert on(12, 0) is not None


@pytest.mark.parametrize("capability", [(12, 1), (9, 0), (8, 9), (13, 0)])
def test_no_other_does(on, capability):
    assert on(*capability) is None
