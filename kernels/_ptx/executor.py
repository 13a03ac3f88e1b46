"""Launch PTX on the CPU: real grids, blocks and warps over real tensors, every access checked, everything counted."""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sm120.kernels._ptx.encode import Program, Record, encode
from sm120.kernels._ptx.parse import PtxError, parse

FOLDER = Path(__file__).parent
SOURCES = ("engine.cpp", "machine.h", "arithmetic.h", "memory.h", "instructions.h")
SCHEDULES = {"forward": 0, "reverse": 1, "random": 2}
PERTURBATIONS = {"none": 0, "up": 1, "down": 2, "either": 3}
TENSOR_ORDERS = {"rounded once": 0, "one by one": 1, "halves, cut off": 2}


class PtxFault(RuntimeError):
    """The kernel broke a rule while running; the message names the rule, the PTX line, block, warp and lanes."""


@dataclass(frozen=True)
class Counts:
    """What a launch executed, summed over its warps."""

    instructions: Counter[str]  # warp instructions by the name of their kind
    lanes: int  # lane instructions
    partial: int  # warp instructions with a live lane missing
    global_sectors: int  # of 32 bytes, over all requests
    shared_passes: int  # over the 32 banks; a request without a conflict takes one (four for 16 bytes a lane)
    by_line: dict[int, int]  # PTX line: warp instructions

    @property
    def warp_instructions(self) -> int:
        return sum(self.instructions.values())


class _Allocation(ctypes.Structure):
    _fields_ = [
        ("begin", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("writable", ctypes.c_int32),
        ("granule", ctypes.c_int32),
        ("elements", ctypes.c_void_p),
        ("written", ctypes.c_void_p),
    ]


class _Special(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_int32), ("which", ctypes.c_int32)]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_int32 * 3),
        ("block", ctypes.c_int32 * 3),
        ("register_bytes", ctypes.c_int64),
        ("image", ctypes.c_char_p),
        ("specials", ctypes.POINTER(_Special)),
        ("special_count", ctypes.c_int64),
        ("parameters", ctypes.c_char_p),
        ("parameter_bytes", ctypes.c_int64),
        ("shared_bytes", ctypes.c_int64),
        ("shared_granule", ctypes.c_int32),
        ("allocations", ctypes.POINTER(_Allocation)),
        ("allocation_count", ctypes.c_int64),
        ("schedule", ctypes.c_int32),
        ("perturb", ctypes.c_int32),
        ("tensor_order", ctypes.c_int32),
        ("land_at_exit", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("executed", ctypes.c_void_p),
        ("lanes", ctypes.c_void_p),
        ("traffic", ctypes.c_void_p),
        ("partial", ctypes.c_void_p),
    ]


@dataclass(frozen=True)
class Buffer:
    """A tensor of a launch and what the kernel may do with it."""

    tensor: Any
    reads: bool = True  # holds values before the launch
    writes: bool = False


def reads(tensor: Any) -> Buffer:
    """An input: a store into it is a fault."""
    return Buffer(tensor)


def updates(tensor: Any) -> Buffer:
    """Holds values, and may be written."""
    return Buffer(tensor, writes=True)


def writes(tensor: Any) -> Buffer:
    """An output: a load of what the launch has not written is a fault."""
    return Buffer(tensor, reads=False, writes=True)


