"""Pins: which released artifact of an upstream project the patches are made for."""

from __future__ import annotations

import platform
import sys
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from sm120.integration.common.manifest import read_manifest
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.switch import settle

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
WheelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.]+-[^-/]+(-[^-/]+){3}\.whl$")]


class Artifact(BaseModel):
    """One released wheel file.

    `python` is a tag such as `cp311`, or `py3` for a wheel that serves every version; `machine` is what
    `platform.machine()` prints, or `any`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    python: str
    machine: str
    file: WheelName
    sha256: Sha256

    @property
    def requirement(self) -> str:
        """`name==version` as pip takes it, read from the file name."""
        name, version = self.file.split("-")[:2]
        return f"{name}=={version}"


class PathMap(BaseModel):
    """Where a folder of the wheel lives in the upstream git tree."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wheel: str
    upstream: str


class TestPlace(BaseModel):
    """Where upstream keeps tests of code under `wheel`.

    `mirror` repeats the code's folders below `folder`. `group` repeats only the first of them, and is for patches that
    change nothing elsewhere.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    wheel: str
    folder: str
    mirror: bool = False
    group: bool = False


class SharedTestModules(BaseModel):
    """The importable package in which upstream keeps what several tests use, and its folder in the upstream tree."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    package: str
    folder: str


class FieldTable(BaseModel):
    """A table of upstream's, `file`, whose last lines name new fields of the classes below `fields` (wheel paths)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str
    fields: str
    documentation: str = ""
    """The page upstream, no part of a release, that describes each argument."""


class PythonStyle(BaseModel):
    """How upstream's own hooks lay Python out: the formatter's line length, and what its import sorter calls its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    line_length: int = Field(ge=60, le=200)
    first_party: list[str] = []
    formatter: Literal["ruff", "black"] = "ruff"
    """`black` goes with isort, as in upstream's hooks."""


class Companion(BaseModel):
    """A distribution that is installed beside the patched one, unchanged."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    distribution: str
    version: str
    artifacts: list[Artifact]


class Pin(BaseModel):
    """The release that one series is made for, read from `patches/PROJECT/pin.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: str
    distribution: str
    version: str
    repository: str
    git_tag: str
    imports: list[str] = Field(min_length=1)
    paths: list[PathMap] = Field(min_length=1)
    test_folder: str = "tests"
    """Where upstream keeps tests of this kind."""
    test_registration: str = ""
    """What upstream's harness wants in a test file, behind the imports."""
    test_header: str = ""
    """First lines of a new test file."""
    test_footer: str = ""
    """Last lines of a test file, where upstream's harness runs it as a script."""
    test_places: list[TestPlace] = []
    """Where upstream keeps tests of particular code; `test_folder` serves the rest."""
    test_modules: SharedTestModules | None = None
    """Where modules go that tests share, if not beside the test: a collector may take each file there for a test."""
    test_renames: dict[str, str] = {}
    """Packages that upstream's tests import under another name than the wheel has."""
    python_style: PythonStyle | None = None
    """How upstream formats Python; without it what is exported stays as it is here."""
    field_table: FieldTable | None = None
    """Where upstream lists the arguments that a patch adds; two patches cannot both append to it, so exporting does."""
    cpp_style: str = ""
    """File in the wheel that says how clang-format lays C++ and CUDA out; without it what is exported stays as it is."""
    export_notes: list[str] = []
    """What upstream asks of a contributor that no tool may do in their name."""
    signoff_note: str = ""
    """What to say of an export without `Signed-off-by`."""
    artifacts: list[Artifact] = Field(min_length=1)
    companions: list[Companion] = []

    def upstream_path(self, wheel_path: str) -> str:
        """Path in the upstream git tree of a path in the wheel (longest matching prefix wins).

        Raises:
            Refusal: `pin-paths` when no prefix matches.
        """
        matches = [entry for entry in self.paths if wheel_path.startswith(entry.wheel)]
        if not matches:
            raise Refusal(
                "pin-paths",
                f"{wheel_path} is under none of {[entry.wheel for entry in self.paths]}",
                path=f"patches/{self.project}/pin.toml",
                fix="add a [[paths]] entry that says where upstream keeps it",
            )
        best = max(matches, key=lambda entry: len(entry.wheel))
        return best.upstream + wheel_path.removeprefix(best.wheel)

    def test_folder_for(self, changed: dict[str, int]) -> str:
        """Folder in the upstream tree for a test of a patch that changes these many lines of these wheel paths."""
        for path, _ in sorted(changed.items(), key=lambda item: (-item[1], item[0])):
            places = [place for place in self.test_places if path.startswith(place.wheel)]
            places = [one for one in places if not one.group or all(name.startswith(one.wheel) for name in changed)]
            if places:
                place = max(places, key=lambda one: len(one.wheel))
                below = path.removeprefix(place.wheel).rpartition("/")[0] if place.mirror or place.group else ""
                below = below.partition("/")[0] if place.group else below
                return "/".join(filter(None, [place.folder, below]))
        return self.test_folder


def load_pin(folder: Path) -> Pin:
    """Read and check `folder/pin.toml`.

    Raises:
        Refusal: `pin-syntax` or `pin-field`, with the line where TOML gives one.
    """
    settle(folder)
    path = folder / "pin.toml"
    pin = read_manifest(path, Pin, "pin", missing="no pin for this project")
    if pin.project != folder.name:
        raise Refusal("pin-field", f"project is {pin.project!r} in the folder of {folder.name!r}", path=path)
    for entry in pin.paths:
        for side in (entry.wheel, entry.upstream):
            if PurePosixPath(side).is_absolute() or ".." in PurePosixPath(side).parts:
                raise Refusal("pin-field", f"paths: {side!r} leaves the tree", path=path)
    return pin


def select_artifact(artifacts: list[Artifact], *, what: str, path: Path | str) -> Artifact:
    """The artifact for this interpreter and machine.

    Raises:
        Refusal: `artifact-unsupported`, listing what is pinned.
    """
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    machine = platform.machine()
    for artifact in artifacts:
        if artifact.python in (python, "py3") and artifact.machine in (machine, "any"):
            return artifact
    served = ", ".join(f"{artifact.python}/{artifact.machine}" for artifact in artifacts)
    raise Refusal(
        "artifact-unsupported",
        f"{what} has no pinned wheel for {python}/{machine}; pinned: {served}",
        path=path,
        fix="run with one of the pinned Python versions",
    )
