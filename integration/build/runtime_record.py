"""`runtime.json`: what an installed runtime is. It is written last, so a runtime that has one was installed to the end.

The launcher in a runtime's own folder reads two names of it without this model: it has no package to import.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sm120.integration.common.manifest import first_problem
from sm120.integration.common.refusal import Refusal

FILE = "runtime.json"


class Ingredients(BaseModel):
    """What decided the identity (see `identity.runtime_ingredients`); only the flavor is read again."""

    model_config = ConfigDict(extra="allow", frozen=True)

    flavor: str


class InstalledPatch(BaseModel):
    """A patch in an installed wheel, and the files that it touches, below site-packages."""

    model_config = ConfigDict(frozen=True)

    slug: str
    sha256: str
    tier: str
    files: list[str]


class InstalledOverlay(BaseModel):
    """A kernel's file in an installed wheel."""

    model_config = ConfigDict(frozen=True)

    kernel: str
    target: str
    sha256: str


class InstalledWheel(BaseModel):
    """The patched wheel that was installed."""

    model_config = ConfigDict(frozen=True)

    file: str
    sha256: str


class InstalledProject(BaseModel):
    """One project: its wheel, what is in it, and the sha256 of every file that is ours; None for one that is deleted."""

    model_config = ConfigDict(frozen=True)

    version: str
    wheel: InstalledWheel
    patches: list[InstalledPatch]
    overlay: list[InstalledOverlay]
    files: dict[str, str | None]
    imports: list[str]


class RuntimeRecord(BaseModel):
    """`runtime.json`. `deps` names the dependency layer; `versions` are those of the packages worth showing."""

    model_config = ConfigDict(frozen=True)

    identity: str = Field(pattern="^[0-9a-f]{64}$")
    ingredients: Ingredients
    deps: str
    projects: dict[str, InstalledProject]
    versions: dict[str, str]
    host_compiler: str | None
    nvcc: str | None

    @property
    def flavor(self) -> str:
        return self.ingredients.flavor


def read_record(home: Path) -> RuntimeRecord:
    """The record of the runtime in `home`.

    Raises:
        Refusal: `runtime-missing` where there is none; `runtime-record` where it does not read.
    """
    return parse_record(home / FILE)


def parse_record(path: Path) -> RuntimeRecord:
    """The record in the file `path`, refused as by `read_record`."""
    try:
        return RuntimeRecord.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise no_runtime(path.parent) from None
    except ValidationError as error:
        raise Refusal("runtime-record", first_problem(error), path=path, fix="make runtime") from None


def no_runtime(home: Path, what: str = "no runtime is installed there") -> Refusal:
    """How every command says that it needs a runtime."""
    return Refusal("runtime-missing", what, path=home, fix="make runtime")


def record_or_none(home: Path) -> RuntimeRecord | None:
    """The record of the runtime in `home`, for those who go on without one."""
    try:
        return read_record(home)
    except (Refusal, OSError):
        return None


def write_record(home: Path, record: RuntimeRecord) -> None:
    """Write the record in one step."""
    aside = home / f"{FILE}.tmp"
    aside.write_text(record.model_dump_json(indent=1) + "\n")
    aside.replace(home / FILE)


def layer_folder(home: Path, deps: str) -> Path:
    """Where the dependency layer `deps` of the runtime in `home` (or behind that link) is."""
    return home.resolve().parents[1] / "deps" / deps
