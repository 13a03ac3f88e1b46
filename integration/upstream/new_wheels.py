"""The other wheels of a release that a bump moves to: pip says which file and sha256 serve an interpreter and machine."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sm120.integration.build.fetch import sha256_of
from sm120.integration.common.pip import pip
from sm120.integration.series.pin import Artifact

# glibc versions that a wheel may be built for; pip takes platform tags literally when it resolves for another machine.
GLIBC_MINORS = range(17, 43)


def wheel_for(distribution: str, version: str, served: Artifact) -> Artifact | None:
    """The wheel of `distribution` `version` for the Python and machine that `served` is for; None when pip has none.

    Only metadata travels where the index offers it; nothing is installed.
    """
    with tempfile.TemporaryDirectory(prefix="sm120-wheels-") as name:
        report = Path(name) / "report.json"
        wanted = f"{distribution}=={version}"
        options = ["--quiet", "--ignore-installed", "--no-deps", "--only-binary=:all:", "--report", str(report)]
        options += ["--target", str(Path(name) / "none"), *_target(served)]
        answer = pip("install", "--dry-run", *options, wanted, doing=f"asking for {wanted}", where=report)
        if answer.returncode != 0:
            return None
        try:
            (found,) = json.loads(report.read_text())["install"]
            info = found["download_info"]
            address = urlsplit(info["url"])
            file = unquote(address.path.rsplit("/", 1)[1])
            sha256 = info["archive_info"].get("hashes", {}).get("sha256")
            if sha256 is None and address.scheme == "file":
                sha256 = sha256_of(Path(unquote(address.path)))
            return Artifact(python=served.python, machine=served.machine, file=file, sha256=sha256)
        except (OSError, ValueError, KeyError, IndexError):
            return None


def _target(served: Artifact) -> list[str]:
    """pip's options for the interpreter and machine of a pinned wheel; none for one that serves all."""
    if served.machine == "any":
        return []
    python, abi, _ = served.file.removesuffix(".whl").split("-")[-3:]
    options = ["--implementation", python[:2], "--python-version", python[2:], "--abi", abi]
    machine = served.machine
    for tag in [f"manylinux_2_{minor}_{machine}" for minor in GLIBC_MINORS] + [f"manylinux2014_{machine}"]:
        options += ["--platform", tag]
    return options
