"""Releases of a project beside the pinned one, read straight from their wheels: only the files that are asked for."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from sm120.integration.build.fetch import fetch, sha256_of
from sm120.integration.build.tree import pristine_tree, release_folder
from sm120.integration.common.checkout import Checkout
from sm120.integration.common.manifest import read_manifest
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.pin import Artifact, Sha256, WheelName
from sm120.integration.series.switch import settle


class Release(BaseModel):
    """One release, by one of its wheels."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str
    file: WheelName
    sha256: Sha256
    yanked: str = ""
    """Why upstream withdrew it; such a release is compared like any other and never offered as a bump."""

    @field_validator("version")
    @classmethod
    def _is_a_version(cls, value: str) -> str:
        try:
            Version(value)
        except InvalidVersion:
            raise ValueError(f"{value!r} is not a version") from None
        return value

    @model_validator(mode="after")
    def _file_is_of_version(self) -> Release:
        if self.file.split("-")[1] != self.version:
            raise ValueError(f"{self.file} is not a wheel of {self.version}")
        return self

    @property
    def artifact(self) -> Artifact:
        python, _, platform = self.file.removesuffix(".whl").split("-")[-3:]
        # manylinux_2_28_x86_64, manylinux2014_x86_64, linux_x86_64; of several tags, all for one machine, the first.
        machine = re.sub(r"^(many|musl)?linux(\d+|_\d+_\d+)?_", "", platform.split(".")[0])
        return Artifact(python=python, machine=machine, file=self.file, sha256=self.sha256)


class _Releases(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    releases: list[Release]


@dataclass(frozen=True)
class Snapshot:
    """Files of one release by their path in the wheel; a path that the release lacks is not a key."""

    version: str
    sha256: str
    files: dict[str, bytes]

    def write(self, folder: Path) -> None:
        """Write the files under `folder`."""
        write_files(folder, self.files)


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Write each file under `folder`, making the folders that it needs."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def load_releases(folder: Path) -> list[Release]:
    """The releases of `folder/releases.toml`, oldest first.

    Raises:
        Refusal: `releases-missing`, `releases-syntax`, `releases-field`, `releases-twice`.
    """
    settle(folder)
    path = folder / "releases.toml"
    releases = read_manifest(path, _Releases, "releases", missing="no releases are listed for this project").releases
    versions = [Version(release.version) for release in releases]
    if twice := sorted({str(version) for version in versions if versions.count(version) > 1}):
        raise Refusal("releases-twice", f"listed more than once: {', '.join(twice)}", path=path)
    return sorted(releases, key=lambda release: Version(release.version))


def find_release(folder: Path, version: str) -> Release:
    """The release `version` of the project in `folder`.

    Raises:
        Refusal: `release-unknown`, naming what is listed and how to list another.
    """
    releases = load_releases(folder)
    for release in releases:
        if release.version == version:
            return release
    listed = ", ".join(release.version for release in releases)
    raise Refusal(
        "release-unknown",
        f"{folder.name} {version} is not listed; listed: {listed}",
        path=folder / "releases.toml",
        fix="download its wheel, then add [[releases]] with version, file and sha256; or name the wheel with --wheel",
    )


def local_release(wheel: Path, version: str, distribution: str) -> Release:
    """A release of `distribution` from a wheel file that the user names, hashed here.

    Raises:
        Refusal: `release-wheel` when the file is missing or is not a wheel of that distribution and version.
    """
    if not wheel.is_file():
        raise Refusal("release-wheel", "no such file", path=wheel)
    if canonicalize_name(wheel.name.split("-")[0]) != canonicalize_name(distribution):
        raise Refusal("release-wheel", f"not a wheel of {distribution}", path=wheel)
    try:
        return Release(version=version, file=wheel.name, sha256=sha256_of(wheel))
    except ValidationError as error:
        raise Refusal("release-wheel", error.errors()[0]["msg"], path=wheel) from None


def snapshot(checkout: Checkout, release: Release, names: Iterable[str], wheel: Path | None = None) -> Snapshot:
    """The files `names` of `release`, fetched as pins are when its wheel is not in the cache.

    Raises:
        Refusal: as `fetch`; `artifact-corrupt` when the wheel cannot be read; `release-unfetched` adds that a release
            may have been withdrawn.
    """
    path = wheel or fetched(checkout, release)
    files = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = set(archive.namelist())
            for name in sorted(set(names)):
                if name in members:
                    files[name] = archive.read(name)
    except (zipfile.BadZipFile, OSError) as error:
        raise Refusal("artifact-corrupt", f"does not read as a wheel: {error}", path=path) from None
    return Snapshot(release.version, release.sha256, files)


def release_tree(checkout: Checkout, project: str, release: Release, wheel: Path | None = None) -> Path:
    """The whole release, unpacked; probes need it, the other rungs do not."""
    destination = release_folder(checkout.build / "trees", project, release.artifact)
    if destination.is_dir():
        return destination
    return pristine_tree(wheel or fetched(checkout, release), release.artifact, destination)


def fetched(checkout: Checkout, release: Release) -> Path:
    """The verified wheel of `release`, in the cache.

    Raises:
        Refusal: `release-unfetched` when no index has it (any more), and as `fetch`.
    """
    try:
        return fetch(release.artifact, checkout.cache, any_interpreter=True)
    except Refusal as refusal:
        if refusal.code != "artifact-unavailable":
            raise
        raise Refusal(
            "release-unfetched",
            f"{release.artifact.requirement}: {refusal.what} (upstream may have withdrawn it: then set `yanked`)",
            fix=refusal.fix,
        ) from None
