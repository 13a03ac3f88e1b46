"""Which lines of an overlay can run: what the patched tree imports of it, and what that needs in turn.

Python is read with `ast`: a name of a module is reached when a file outside the overlay imports and uses it, or a
reached one uses it. A parameter with a default has to be given by some call, and a parameter whose every call gives the
same constant is one too many. CUDA starts from the exports that a reached `load_jit` asks for; a name of a header is
reached when a reached definition uses it, a field of a struct when one does, and no template argument is a constant.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
WORD = re.compile(r"[A-Za-z_]\w*")


def unreached(tree: Path, targets: Sequence[str], patched: Iterable[str], sharing: Iterable[Path] = ()) -> list[str]:
    """What no line of `tree` outside `targets` leads to, as `target: what`; `targets` are one kernel's overlay.

    Methods are called in `patched`, the files that patches change, without an import, too. `sharing` are files of
    this project that load the overlay's Python by its path and use it as well.
    """
    ours = [ast.parse(path.read_text()) for path in sharing]
    shared = {node.attr for user in ours for node in ast.walk(user) if isinstance(node, ast.Attribute)}
    users = ours + [ast.parse((tree / file).read_text()) for file in patched if file.endswith(".py")]
    modules = {target: PythonOverlay(tree / target, target) for target in targets if target.endswith(".py")}
    headers = [target for target in targets if target.endswith(".cuh")]
    found = []
    exports: set[str] = set()
    for target, module in modules.items():
        callers = [ast.parse(text) for text in importing(tree, module.dotted, target)]
        reached = module.reached(callers, shared)
        found += [f"{target}: {what}" for what in module.problems(reached, [*callers, *users])]
        exports |= module.exports(reached)
    found += [f"{target}: {what}" for target, what in headers_unreached(tree, headers, exports)]
    return found


class PythonOverlay:
    """One Python file of an overlay: its definitions by name, and the names that each uses."""

    def __init__(self, path: Path, target: str) -> None:
        self.dotted = target.removesuffix(".py").replace("/", ".")
        self.module = ast.parse(path.read_text())
        self.definitions: dict[str, ast.AST] = {}
        for node in self.module.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.definitions[node.name] = node
            elif isinstance(node, ast.Assign):
                for name in node.targets:
                    if isinstance(name, ast.Name):
                        self.definitions[name.id] = node

    def reached(self, callers: list[ast.Module], shared: set[str]) -> set[str]:
        """Names that callers import and use, or that are `shared`, and all that those use."""
        todo = [name for caller in callers for name in imported(caller, self.dotted)]
        todo += [name for name in self.definitions if name in shared]
        seen: set[str] = set()
        while todo:
            name = todo.pop()
            if name in seen or name not in self.definitions:
                continue
            seen.add(name)
            todo += [node.id for node in ast.walk(self.definitions[name]) if isinstance(node, ast.Name)]
        return seen

    def problems(self, reached: set[str], callers: list[ast.Module]) -> list[str]:
        everywhere = [self.module, *callers]
        attributes = {node.attr for tree in everywhere for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        found = [f"nothing uses {name}" for name in sorted(self.definitions.keys() - reached)]
        for name in sorted(reached):
            node = self.definitions[name]
            if isinstance(node, ast.ClassDef):
                methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
                hidden = [each.name for each in methods if not each.name.startswith("__")]
                found += [f"nothing calls {name}.{method}" for method in hidden if method not in attributes]
            elif isinstance(node, ast.FunctionDef):
                found += [f"{name}: {what}" for what in parameter_problems(node, everywhere)]
        return found

    def exports(self, reached: set[str]) -> set[str]:
        """C++ names that reached code asks `load_jit` for."""
        names: set[str] = set()
        for name in reached:
            for node in ast.walk(self.definitions[name]):
                if isinstance(node, ast.keyword) and node.arg == "cuda_wrappers":
                    names |= set(WORD.findall(ast.unparse(node.value)))
        return names


def importing(tree: Path, dotted: str, target: str) -> list[str]:
    """The text of the files that import a module."""
    texts = []
    for path in sorted((tree / dotted.split(".")[0]).rglob("*.py")):
        text = path.read_text(errors="replace")
        if dotted in text and path != tree / target:
            texts.append(text)
    return texts


def imported(caller: ast.Module, dotted: str) -> list[str]:
    """Names that a file imports from a module and uses somewhere else."""
    names = [
        alias.name
        for node in ast.walk(caller)
        if isinstance(node, ast.ImportFrom) and node.module == dotted
        for alias in node.names
    ]
    used = {node.id for node in ast.walk(caller) if isinstance(node, ast.Name)}
    return [name for name in names if name in used]


def parameter_problems(function: ast.FunctionDef, trees: list[ast.Module]) -> list[str]:
    """Parameters that no call gives, or that every call gives the same constant."""
    calls = [
        node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and called_name(node) == function.name
    ]
    if not calls or any(isinstance(x, ast.Starred) for call in calls for x in call.args):
        return []
    if any(keyword.arg is None for call in calls for keyword in call.keywords):
        return []
    places = [each.arg for each in function.args.args]
    optional = places[len(places) - len(function.args.defaults) :]
    optional += [
        each.arg
        for each, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        if default is not None
    ]
    found = []
    for name in [*places, *(each.arg for each in function.args.kwonlyargs)]:
        given = [argument(call, name, places) for call in calls]
        if name in optional and not any(given):
            found.append(f"no call gives {name}")
        elif name.isupper() or name in optional:  # a tile size, or another value by default
            continue
        elif all(isinstance(value, ast.Constant) for value in given) and len({ast.unparse(x) for x in given}) == 1:
            found.append(f"every call gives {name} = {ast.unparse(given[0])}")
    return found


def called_name(call: ast.Call) -> str | None:
    function = call.func.value if isinstance(call.func, ast.Subscript) else call.func  # kernel[grid](...)
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


def argument(call: ast.Call, name: str, places: list[str]) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    place = places.index(name) if name in places else len(call.args)
    return call.args[place] if place < len(call.args) else None


def headers_unreached(tree: Path, targets: list[str], exports: set[str]) -> list[tuple[str, str]]:
    chunks = [(target, *chunk) for target in targets for chunk in definitions((tree / target).read_text())]
    names = {name for _, name, _ in chunks}
    todo, reached = [name for name in names if name in exports], set()
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += [word for _, own, text in chunks if own == name for word in WORD.findall(text) if word in names]
    found = [(target, f"nothing uses {name}") for target, name, _ in chunks if name not in reached]
    for target, name, text in chunks:
        elsewhere = [set(WORD.findall(other)) for _, own, other in chunks if own in reached and own != name]
        if text.startswith("struct") and "(" not in text:
            found += [
                (target, f"nothing uses {name}.{field}") for field in fields(text) if not any_has(elsewhere, field)
            ]
        for constant in re.findall(r"\w+<[^<>;{}()]*\b(?:true|false)\b[^<>;{}()]*>", text):
            found.append((target, f"a template argument is a constant: {constant}"))
    return found


def any_has(sets: list[set[str]], word: str) -> bool:
    return any(word in each for each in sets)


def fields(struct: str) -> list[str]:
    """Field names of a plain struct."""
    body = struct[struct.index("{") + 1 : struct.rindex("}")]
    return re.findall(r"(\w+)(?:\[\w+\])?\s*(?:=[^;]*)?;", body)


def definitions(source: str) -> list[tuple[str, str]]:
    """`(name, text)` of every definition of a header, those inside namespaces included; namespaces are transparent."""
    text = "\n".join(line for line in COMMENT.sub("", source).split("\n") if not line.lstrip().startswith("#"))
    text = re.sub(r'\bnamespace \w+ \{|extern "C"', "", text)
    found, depth, start, place = [], 0, 0, 0
    while place < len(text):
        character = text[place]
        depth += character in "{("
        depth -= character in "})"
        ended = depth == 0 and (character == ";" or (character == "}" and not re.match(r"\s*;", text[place + 1 :])))
        if depth < 0:  # the end of a namespace
            depth, start = 0, place + 1
        elif ended:
            chunk = " ".join(text[start : place + 1].split())
            start = place + 1
            name = name_of(chunk)
            if name is not None:
                found.append((name, chunk))
        place += 1
    return found


def name_of(chunk: str) -> str | None:
    if chunk.startswith("static_assert") or not WORD.search(chunk):
        return None
    bare = re.sub(r"template <[^{}]*?> (?=\S)", "", chunk, count=1) if chunk.startswith("template") else chunk
    for pattern in (
        r"^(?:struct|class)(?: alignas\(\w+\))? (\w+)",
        r"^using (\w+)",
        r"^constexpr [\w:]+ (\w+)(?:<[^>]*>)? =",
    ):
        match = re.search(pattern, bare)
        if match:
            return match[1]
    head = re.sub(r"__launch_bounds__\((?:[^()]|\([^()]*\))*\)", "", bare)
    match = re.search(r"(\w+)\s*\(", head)
    return match[1] if match else None
