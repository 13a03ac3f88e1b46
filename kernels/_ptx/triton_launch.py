"""Triton launches, compiled for sm_120a and run as PTX: the shipped launcher picks grid, tile, strides and warps itself."""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from sm120.kernels._ptx.executor import Counts, Executable, updates

OPTIONS = {"num_warps": 4, "num_stages": 3, "launch_pdl": False}
# What a file of an installed package imports and is too much to import here: module, function, and what it returns.
StandIns = dict[str, dict[str, Any]]
_stand_ins: dict[str, StandIns] = {}


@dataclass
class Launched:
    """The launches of a block, in order: a kernel's name and what it executed."""

    launches: list[tuple[str, Counts]] = field(default_factory=list)


@contextmanager
def triton_as_ptx(**choices: Any) -> Iterator[Launched]:
    """Until the block ends, a launch of an interpreted Triton kernel runs its PTX. `choices` as for Executable.launch.

    Raises RuntimeError where Triton is not interpreted: then the launch would go to a driver.
    """
    import triton

    if not triton.knobs.runtime.interpret:
        raise RuntimeError("triton_as_ptx: set TRITON_INTERPRET=1 before Triton is imported")
    from triton.runtime import interpreter

    launched = Launched()

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        launched.launches.append((self.fn.__name__, _launch(self.fn, self.grid, args, kwargs, choices)))

    with mock.patch.object(interpreter.GridExecutor, "__call__", call):
        yield launched


def load(file: Path, stand_ins: StandIns) -> types.ModuleType:
    """A Python file of kernels and their launcher, such as upstream's, with functions that return constants beside it."""
    made: dict[str, types.ModuleType] = {}
    for name, functions in stand_ins.items():
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            made.setdefault(".".join(parts[:count]), types.ModuleType(".".join(parts[:count])))
        for function, value in functions.items():
            setattr(made[name], function, lambda *_, value=value, **__: value)
    spec = importlib.util.spec_from_file_location(f"beside_stand_ins_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with mock.patch.dict(sys.modules, made):
        spec.loader.exec_module(module)
    _stand_ins[str(file)] = stand_ins
    return module


def _launch(fn: Callable, grid: Any, args: tuple, kwargs: dict[str, Any], choices: dict[str, Any]) -> Counts:
    options = {name: kwargs.pop(name, default) for name, default in OPTIONS.items()}
    kwargs.pop("warmup", None)
    bound = inspect.signature(fn).bind(*args, **kwargs)
    bound.apply_defaults()
    values = dict(bound.arguments)
    job = {
        "file": inspect.getsourcefile(fn),
        "function": fn.__name__,
        "arguments": {name: _described(value) for name, value in values.items()},
        "options": options,
        "stand_ins": _stand_ins.get(str(inspect.getsourcefile(fn)), {}),
    }
    executable, shared, names = _compiled(json.dumps(job, sort_keys=True))
    size = tuple(grid(values)) if callable(grid) else tuple(grid)
    arguments = [updates(values[name]) if hasattr(values[name], "data_ptr") else values[name] for name in names]
    # Triton's two scratch pointers come last; nothing here uses them.
    arguments += [0] * (len(executable.program.kernel.parameters) - len(arguments))
    if 0 in size:
        raise ValueError(f"{fn.__name__} is launched with an empty grid {size}")
    return executable.launch(size, 32 * options["num_warps"], arguments, dynamic_shared=shared, **choices)


def _described(value: Any) -> Any:
    """An argument as far as Triton specialises on it."""
    if hasattr(value, "data_ptr"):
        return {"tensor": str(value.dtype).removeprefix("torch."), "aligned": value.data_ptr() % 16 == 0}
    return value


@functools.cache
def _compiled(job: str) -> tuple[Executable, int, list[str]]:
    reply = compile_triton(job)
    return Executable(reply["ptx"]), reply["shared"], reply["names"]


def compile_triton(job: str) -> dict[str, Any]:
    """PTX, bytes of shared memory and names of the arguments that are left, of a job as `triton_worker` reads it.

    Kept by content in `build/compiled`. Raises RuntimeError with Triton's words.
    """
    from sm120.kernels._kit.compile_cache import ROOT

    described = json.loads(job)
    content = Path(described["file"]).read_bytes() + _worker_file().read_bytes() + _version().encode()
    key = hashlib.sha256(content + json.dumps({**described, "file": Path(described["file"]).name}).encode()).hexdigest()
    kept = ROOT / "build" / "compiled" / f"{key[:40]}.ptx.json"
    if kept.is_file():
        return json.loads(kept.read_text())
    worker = _worker()
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(job + "\n")
    worker.stdin.flush()
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(f"{described['function']}: the process that compiles has ended with {worker.poll()}")
    reply: dict[str, Any] = json.loads(line)
    if "error" in reply:
        raise RuntimeError(f"{described['function']} does not compile for sm_120a:\n{reply['error']}")
    if kept.parent.parent.is_dir():
        kept.parent.mkdir(exist_ok=True)
        aside = kept.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(reply))
        aside.replace(kept)
    return reply


@functools.cache
def _version() -> str:
    import triton

    return str(triton.__version__)


def _worker_file() -> Path:
    return Path(__file__).parent / "triton_worker.py"


@functools.cache
def _worker() -> subprocess.Popen[str]:
    """A process in which Triton compiles: in this one it interprets."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_DEFAULT_FP_FUSION"] = "1"
    process = subprocess.Popen(
        [sys.executable, "-m", "sm120.kernels._ptx.triton_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    atexit.register(process.kill)
    return process
