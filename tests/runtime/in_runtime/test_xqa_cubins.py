"""What FlashInfer's XQA modules compile to for sm_120a does not depend on the draft length."""

import hashlib
import shutil
import subprocess

import pytest
import torch
from flashinfer.jit import xqa as xqa_jit


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs the CUDA toolkit's nvcc")
def test_draft_length_does_not_change_the_cubin(monkeypatch, tmp_path):
    """8 and 9 drafts: what each compiled to before it left the flags, and what both get now, are the same bytes."""
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "12.0a")
    xqa_jit._has_sm90_target.cache_clear()
    # 3 * 9 rows fit the SM90 specialization, so that both lengths were in the flags
    specs = [
        xqa_jit.gen_xqa_module(torch.bfloat16, torch.float8_e4m3fn, 64, 256, 3, False, torch.bfloat16, q)
        for q in (8, 9)
    ]
    xqa_jit._has_sm90_target.cache_clear()
    assert specs[0].name == specs[1].name
    assert specs[0].extra_cuda_cflags == specs[1].extra_cuda_cflags
    [build] = [entry for entry in specs[0].get_compile_commands() if str(entry["file"]).endswith("/xqa/mha.cu")]

    def cubin_of(*extra: str, page_size: int = 64) -> str:
        output = tmp_path / "mha.cubin"
        words = build["command"].split()
        words[words.index("-o") + 1] = str(output)
        words[words.index("-c")] = "-cubin"
        words[words.index("-DTOKENS_PER_PAGE=64")] = f"-DTOKENS_PER_PAGE={page_size}"
        subprocess.run([*words, *extra], check=True, timeout=500, cwd=tmp_path)
        return hashlib.sha256(output.read_bytes()).hexdigest()

    now = cubin_of()
    assert cubin_of("-DSPEC_Q_SEQ_LEN=8") == now
    assert cubin_of("-DSPEC_Q_SEQ_LEN=9") == now
    # The comparison can fail
    assert cubin_of(page_size=32) != now
