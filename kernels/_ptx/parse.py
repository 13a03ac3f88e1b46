"""Parse PTX text into kernels: parameters, registers, shared variables, labels and instructions.

Only what nvcc and Triton write is read; anything else is a PtxError with its line. The grammar is the PTX ISA's chapter
"Syntax"; directives that carry no meaning for a run (.loc, .file, .pragma, debug sections) are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

SIZES = {"pred": 4} | {f"{kind}{bits}": bits // 8 for kind in "bsuf" for bits in (8, 16, 32, 64)}


class PtxError(ValueError):
    """PTX that cannot be run here; the message names the line and what is not known."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: `opcode` with its modifiers, operands as text or, for vectors, lists of text."""

    line: int
    guard: str | None
    negated: bool
    opcode: str
    operands: tuple[str | tuple[str, ...], ...]


@dataclass(frozen=True)
class Parameter:
    """A kernel parameter: its name, type ("u64", "f32", "b8"), bytes and offset in the parameter buffer."""

    name: str
    kind: str
    bytes: int
    offset: int


@dataclass
class Kernel:
    """One entry function. `registers` maps a register to its bytes a lane, `shared` a variable to its offset."""

    name: str
    parameters: list[Parameter] = field(default_factory=list)
    registers: dict[str, int] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    shared_bytes: int = 0
    dynamic: set[str] = field(default_factory=set)
    source_lines: dict[int, str] = field(default_factory=dict)


def parse(text: str) -> dict[str, Kernel]:
    """Every kernel of a module by its name. Raises PtxError for a module without one, or text it cannot read."""
    if not re.search(r"^\.target\s+sm_120a\b", text, re.M):
        raise PtxError("this PTX is not for sm_120a")
    shared: dict[str, tuple[int, int]] = {}  # module scope: bytes and alignment
    dynamic: set[str] = set()
    kernels: dict[str, Kernel] = {}
    statements = _statements(text)
    for line, statement in statements:
        if re.match(r"(\.visible\s+|\.weak\s+)*\.entry\b", statement):
            kernel = _kernel(line, statement, statements, shared, dynamic)
            kernels[kernel.name] = kernel
        elif re.match(r"(\.visible\s+|\.weak\s+)*\.func\b", statement):
            raise PtxError(f"line {line}: a .func; calls are not run here")
        elif variable := re.match(r"\.extern\s+\.shared\s+(?:\.align\s+\d+\s+)?\.\w+\s+([\w$]+)\[\]", statement):
            dynamic.add(variable[1])
        elif ".shared" in statement.split("[")[0]:
            shared |= dict([_variable(line, statement)])
    if not kernels:
        raise PtxError("this PTX has no kernel")
    return kernels


def _kernel(
    line: int,
    head: str,
    statements: Iterator[tuple[int, str]],
    module_shared: dict[str, tuple[int, int]],
    dynamic: set[str],
) -> Kernel:
    found = re.match(r".*?\.entry\s+([\w$]+)\s*(?:\((.*)\))?", head, re.S)
    if found is None:
        raise PtxError(f"line {line}: an entry without a name")
    kernel = Kernel(found[1], dynamic=dynamic)
    offset = 0
    for parameter in filter(None, (part.strip() for part in (found[2] or "").split(","))):
        kernel.parameters.append(_parameter(line, parameter, offset))
        offset = kernel.parameters[-1].offset + kernel.parameters[-1].bytes
    for name, (size, alignment) in module_shared.items():
        _place(kernel, name, size, alignment)
    scopes: list[dict[str, str]] = []  # a register declared inside braces, and the name it gets
    fresh = 0
    for line, statement in statements:
        if statement == "{":
            scopes.append({})
        elif statement == "}":
            scopes.pop()
            if not scopes:
                break
        elif statement.endswith(":"):
            kernel.labels[statement[:-1]] = len(kernel.instructions)
        elif statement.startswith(".loc"):
            words = statement.split()
            kernel.source_lines[len(kernel.instructions)] = f"{words[1]}:{words[2]}"
        elif register := re.match(r"\.reg\s+\.(\w+)\s+(.*)", statement, re.S):
            if register[1] not in SIZES:
                raise PtxError(f"line {line}: registers of type .{register[1]} are not known")
            for name in (part.strip() for part in register[2].split(",")):
                several = re.fullmatch(r"(.*)<(\d+)>", name)
                for one in [f"{several[1]}{k}" for k in range(int(several[2]))] if several else [name]:
                    given = one
                    if len(scopes) > 1:
                        given, fresh = f"{one}'{fresh}", fresh + 1
                        scopes[-1][one] = given
                    kernel.registers[given] = max(2, SIZES[register[1]])
        elif statement.startswith(".shared"):
            name, (size, alignment) = _variable(line, statement)
            _place(kernel, name, size, alignment)
        elif statement.startswith("."):
            if not re.match(r"\.(pragma|local\b|section)", statement) or statement.startswith(".local"):
                raise PtxError(f"line {line}: {statement.split()[0]} is not known inside a kernel")
        else:
            kernel.instructions.append(_instruction(line, statement, scopes))
    return kernel


