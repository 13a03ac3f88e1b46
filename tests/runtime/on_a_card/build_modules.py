"""Build JIT modules as on an SM120 device, without one, and print what each has become.

    python build_modules.py NAME…      prints a JSON object: name to the path of the library

Run by `bin/with-runtime python` of a cuda runtime, with CPU_LAYER as for resolve.py; nothing is launched.
"""

import json
import sys

import torch
from resolve import show_the_card


def xqa() -> str:
    """What verification of the 27B runs on: FlashInfer's ninja, eight rows, FP8 pages of 64."""
    from flashinfer.jit.xqa import gen_xqa_module

    fp8, half = torch.float8_e4m3fn, torch.bfloat16
    return flashinfer(gen_xqa_module(half, fp8, 64, 256, 6, False, half, 8))


def page() -> str:
    """The paged cache's own kernels, of both profiles."""
    from flashinfer.jit.page import gen_page_module

    return flashinfer(gen_page_module())


def qk_norm_mrope() -> str:
    """Ours, through SGLang's own ninja, for both profiles' head dimension."""
    from sglang.kernels.jit.utils.compile import cache
    from sglang.kernels.ops.attention.fused_qk_norm_mrope import _jit_fused_qk_norm_mrope_module

    _jit_fused_qk_norm_mrope_module(torch.bfloat16, 256, 64, True, True)
    return str(next(cache.cache_root().rglob("*qk_norm_mrope*.so")))


def flashinfer(spec) -> str:
    spec.build()
    return str(spec.jit_library_path)


if __name__ == "__main__":
    show_the_card()
    print(json.dumps({name: globals()[name]() for name in sys.argv[1:]}))
