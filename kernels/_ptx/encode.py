"""Decode a parsed kernel into the engine's program: handlers by name, operands as places in a warp's register file.

Immediates, special registers and addresses of variables become registers that are filled before a warp starts, so an
instruction knows nothing but registers. An opcode, modifier or operand that is not known is refused by name.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass

from sm120.kernels._ptx.parse import SIZES, Instruction, Kernel, PtxError

LANES, OPERANDS = 32, 16
SHARED_BEGIN = 1024
SPACES = {"global": 0, "shared": 1, "param": 2, "": 3}
AXES = "xyz"
TYPES = SIZES | {"bf16": 2, "f32x2": 8, "bf16x2": 4, "f16x2": 4}
SPECIALS = {
    **{f"%{name}.{axis}": 3 * k + AXES.index(axis) for k, name in enumerate(("tid", "ntid", "ctaid", "nctaid")) for axis in AXES},
    "%laneid": 12,
}  # fmt: skip
# Newer forms take another operand: what a handler would not look at must not be there.
OPERAND_COUNTS = {
    **dict.fromkeys(("mov", "cvta", "neg", "abs", "not", "popc", "clz", "ex2", "lg2", "rsqrt", "sqrt", "rcp"), (2,)),
    **dict.fromkeys(("add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shl", "shr", "setp"), (3,)),
    **dict.fromkeys(("mad", "fma", "bfe", "selp", "min3", "max3"), (4,)),
    "shfl": (5, 6),
    **dict.fromkeys(("vote", "redux"), (3,)),
}
# Change where data is cached, who else may see it when, or how a scheduler is advised; never what a lane computes here.
NO_RESULT = re.compile(
    r"\.(nc|ca|cg|cs|lu|cv|wb|wt|weak|relaxed|release|acquire|cta|gpu|sys|volatile|uni|aligned|L1::\w+|L2::[\w:]+|cta::\w+)(?=\.|$)"
)


class Record(ctypes.Structure):
    """`Instruction` of machine.h."""

    _fields_ = [
        ("handler", ctypes.c_int32),
        ("guard", ctypes.c_int32),
        ("guard_negated", ctypes.c_int32),
        ("line", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("operand", ctypes.c_int32 * OPERANDS),
        ("width", ctypes.c_int32 * OPERANDS),
        ("immediate", ctypes.c_int64),
        ("bytes", ctypes.c_int32),
        ("elements", ctypes.c_int32),
        ("is_signed", ctypes.c_int32),
        ("flags", ctypes.c_int32),
    ]


@dataclass
class Program:
    """A kernel that can run. `image` is a warp's register file before it starts."""

    kernel: Kernel
    records: ctypes.Array[Record]
    image: bytes
    specials: list[tuple[int, int]]
    names: list[str]
    shared_granule: int
    global_granule: int


def encode(kernel: Kernel, find: Callable[[str], int]) -> Program:
    """`find` gives the engine's handler of a name, or -1. Raises PtxError naming an instruction that is not known."""
    return _Encoder(kernel, find).program()


