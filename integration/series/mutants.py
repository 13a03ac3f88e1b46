"""Mutants of a patch: the patched files, each with one thing that the patch brought made wrong.

A hunk is dropped; two statements change places; a condition is negated; an argument is replaced by its neighbour. What a
test that takes the mutant for the patch cannot see is either not tested or not there.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import unidiff

from sm120.integration.series.patch_file import Patch


@dataclass(frozen=True)
class Mutant:
    """One patched file made wrong in one place."""

    kind: str
    """`drop hunk`, `swap statements`, `negate condition` or `neighbour's argument`."""
    file: str
    line: int
    """1-based line of the patched file."""
    says: str
    """The line there, as it was."""
    text: str
    """The whole file."""

    @property
    def key(self) -> str:
        """Names the mutant among those of its patch, and changes with the file."""
        return hashlib.sha256(f"{self.file}\0{self.text}".encode()).hexdigest()[:16]


def mutants_of(patch: Patch, read: Callable[[str], str]) -> tuple[list[Mutant], list[str]]:
    """The mutants of `patch` in a tree whose files `read` returns, and the hunks that a later patch has rewritten.

    A mutant that is no Python, or the same program (a comment, a docstring), is left out. Messages of exceptions and of
    the log are not mutated.
    """
    found: dict[str, Mutant] = {}
    moved = []
    for file in patch.files:
        if file.is_removed_file:
            continue
        text = read(file.path)
        lines = text.splitlines(keepends=True)
        added: set[int] = set()
        for hunk in file:
            at = _located(hunk, lines)
            if at is None:
                moved.append(f"{file.path}:{hunk.target_start}")
                continue
            target = [line for line in hunk if not line.is_removed]
            ours = [at + i for i, line in enumerate(target) if line.is_added]
            added.update(number + 1 for number in ours)
            if not file.is_added_file:
                source = [line.value for line in hunk if not line.is_added]
                dropped = "".join([*lines[:at], *source, *lines[at + len(target) :]])
                first = ours[0] if ours else at
                _add(found, text, "drop hunk", file.path, first + 1, dropped)
        if file.path.endswith(".py"):
            for kind, line, changed in _changes(text, added):
                _add(found, text, kind, file.path, line, changed)
    return list(found.values()), moved


def _located(hunk: unidiff.Hunk, lines: list[str]) -> int | None:
    """0-based line of `lines` at which the hunk's result stands, the nearest to where the patch put it."""
    target = [line.value for line in hunk if not line.is_removed]
    places = [at for at in range(len(lines) - len(target) + 1) if lines[at : at + len(target)] == target]
    return min(places, key=lambda at: abs(at + 1 - hunk.target_start), default=None)


def _add(found: dict[str, Mutant], text: str, kind: str, file: str, line: int, changed: str) -> None:
    if file.endswith(".py"):
        try:
            same = _program(changed) == _program(text)
        except SyntaxError:
            return
    else:
        same = changed == text
    if not same:
        mutant = Mutant(kind, file, line, text.splitlines()[line - 1].strip(), changed)
        found.setdefault(mutant.key, mutant)


def _program(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                entry for entry in body if not (isinstance(entry, ast.Expr) and isinstance(entry.value, ast.Constant))
            ]
    return ast.dump(tree)


def _changes(text: str, added: set[int]) -> Iterator[tuple[str, int, str]]:
    """Every wrong text by one change on lines that the patch added: its kind, its line, and the text."""
    tree = ast.parse(text)
    said = {id(inner) for node in ast.walk(tree) if _is_message(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in said:
            continue
        for test in _conditions(node):
            if test.lineno in added:
                negated = f"(not ({ast.get_source_segment(text, test)}))"
                yield "negate condition", test.lineno, _replaced(text, test, negated)
        if isinstance(node, ast.Call):
            for values in (node.args, [keyword.value for keyword in node.keywords if keyword.arg]):
                for value, neighbour in itertools.pairwise(values):
                    if value.lineno in added and not isinstance(value, ast.Starred | ast.GeneratorExp):
                        other = ast.get_source_segment(text, neighbour) or ""
                        yield "neighbour's argument", value.lineno, _replaced(text, value, other)
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                for first, second in itertools.pairwise(body):
                    if {first.lineno, second.lineno} <= added and _order_matters(first, second):
                        yield "swap statements", first.lineno, _swapped(text, first, second)


def _is_message(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise):
        return True
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "logger"


def _conditions(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
        return [node.test]
    return list(node.ifs) if isinstance(node, ast.comprehension) else []


def _order_matters(first: ast.stmt, second: ast.stmt) -> bool:
    """Whether one of two statements may see what the other does."""
    simple = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.If, ast.For, ast.With, ast.Assert)
    if not (isinstance(first, simple) and isinstance(second, simple)):
        return False
    if all(isinstance(entry, ast.AnnAssign) and entry.value is None for entry in (first, second)):
        return False
    (reads, writes, calls), (others, overwrites, called) = _names(first), _names(second)
    return bool(writes & (others | overwrites) or overwrites & reads or (calls and called and reads & others))


def _names(statement: ast.stmt) -> tuple[set[str], set[str], bool]:
    """Names and attributes that the statement reads, those that it sets, and whether it calls anything."""
    reads: set[str] = set()
    writes: set[str] = set()
    calls = False
    for node in ast.walk(statement):
        calls |= isinstance(node, ast.Call)
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            (reads if isinstance(node.ctx, ast.Load) else writes).add(name)
    return reads, writes, calls


def _replaced(text: str, node: ast.expr, new: str) -> str:
    """`text` with the source of `node` replaced; positions of `ast` count bytes."""
    lines = text.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    assert node.end_lineno is not None and node.end_col_offset is not None
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    whole = text.encode()
    return (whole[:start] + new.encode() + whole[end:]).decode()


def _swapped(text: str, first: ast.stmt, second: ast.stmt) -> str:
    lines = text.splitlines(keepends=True)
    assert first.end_lineno is not None and second.end_lineno is not None
    one, two = lines[first.lineno - 1 : first.end_lineno], lines[second.lineno - 1 : second.end_lineno]
    between = lines[first.end_lineno : second.lineno - 1]
    return "".join([*lines[: first.lineno - 1], *two, *between, *one, *lines[second.end_lineno :]])
