"""The process in which `compilers.triton` compiles: a job comes in as JSON, a cubin and its needs go out."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


def main(out: Path) -> None:
    job = json.load(sys.stdin)
    function = getattr(importlib.import_module(job["module"]), job["function"])
    names = function.arg_names
    given = {**job["signature"], **dict.fromkeys(job["constexprs"], "constexpr")}
    if set(given) != set(names) or set(job["signature"]) & set(job["constexprs"]):
        raise SystemExit(f"signature and constexprs name {sorted(given)}, the kernel has {sorted(names)}")
    source = ASTSource(
        fn=function,
        signature={name: given[name] for name in names},
        constexprs=job["constexprs"],
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in job["aligned"]},
    )
    kernel = triton.compile(source, target=GPUTarget("cuda", job["capability"], 32), options=job["options"])
    out.write_bytes(kernel.asm["cubin"])
    print(json.dumps({"shared": kernel.metadata.shared, "toolchain": f"triton {triton.__version__}"}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
