"""The process in which `triton_launch` compiles: one job a line comes in as JSON, PTX goes out the same way."""

from __future__ import annotations

import functools
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource, compile
from triton.runtime.jit import native_specialize_impl


class _Tensor:
    """What Triton looks at when it specialises a pointer."""

    def __init__(self, dtype: str, aligned: bool) -> None:
        self.dtype, self._address = getattr(torch, dtype), 16 if aligned else 4

    def data_ptr(self) -> int:
        return self._address


@functools.cache
def _module(file: str, stand_ins: str) -> Any:
    from sm120.kernels._ptx.triton_launch import load

    return load(Path(file), json.loads(stand_ins))


def translate(job: dict[str, Any]) -> dict[str, Any]:
    """{"ptx", "shared", "names"} of a job {"file", "function", "arguments", "options"}, specialised as a launch is."""
    function = getattr(_module(job["file"], json.dumps(job["stand_ins"])), job["function"])
    signature, constexprs, attributes = {}, {}, {}
    for parameter in function.params:
        value = job["arguments"][parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name], constexprs[(parameter.num,)] = "constexpr", value
            continue
        if isinstance(value, dict):
            value = _Tensor(value["tensor"], value["aligned"])
        specialise, align = not parameter.do_not_specialize, not parameter.do_not_specialize_on_alignment
        kind, key = native_specialize_impl(CUDABackend, value, parameter.is_const, specialise, align)
        signature[parameter.name] = kind
        if kind == "constexpr":
            constexprs[(parameter.num,)] = key
        elif key:
            attributes[(parameter.num,)] = CUDABackend.parse_attr(key)
    source = ASTSource(function, signature, constexprs, attributes)
    kernel = compile(source, target=GPUTarget("cuda", 120, 32), options=job["options"])
    names = [name for name, kind in signature.items() if kind != "constexpr"]
    return {"ptx": kernel.asm["ptx"], "shared": kernel.metadata.shared, "names": names}


def main() -> None:
    replies, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        try:
            reply = translate(json.loads(line))
        except Exception:
            reply = {"error": traceback.format_exc()}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
