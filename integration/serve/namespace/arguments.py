"""Which of the server's arguments may change the bytes of a page: all of them, but for those a table keeps out."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sm120.integration.common.refusal import Refusal
from sm120.integration.serve.namespace.checkpoint import sha256_file

TABLE = Path(__file__).with_name("arguments.toml")


@cache
def kept_out() -> dict[str, str]:
    """Every argument that does not enter a namespace, with the reason."""
    table = tomllib.loads(TABLE.read_text())
    return {name: part["why"] for part in table["kept_out"] for name in part["names"]}


@cache
def entering() -> frozenset[str]:
    """Every argument of the pinned server that enters a namespace when it is given."""
    table = tomllib.loads(TABLE.read_text())
    return frozenset(name for names in table["enters"].values() for name in names)


def given_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What enters of command-line arguments (dashes or underscores), each value in one way of writing it.

    An argument that no table knows enters: at worst its pages are stored twice. JSON texts become what they say, and
    the path of a file or folder becomes the hash of its content.

    Raises:
        Refusal: `namespace-field` for a JSON text that is none.
    """
    said = {name.replace("-", "_"): value for name, value in arguments.items() if value is not None}
    return {name: canonical(name, value) for name, value in sorted(said.items()) if name not in kept_out()}


def canonical(name: str, value: Any) -> Any:
    """One value as it enters an identity; `name` is for the message."""
    if isinstance(value, Mapping):
        return {str(key): canonical(name, part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [canonical(name, part) for part in value]
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith(("{", "[")):
        try:
            return json.loads(value)
        except ValueError as error:
            raise Refusal("namespace-field", f"{name} is not the JSON it begins as: {error}") from error
    if "/" in value and (path := Path(value)).exists():
        return {"sha256": content(path)}
    return value


def content(path: Path) -> str:
    """sha256 of a file, or of a folder's files by their relative names."""
    if path.is_file():
        return sha256_file(path)
    digest = hashlib.sha256()
    for file in sorted(part for part in path.rglob("*") if part.is_file()):
        digest.update(f"{file.relative_to(path)}\0{content(file)}\n".encode())
    return digest.hexdigest()
