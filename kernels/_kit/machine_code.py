"""What a cubin says about its kernels: registers, spills, shared memory, access widths, and what its loops are made of.

Read with the cuobjdump and nvdisasm that ship inside Triton: no toolkit is needed, and one pair of tools reads every
compiler's output. Instruction counts are static: predicated instructions count, trip counts do not.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from sm120.kernels._kit.compilers import Cubin

# Reserved by the driver in every block that uses shared memory at all, and counted by cuobjdump.
RESERVED_SHARED_BYTES = 1024

# First match wins.
_CLASSES = (
    ("tensor", r"(HMMA|QMMA|IMMA|OMMA|DMMA)"),
    ("spill", r"(LDL|STL)"),
    ("ldgsts", r"(LDGSTS|UBLKCP|UTMALDG)"),
    ("ldg", r"LDG"),
    ("stg", r"STG"),
    ("lds", r"(LDS|LDSM)"),
    ("sts", r"(STS|STSM)"),
    ("convert", r"(F2F|F2FP|I2F|I2FP|F2I|I2I)"),
    ("mufu", r"MUFU"),
    ("shuffle", r"(SHFL|VOTE|REDUX|MATCH)"),
    ("barrier", r"(BAR|WARPSYNC|BSYNC|BSSY|DEPBAR)"),
    ("fp", r"(FADD|FMUL|FFMA|FMNMX|FSEL|FSETP|HADD2|HMUL2|HFMA2|DADD|DMUL|DFMA)"),
    ("branch", r"(BRA|BRX|EXIT|CALL|RET|NOP)"),
    ("move", r"(MOV|UMOV|S2R|S2UR|LDC|LDCU|CS2R|R2UR|PRMT|SEL)"),
)
_INSTRUCTION = re.compile(r"/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")
_LABEL = re.compile(r"^(\.L_x_\d+):")


@dataclass
class Instruction:
    """One SASS instruction: its full mnemonic ("LDG.E.128") and its operands."""

    mnemonic: str
    operands: str

    @property
    def kind(self) -> str:
        """The class that `KernelCode.histogram` counts it in; integer arithmetic is what no pattern matches."""
        opcode = self.mnemonic.split(".")[0]
        return next((name for name, pattern in _CLASSES if re.fullmatch(pattern, opcode)), "int")

    @property
    def access_bytes(self) -> int:
        """Bytes a lane moves, for loads and stores; 0 for everything else."""
        if not re.match(r"(LDG|STG|LDS|STS|LDL|STL|LDGSTS)(\.|$)", self.mnemonic):
            return 0
        parts = self.mnemonic.split(".")
        for width in ("128", "64"):
            if width in parts or f"B{width}" in parts:
                return int(width) // 8
        return 1 if {"U8", "S8"} & set(parts) else 2 if {"U16", "S16"} & set(parts) else 4


@dataclass
class KernelCode:
    """Resources and instructions of one kernel."""

    name: str
    registers: int
    stack_bytes: int
    local_bytes: int
    shared_bytes: int
    instructions: list[Instruction] = field(default_factory=list)
    loops: list[list[Instruction]] = field(default_factory=list)

    @property
    def spills(self) -> int:
        """How many instructions touch local memory, where spilled registers and indexed local arrays live."""
        return sum(instruction.kind == "spill" for instruction in self.instructions)

    @property
    def widths(self) -> dict[str, int]:
        """How many global accesses there are of each width, as {"LDG.16": 2, "STG.4": 1}."""
        counts: Counter[str] = Counter()
        for instruction in self.instructions:
            if instruction.kind in ("ldg", "stg", "ldgsts") and instruction.access_bytes:
                counts[f"{instruction.mnemonic.split('.')[0]}.{instruction.access_bytes}"] += 1
        return dict(sorted(counts.items()))

    @property
    def histogram(self) -> dict[str, int]:
        """Instruction counts by class."""
        return histogram(self.instructions)


def histogram(instructions: list[Instruction]) -> dict[str, int]:
    """Instruction counts by class, of a kernel or of one of its loops."""
    return dict(sorted(Counter(instruction.kind for instruction in instructions).items()))


def inspect(cubin: Cubin) -> dict[str, KernelCode]:
    """Every kernel of a cubin by its (mangled) name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code.cubin"
        path.write_bytes(cubin.data)
        kernels = _resources(_run("cuobjdump", "--dump-resource-usage", str(path)))
        _disassemble(_run("nvdisasm", "-c", str(path)), kernels)
    return kernels


def only(cubin: Cubin) -> KernelCode:
    """The one kernel of a cubin; raises ValueError when there are several."""
    kernels = inspect(cubin)
    if len(kernels) != 1:
        raise ValueError(f"cubin: has kernels {sorted(kernels)}, needs exactly one")
    return next(iter(kernels.values()))


def _resources(text: str) -> dict[str, KernelCode]:
    kernels = {}
    for name, usage in re.findall(r"Function (\S+):\s*\n\s*(REG:.*)", text):
        value = {key: int(number) for key, number in re.findall(r"([A-Z]+):(\d+)", usage)}
        shared = max(0, value["SHARED"] - RESERVED_SHARED_BYTES)
        kernels[name] = KernelCode(name, value["REG"], value["STACK"], value["LOCAL"], shared)
    if not kernels:
        raise ValueError("cubin: holds no kernel")
    return kernels


def _disassemble(text: str, kernels: dict[str, KernelCode]) -> None:
    current: KernelCode | None = None
    labels: dict[str, int] = {}
    for line in text.splitlines():
        section = re.match(r"\s*\.section\s+\.text\.(\S+?),", line)
        if section:
            current, labels = kernels.get(section[1]), {}
            continue
        label = _LABEL.match(line)
        if label and current is not None:
            labels[label[1]] = len(current.instructions)
            continue
        found = _INSTRUCTION.search(line)
        if not found or current is None:
            continue
        instruction = Instruction(found[2], found[3])
        target = re.search(r"`\((\.L_x_\d+)\)", instruction.operands)
        if instruction.mnemonic.startswith("BRA") and target and target[1] in labels:
            begin = labels[target[1]]
            if begin == len(current.instructions):
                current = None  # the branch to itself that ends every kernel; only padding follows
                continue
            current.loops.append([*current.instructions[begin:], instruction])
        current.instructions.append(instruction)


def _run(tool: str, *arguments: str) -> str:
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / tool
    done = subprocess.run([str(path), *arguments], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"{tool} failed: {done.stderr or done.stdout}")
    return done.stdout