class _Encoder:
    def __init__(self, kernel: Kernel, find: Callable[[str], int]) -> None:
        self.kernel, self.find = kernel, find
        self.places: dict[str, tuple[int, int]] = {}
        self.size = 0
        self.constants: dict[tuple[bytes, int], int] = {}
        self.fills: list[tuple[int, bytes]] = []
        self.specials: list[tuple[int, int]] = []
        for name, width in kernel.registers.items():
            self.places[name] = (self._allot(width), width)

    def _allot(self, width: int) -> int:
        place = self.size
        self.size += max(64, width * LANES)
        return place

    def program(self) -> Program:
        instructions = self.kernel.instructions
        records = (Record * len(instructions))()
        names = []
        for record, instruction in zip(records, instructions, strict=True):
            names.append(self._encode(record, instruction))
        image = bytearray(b"\xff" * self.size)
        for place, lane in self.fills:
            image[place : place + LANES * len(lane)] = lane * LANES
        stores = {"shared": 4, "global": 4}
        for name, instruction, record in zip(names, instructions, records, strict=True):
            if name in ("st", "ld", "cp.async", "stmatrix", "ldmatrix", "stmatrix.trans", "ldmatrix.trans"):
                for space in ("shared", "global"):
                    if space in instruction.opcode or record.flags == SPACES[""]:
                        stores[space] = min(stores[space], record.bytes or 4)
        return Program(self.kernel, records, bytes(image), self.specials, names, stores["shared"], stores["global"])

    # ---- operands ----

    def _constant(self, value: bytes) -> tuple[int, int]:
        width = len(value)
        if (value, width) not in self.constants:
            place = self._allot(width)
            self.constants[value, width] = place
            self.fills.append((place, value))
        return self.constants[value, width], width

    def _operand(self, line: int, text: str, width: int) -> tuple[int, int]:
        """The place and the width of a register, or of a constant `width` bytes wide."""
        if text in self.places:
            return self.places[text]
        if text == "_":  # a part that nobody wants
            return self._allot(width), width
        if text in SPECIALS:
            place = self._allot(4)
            self.specials.append((place, SPECIALS[text]))
            self.places[text] = (place, 4)
            return place, 4
        if text in self.kernel.shared:
            return self._constant((SHARED_BEGIN + self.kernel.shared[text]).to_bytes(width, "little"))
        if text in self.kernel.dynamic:
            begin = -(-self.kernel.shared_bytes // 16) * 16
            return self._constant((SHARED_BEGIN + begin).to_bytes(width, "little"))
        for parameter in self.kernel.parameters:
            if parameter.name == text:
                return self._constant(parameter.offset.to_bytes(width, "little"))
        if found := re.fullmatch(r"0[fF]([0-9A-Fa-f]{8})", text):
            return self._constant(bytes.fromhex(found[1])[::-1])
        if found := re.fullmatch(r"0[dD]([0-9A-Fa-f]{16})", text):
            return self._constant(bytes.fromhex(found[1])[::-1])
        if text in ("true", "false"):
            return self._constant((b"\xff" if text == "true" else b"\x00") * 4)
        if re.fullmatch(r"-?(0[xX][0-9A-Fa-f]+|\d+)U?", text):
            value = int(text.rstrip("U"), 0)
            return self._constant((value & ((1 << 8 * width) - 1)).to_bytes(width, "little"))
        raise PtxError(f"line {line}: the operand {text!r} is not known")

    def _address(self, line: int, text: str) -> tuple[tuple[int, int], int]:
        found = re.fullmatch(r"\[([%\w$.']+?)(?:\+(-?\w+))?\]", text)
        if found is None:
            raise PtxError(f"line {line}: the address {text!r} is not known")
        return self._operand(line, found[1], 8), int(found[2] or "0", 0)

    def _set(self, record: Record, places: list[tuple[int, int]]) -> None:
        if len(places) > OPERANDS:
            raise PtxError(f"line {record.line}: {len(places)} operands")
        record.count = len(places)
        for k, (place, width) in enumerate(places):
            record.operand[k], record.width[k] = place, width

    # ---- instructions ----

    def _encode(self, record: Record, instruction: Instruction) -> str:
        line = record.line = instruction.line
        record.guard = -1
        if instruction.guard is not None:
            record.guard = self._operand(line, instruction.guard, 4)[0]
            record.guard_negated = int(instruction.negated)
        # A memory instruction has a method of its own; what is left names registers from left to right.
        family = instruction.opcode.split(".")[0]
        special = getattr(self, f"_{family}", None)
        name = special(record, instruction) if special is not None else self._plain(record, instruction)
        record.handler = self.find(name)
        if record.handler < 0:
            raise PtxError(f"line {line}: the instruction {instruction.opcode!r} is not known")
        return name

    def _plain(self, record: Record, instruction: Instruction, widths: list[int] | None = None) -> str:
        opcode = NO_RESULT.sub("", instruction.opcode)
        opcode = re.sub(r"^(add|sub|mul)\.rn\.(ftz\.)?f32$", r"\1.\2f32", opcode)
        opcode = re.sub(r"^(add|sub|mul)\.rn\.f32x2$", r"\1.f32x2", opcode)
        opcode = re.sub(r"^(add|sub|mul\.lo|mad\.lo)\.[su](16|32|64)$", r"\1.b\2", opcode)
        opcode = re.sub(r"^(mov|selp)\.[suf](16|32|64)$", r"\1.b\2", opcode)
        opcode = re.sub(r"^setp\.(eq|ne|lt|le|gt|ge)\.b", r"setp.\1.u", opcode)
        opcode = re.sub(r"^griddepcontrol\..*", "griddepcontrol", opcode)
        opcode = re.sub(r"^createpolicy\..*", "createpolicy", opcode)
        opcode = opcode.replace("mov.pred", "mov.b32")
        kinds = [part for part in opcode.split(".") if part in TYPES]
        natural = TYPES[kinds[-1]] if kinds else 4
        places = []
        for k, operand in enumerate(instruction.operands):
            if isinstance(operand, tuple):
                raise PtxError(f"line {record.line}: {instruction.opcode!r} with a vector is not known")
            texts = operand.split("|") if k == 0 else [operand]
            for text in texts:
                places.append(self._operand(record.line, text, natural if widths is None else widths[k]))
        self._set(record, places)
        if opcode in ("min.f32", "max.f32") and len(places) == 4:
            opcode = opcode.replace(".", "3.")
        pair = opcode.startswith("cvt") and opcode.endswith("x2.f32")
        wanted = (3 if pair else 2,) if opcode.startswith("cvt.") else OPERAND_COUNTS.get(opcode.split(".")[0])
        if wanted is not None and len(places) not in wanted:
            raise PtxError(f"line {record.line}: {instruction.opcode!r} with {len(places)} operands is not known")
        self._check_widths(record, opcode, kinds)
        return opcode

    def _check_widths(self, record: Record, opcode: str, kinds: list[str]) -> None:
        """A register may be wider than the type only where a handler knows it; nothing here does."""
        family = opcode.split(".")[0]
        if family not in ("add", "sub", "mul", "mad", "fma", "min", "max", "and", "or", "xor", "not", "neg", "cvt"):
            return
        if (
            not kinds
            or "wide" in opcode
            or opcode.endswith(("bf16x2.f32", "f16x2.f32", "e4m3x2", "rn.f32.bf16", "rn.f32.f16"))
        ):
            return
        expected = [TYPES[kinds[0]], *[TYPES[kinds[-1]]] * (record.count - 1)]
        given = [record.width[k] for k in range(record.count)]
        if given != expected:
            raise PtxError(f"line {record.line}: {opcode!r} with registers of {given} bytes is not known")

    def _mad(self, record: Record, instruction: Instruction) -> str:
        if ".wide." not in instruction.opcode:
            return self._plain(record, instruction)
        narrow = SIZES[instruction.opcode.split(".")[-1]]
        return self._plain(record, instruction, [2 * narrow, narrow, narrow, 2 * narrow])

    def _shift(self, record: Record, instruction: Instruction) -> str:
        width = SIZES[instruction.opcode.split(".")[-1]]
        return self._plain(record, instruction, [width, width, 4])

    _shl = _shr = _shift

    def _bfe(self, record: Record, instruction: Instruction) -> str:
        return self._plain(record, instruction, [4, 4, 4, 4])

    def _selp(self, record: Record, instruction: Instruction) -> str:
        width = SIZES[instruction.opcode.split(".")[-1]]
        return self._plain(record, instruction, [width, width, width, 4])

    def _mixed(self, record: Record, instruction: Instruction) -> str:
        """add, sub and fma of the mixed-precision group: 16-bit operands, then an f32."""
        if not re.fullmatch(r"(add|sub|fma)\.rn\.f32\.(bf16|f16)", instruction.opcode):
            return self._plain(record, instruction)
        return self._plain(record, instruction, [4, *[2] * (len(instruction.operands) - 2), 4])

    _add = _sub = _fma = _mixed

    def _mov(self, record: Record, instruction: Instruction) -> str:
        target, source = instruction.operands
        if not isinstance(target, tuple) and not isinstance(source, tuple):
            return self._plain(record, instruction)
        texts = [
            *(target if isinstance(target, tuple) else (target,)),
            *(source if isinstance(source, tuple) else (source,)),
        ]
        whole = SIZES[instruction.opcode.split(".")[-1]]
        parts = len(texts) - 1
        widths = [whole // parts] * parts
        widths = [*widths, whole] if isinstance(target, tuple) else [whole, *widths]
        places = [self._operand(record.line, text, width) for text, width in zip(texts, widths, strict=True)]
        if [width for _, width in places] != widths:
            raise PtxError(f"line {record.line}: {instruction.opcode!r} with registers of {places} bytes is not known")
        self._set(record, places)
        return "unpack" if isinstance(target, tuple) else "pack"

    def _bra(self, record: Record, instruction: Instruction) -> str:
        (label,) = instruction.operands
        if label not in self.kernel.labels:
            raise PtxError(f"line {record.line}: the label {label!r} is not known")
        record.immediate = self.kernel.labels[str(label)]
        return "bra"

    def _access(self, record: Record, opcode: str) -> None:
        kind = opcode.split(".")[-1]
        if kind not in SIZES or kind == "pred":
            raise PtxError(f"line {record.line}: {opcode!r} is not known")
        space = next((name for name in ("global", "shared", "param") if f".{name}" in opcode), "")
        if re.search(r"\.(local|const|tex)\b", opcode):
            raise PtxError(f"line {record.line}: {opcode!r} is not known")
        record.bytes, record.is_signed, record.flags = SIZES[kind], int(kind.startswith("s")), SPACES[space]

    def _memory(self, record: Record, instruction: Instruction, values: int) -> str:
        opcode = NO_RESULT.sub("", instruction.opcode.replace(".shared::cta", ".shared"))
        self._access(record, opcode)
        moved = instruction.operands[values]
        vector = moved if isinstance(moved, tuple) else (moved,)
        record.elements = len(vector)
        places = [self._operand(record.line, text, max(2, record.bytes)) for text in vector]
        address, record.immediate = self._address(record.line, str(instruction.operands[1 - values]))
        self._set(record, [*places, address] if values == 0 else [address, *places])
        return "ld" if values == 0 else "st"

    def _ld(self, record: Record, instruction: Instruction) -> str:
        return self._memory(record, instruction, 0)

    def _st(self, record: Record, instruction: Instruction) -> str:
        return self._memory(record, instruction, 1)

    def _atom(self, record: Record, instruction: Instruction) -> str:
        ordered = ".acq_rel" in instruction.opcode
        opcode = NO_RESULT.sub("", instruction.opcode.replace(".acq_rel", "").replace(".shared::cta", ".shared"))
        self._access(record, opcode)
        record.is_signed = int(ordered)  # its other meaning: orders the memory of blocks
        target, address, value = map(str, instruction.operands)
        place, record.immediate = self._address(record.line, address)
        self._set(record, [self._operand(record.line, target, 4), place, self._operand(record.line, value, 4)])
        return re.sub(r"\.(global|shared)", "", opcode)

    def _cp(self, record: Record, instruction: Instruction) -> str:
        opcode = re.sub(r"\.L2::\w+", "", instruction.opcode)
        if opcode in ("cp.async.commit_group", "cp.async.wait_all"):
            return opcode
        if opcode == "cp.async.wait_group":
            self._set(record, [self._operand(record.line, str(instruction.operands[0]), 4)])
            return opcode
        if opcode.startswith("cp.async.mbarrier.arrive.noinc"):
            place, record.immediate = self._address(record.line, str(instruction.operands[0]))
            self._set(record, [place])
            return "cp.async.mbarrier.arrive.noinc"
        if not re.fullmatch(r"cp\.async\.c[ag]\.shared(::cta)?\.global", opcode):
            raise PtxError(f"line {record.line}: {instruction.opcode!r} is not known")
        target, record.immediate = self._address(record.line, str(instruction.operands[0]))
        source, record.elements = self._address(record.line, str(instruction.operands[1]))
        record.bytes, record.flags = int(str(instruction.operands[2]), 0), SPACES["shared"]
        rest = [self._operand(record.line, str(text), 4) for text in instruction.operands[3:4]]
        self._set(record, [target, source, *rest])
        return "cp.async"

    def _matrices(self, record: Record, instruction: Instruction, values: int) -> str:
        opcode = instruction.opcode
        if not re.fullmatch(r"(ld|st)matrix\.sync\.aligned\.m8n8\.x[124](\.trans)?\.shared(::cta)?\.b16", opcode):
            raise PtxError(f"line {record.line}: {opcode!r} is not known")
        vector = instruction.operands[values]
        places = [self._operand(record.line, text, 4) for text in (vector if isinstance(vector, tuple) else (vector,))]
        address, record.immediate = self._address(record.line, str(instruction.operands[1 - values]))
        record.bytes, record.flags = 4, SPACES["shared"]
        self._set(record, [*places, address] if values == 0 else [address, *places])
        return ("ldmatrix" if values == 0 else "stmatrix") + (".trans" if ".trans" in opcode else "")

    def _ldmatrix(self, record: Record, instruction: Instruction) -> str:
        return self._matrices(record, instruction, 0)

    def _stmatrix(self, record: Record, instruction: Instruction) -> str:
        return self._matrices(record, instruction, 1)

    def _mma(self, record: Record, instruction: Instruction) -> str:
        found = re.fullmatch(r"mma\.sync\.aligned\.(m\w+)\.row\.col\.f32\.(\w+)\.\2\.f32", instruction.opcode)
        if found is None:
            raise PtxError(f"line {record.line}: {instruction.opcode!r} is not known")
        texts = [text for vector in instruction.operands for text in vector]
        self._set(record, [self._operand(record.line, text, 4) for text in texts])
        return f"mma.{found[1]}.{found[2]}"

    def _mbarrier(self, record: Record, instruction: Instruction) -> str:
        parts = instruction.opcode.split(".")
        address = next(k for k, text in enumerate(instruction.operands) if str(text).startswith("["))
        places = []
        for k, text in enumerate(map(str, instruction.operands)):
            if k == address:
                place, record.immediate = self._address(record.line, text)
                places.append(place)
            else:
                places.append(self._operand(record.line, text, 4))
        if parts[1] in ("test_wait", "try_wait") and "parity" in parts:
            self._set(record, places[:3])  # a time limit only says how long the hardware may sleep
            return "mbarrier.wait.parity"
        if parts[1] not in ("init", "arrive") or {"noComplete", "expect_tx", "cluster"} & set(parts):
            raise PtxError(f"line {record.line}: {instruction.opcode!r} is not known")
        self._set(record, places)
        return f"mbarrier.{parts[1]}"

    def _bar(self, record: Record, instruction: Instruction) -> str:
        self._set(record, [self._operand(record.line, str(text), 4) for text in instruction.operands])
        return NO_RESULT.sub("", instruction.opcode)

    def _shfl(self, record: Record, instruction: Instruction) -> str:
        return self._plain(record, instruction)

    def _ret(self, record: Record, instruction: Instruction) -> str:
        return "ret"

    _exit = _ret