def _parameter(line: int, text: str, offset: int) -> Parameter:
    found = re.fullmatch(
        r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s+(?:\.\w+\s+)?(?:\.align\s+\d+\s+)?)?([\w$]+)(?:\[(\d+)\])?",
        text,
    )
    if found is None or found[2] not in SIZES:
        raise PtxError(f"line {line}: the parameter {text!r} is not known")
    size = SIZES[found[2]] * int(found[4] or 1)
    alignment = int(found[1] or SIZES[found[2]])
    return Parameter(found[3], found[2], size, -(-offset // alignment) * alignment)


def _variable(line: int, statement: str) -> tuple[str, tuple[int, int]]:
    found = re.search(r"\.shared\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?", statement)
    if found is None or found[2] not in SIZES:
        raise PtxError(f"line {line}: the variable {statement!r} is not known")
    return found[3], (SIZES[found[2]] * int(found[4] or 1), int(found[1] or SIZES[found[2]]))


def _place(kernel: Kernel, name: str, size: int, alignment: int) -> None:
    kernel.shared[name] = -(-kernel.shared_bytes // alignment) * alignment
    kernel.shared_bytes = kernel.shared[name] + size


def _instruction(line: int, statement: str, scopes: list[dict[str, str]]) -> Instruction:
    found = re.fullmatch(r"(?:@(!?)(%?[\w$.]+)\s+)?([a-z][\w.:]*)\s*(.*)", statement, re.S)
    if found is None:
        raise PtxError(f"line {line}: {statement!r} is no instruction")

    def rename(name: str) -> str:
        return next((scope[name] for scope in reversed(scopes) if name in scope), name)

    operands: list[str | tuple[str, ...]] = []
    for operand in _operands(found[4]):
        if operand.startswith("{"):
            operands.append(tuple(rename(part.strip()) for part in operand[1:-1].split(",")))
        else:
            operands.append(rename(operand))
    guard = rename(found[2]) if found[2] else None
    return Instruction(line, guard, found[1] == "!", found[3], tuple(operands))


def _operands(text: str) -> list[str]:
    """Split at commas outside braces and brackets; inside brackets no space is kept."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "{[") - (character in "}]")
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    parts.append(current.strip())
    return [re.sub(r"\s+", "", part) if part.startswith("[") else part for part in parts if part]


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Statements with their lines: "{", "}", "label:", directives, and instructions without their semicolon."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), text, flags=re.S)
    position, line = 0, 1
    pattern = re.compile(
        r"\s+|(?P<brace>[{}])|(?P<label>[\w$]+:)(?!:)|(?P<whole>\.(?:loc|file|version|target|address_size|maxntid|reqntid"
        r"|minnctapersm|maxnreg)\b[^\n]*)|(?P<section>\.section\b[^{]*\{[^}]*\})"
        r"|(?P<entry>(?:\.visible\s+|\.weak\s+)*\.(?:entry|func)\b[^{]*)|(?P<other>[^;]*);"
    )
    while position < len(text):
        found = pattern.match(text, position)
        if found is None:
            raise PtxError(f"line {line}: cannot read {text[position : position + 40]!r}")
        kind = found.lastgroup
        if kind is not None:
            start = line + text[position : found.start(kind)].count("\n")
            statement = found[kind].strip()
            if kind == "entry":
                statement = re.split(r"\n\s*\.(?:maxntid|reqntid|minnctapersm|maxnreg)", statement)[0].strip()
            if statement and kind not in ("section",) and (kind != "whole" or statement.startswith(".loc")):
                yield start, statement
        line += found[0].count("\n")
        position = found.end()
