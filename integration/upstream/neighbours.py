"""What the pinned projects require of each other: a bump of one must fit the releases that the others are pinned to."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from email.parser import BytesHeaderParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from sm120.integration.build.fetch import fetch
from sm120.integration.common.checkout import Checkout
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.pin import load_pin, select_artifact


def refuse_unwanted(checkout: Checkout, project: str, version: str) -> None:
    """Refuse a `version` of `project` that the pinned release of another project does not allow beside it.

    Raises:
        Refusal: `bump-requires`, naming who requires what; as `fetch`.
    """
    distribution = canonicalize_name(load_pin(checkout.patches / project).distribution)
    for other in checkout.projects():
        if other == project:
            continue
        pin = load_pin(checkout.patches / other)
        artifact = select_artifact(pin.artifacts, what=other, path=checkout.patches / other / "pin.toml")
        for wanted in requirements(fetch(artifact, checkout.cache)):
            if canonicalize_name(wanted.name) == distribution and not _allows(wanted, version):
                raise Refusal(
                    "bump-requires",
                    f"{pin.distribution} {pin.version} requires {wanted}, so not {version}",
                    path=checkout.patches / other / "pin.toml",
                    fix=f"bump {other} to a release that takes it first",
                )


def wishes(checkout: Checkout, project: str, wheel: Path) -> list[str]:
    """Lines for a person: what the release in `wheel` requires of the other projects, where their pins are others."""
    pins = [load_pin(checkout.patches / other) for other in checkout.projects() if other != project]
    by_name = {canonicalize_name(pin.distribution): pin for pin in pins}
    lines = []
    for wanted in requirements(wheel):
        pin = by_name.get(canonicalize_name(wanted.name))
        if pin is not None and not _allows(wanted, pin.version):
            lines.append(f"it requires {wanted}, and {pin.version} is pinned: bump {pin.project} next")
    return lines


def requirements(wheel: Path) -> Iterator[Requirement]:
    """`Requires-Dist` of a wheel, as far as it holds on this machine without extras.

    Raises:
        Refusal: `artifact-corrupt`.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [one for one in archive.namelist() if one.count("/") == 1 and one.endswith(".dist-info/METADATA")]
            found = BytesHeaderParser().parsebytes(archive.read(name)).get_all("Requires-Dist", [])
        wanted = [Requirement(str(text)) for text in found]
    except (OSError, ValueError, zipfile.BadZipFile, InvalidRequirement) as error:
        raise Refusal("artifact-corrupt", f"its metadata does not read: {error}", path=wheel) from None
    yield from (one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""}))


def _allows(wanted: Requirement, version: str) -> bool:
    return wanted.specifier.contains(Version(version), prereleases=True)