class Executable:
    """One kernel, decoded. Raises PtxError, naming line and instruction, for what is not known."""

    def __init__(self, ptx: str, kernel: str | None = None) -> None:
        """`kernel` is a name, or a part of one; it may be left out where the module has only one kernel."""
        kernels = parse(ptx)
        fitting = [name for name in kernels if kernel is None or kernel == name] or [
            name for name in kernels if kernel is not None and kernel in name
        ]
        if len(fitting) != 1:
            raise PtxError(f"the kernels are {sorted(kernels)}; {kernel!r} names {len(fitting)} of them")
        self.program: Program = encode(kernels[fitting[0]], lambda name: engine().ptx_find(name.encode()))
        self._text = ptx.splitlines()

    def launch(
        self,
        grid: Sequence[int],
        block: Sequence[int] | int,
        arguments: Sequence[Buffer | int | float | bytes],
        *,
        memory: Sequence[Buffer] = (),
        dynamic_shared: int = 0,
        schedule: str = "forward",
        perturb: str = "none",
        tensor_order: str = "rounded once",
        land_at_exit: bool = False,
        seed: int = 0,
    ) -> Counts:
        """Run the grid to its end, on the tensors' own memory.

        arguments      one for each parameter: a buffer passes its address, bytes a whole structure.
        memory         buffers that the kernel reaches through addresses inside a structure.
        dynamic_shared bytes of dynamic shared memory a block.
        schedule       the order of warps: "forward", "reverse", or "random" slices (by `seed`).
        perturb        moves every .approx result by the ISA's stated error: "up", "down", "either".
        tensor_order   how mma sums its products; the ISA leaves it open.
        land_at_exit   copies that nobody waits for land when their warp exits, which the ISA does not promise.

        Raises PtxFault for a broken rule and ValueError for arguments that do not fit the kernel.
        """
        kernel = self.program.kernel
        block = (block,) if isinstance(block, int) else tuple(block)
        grid, block = (*grid, 1, 1)[:3], (*block, 1, 1)[:3]
        buffers = [argument for argument in [*arguments, *memory] if isinstance(argument, Buffer)]
        allocations, kept = _allocations(buffers, self.program.global_granule)
        parameters = self._parameters(arguments)
        length = len(self.program.records)
        counters = {name: np.zeros(length, np.int64) for name in ("executed", "lanes", "traffic", "partial")}
        specials = (_Special * max(1, len(self.program.specials)))(*(_Special(*one) for one in self.program.specials))
        shared = -(-kernel.shared_bytes // 16) * 16 + dynamic_shared
        launch = _Launch(
            grid=grid,
            block=block,
            register_bytes=-(-len(self.program.image) // 64) * 64,
            image=self.program.image + bytes(64),
            specials=specials,
            special_count=len(self.program.specials),
            parameters=parameters + bytes(8),
            parameter_bytes=len(parameters),
            shared_bytes=shared,
            shared_granule=self.program.shared_granule,
            allocations=allocations,
            allocation_count=len(allocations),
            schedule=SCHEDULES[schedule],
            perturb=PERTURBATIONS[perturb],
            tensor_order=TENSOR_ORDERS[tensor_order],
            land_at_exit=land_at_exit,
            seed=seed,
            **{name: counter.ctypes.data for name, counter in counters.items()},
        )
        message = ctypes.create_string_buffer(4096)
        failed = engine().ptx_run(
            self.program.records, ctypes.c_long(length), ctypes.byref(launch), message, ctypes.c_long(4096)
        )
        del kept
        if failed:
            line, what = message.value.decode().split("|", 1)
            raise PtxFault(f"line {line}, `{self._text[int(line) - 1].strip()}`: {what}")
        counts = self._counts(**counters)
        _tally(kernel.name, counts)
        return counts

    def _parameters(self, arguments: Sequence[Buffer | int | float | bytes]) -> bytes:
        kernel = self.program.kernel
        if len(arguments) != len(kernel.parameters):
            raise ValueError(f"{kernel.name} has {len(kernel.parameters)} parameters, got {len(arguments)} arguments")
        buffer = bytearray()
        for parameter, argument in zip(kernel.parameters, arguments, strict=True):
            if isinstance(argument, Buffer):
                argument = argument.tensor.data_ptr()
            if isinstance(argument, float) or parameter.kind == "f32":
                value = np.float32(argument).tobytes()
            elif isinstance(argument, int):
                value = (argument & ((1 << 8 * parameter.bytes) - 1)).to_bytes(parameter.bytes, "little")
            else:
                value = argument
            if len(value) != parameter.bytes:
                raise ValueError(f"{parameter.name} has {parameter.bytes} bytes, got {len(value)}")
            buffer += bytes(parameter.offset - len(buffer)) + value
        return bytes(buffer)

    def _counts(self, executed: np.ndarray, lanes: np.ndarray, traffic: np.ndarray, partial: np.ndarray) -> Counts:
        instructions: Counter[str] = Counter()
        by_line: dict[int, int] = {}
        sectors = passes = 0
        for k, (name, record) in enumerate(zip(self.program.names, self.program.records, strict=True)):
            if executed[k]:
                instructions[_kind(name, record)] += int(executed[k])
                by_line[record.line] = by_line.get(record.line, 0) + int(executed[k])
            if record.flags == 1 and name != "cp.async":
                passes += int(traffic[k])
            else:
                sectors += int(traffic[k])
        return Counts(instructions, int(lanes.sum()), int(partial.sum()), sectors, passes, by_line)


def _tally(kernel: str, counts: Counts) -> None:
    """Leave a line for `sm120 ptx` in the file that SM120_PTX_LAUNCHES names."""
    path = os.environ.get("SM120_PTX_LAUNCHES")
    if path:
        row = {**vars(counts), "kernel": readable(kernel)}
        del row["by_line"]
        with open(path, "a") as file:
            file.write(json.dumps(row) + "\n")


def readable(name: str) -> str:
    """The function's own name of a mangled one: the last of its nested names (Itanium C++ ABI)."""
    if not name.startswith("_Z"):
        return name
    rest, parts = name.removeprefix("_ZN").removeprefix("_Z"), []
    while size := re.match(r"(\d+)", rest):
        begin = len(size[1])
        parts.append(rest[begin : begin + int(size[1])])
        rest = rest[begin + int(size[1]) :]
    return parts[-1] if parts else name


def _kind(name: str, record: Record) -> str:
    family = name.split(".")[0]
    if name in ("ld", "st"):
        return f"{name}.{('global', 'shared', 'param', 'generic')[record.flags]}"
    if name.startswith("cp.async"):
        return "cp.async"
    if family in (
        "mma",
        "ldmatrix",
        "stmatrix",
        "shfl",
        "vote",
        "redux",
        "bar",
        "mbarrier",
        "atom",
        "bra",
        "cvt",
        "setp",
        "selp",
    ):
        return family
    if family in ("mov", "pack", "unpack", "cvta"):
        return "mov"
    if "approx" in name or family in ("rcp", "div", "sqrt", "rem"):
        return "special"
    if family in ("ret", "exit", "griddepcontrol", "createpolicy"):
        return "other"
    return "float" if any(part in name for part in (".f32", ".bf16", ".f16")) else "integer"


def _allocations(buffers: Sequence[Buffer], granule: int) -> tuple[ctypes.Array[_Allocation], list[np.ndarray]]:
    """Buffers by address; those that share bytes become one, with a mark a byte."""
    spans: list[tuple[int, int, list[Buffer]]] = []
    for buffer in sorted((b for b in buffers if b.tensor.numel()), key=lambda b: b.tensor.data_ptr()):
        begin, end = _span(buffer.tensor)
        if spans and begin < spans[-1][1]:
            last = spans.pop()
            spans.append((last[0], max(last[1], end), [*last[2], buffer]))
        else:
            spans.append((begin, end, [buffer]))
    kept: list[np.ndarray] = []
    array = (_Allocation * len(spans))()
    for allocation, (begin, end, members) in zip(array, spans, strict=True):
        whole = len(members) == 1 and members[0].tensor.is_contiguous()
        allocation.begin, allocation.bytes, allocation.granule = begin, end - begin, granule
        allocation.writable = int(any(member.writes for member in members))
        if not whole:
            marks = np.zeros(end - begin, np.uint8)
            for member in members:
                _elements(marks, begin, member.tensor)[...] |= 3 if member.writes else 1
            kept.append(marks)
            allocation.elements = marks.ctypes.data
        if allocation.writable and not all(member.reads for member in members):
            written = np.zeros(end - begin, np.uint8)
            for member in members:
                if member.reads:
                    _elements(written, begin, member.tensor)[...] = 1
            kept.append(written)
            allocation.written = written.ctypes.data
    return array, kept


def _span(tensor: Any) -> tuple[int, int]:
    begin = tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()


def _elements(marks: np.ndarray, begin: int, tensor: Any) -> np.ndarray:
    """The bytes of `marks`, which begin at address `begin`, that are elements of `tensor`."""
    size = tensor.element_size()
    strides = [stride * size for stride in tensor.stride()] + [1]
    view = marks[tensor.data_ptr() - begin :]
    return np.lib.stride_tricks.as_strided(view, [*tensor.shape, size], strides)


@functools.cache
def engine() -> ctypes.CDLL:
    """The engine, compiled for this processor once and kept by the content of its sources."""
    from sm120.kernels._kit.compile_cache import compile_once

    folder = Path(tempfile.mkdtemp(prefix="sm120-ptx-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "engine.so"
    flags = ["-std=c++20", "-O3", "-march=native", "-fPIC", "-shared", "-fno-strict-aliasing", "-fno-math-errno"]
    # Every rounding here is one that the PTX asks for.
    flags += ["-ffp-contract=off", "-fno-trapping-math", f"-DHOST_{_processor()}"]
    command = [os.environ.get("CXX", "g++"), *flags, str(FOLDER / "engine.cpp")]

    def run(words: list[str]) -> None:
        done = subprocess.run(words, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise RuntimeError(f"the PTX engine does not compile:\n{done.stderr}")

    compile_once(command, [FOLDER / name for name in SOURCES], library, run, scratch=None)
    loaded = ctypes.CDLL(str(library))
    loaded.ptx_name.restype = ctypes.c_char_p
    for which, kind in enumerate((Record, _Launch, _Allocation)):
        if loaded.ptx_layout(which) != ctypes.sizeof(kind):
            raise RuntimeError(f"{kind.__name__} is not laid out as the engine's: {loaded.ptx_layout(which)} bytes")
    return loaded


def _processor() -> str:
    """What -march=native depends on, as a word: two machines may share the kept libraries."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = platform.machine()
    features = re.search(r"^(flags|Features)\s*:.*$", text, re.M)
    return hashlib.sha256((features[0] if features else text).encode()).hexdigest()[:12]
