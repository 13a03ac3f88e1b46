"""Fetch pinned artifacts with the user's own pip into a content-addressed cache."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

from sm120.integration.common.pip import pip, reason
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.pin import Artifact


def fetch(artifact: Artifact, cache: Path, *, any_interpreter: bool = False) -> Path:
    """The verified artifact in the cache, downloaded only when it is not there.

    `any_interpreter` also fetches a wheel that this Python could not install: to read, not to run.

    The user's pip configuration (index, proxy, certificates, find-links) is honoured because pip itself downloads.
    A cached file whose bytes changed is removed and fetched again.

    Raises:
        Refusal: `artifact-unavailable` (no network, no such release), `artifact-hash` (other bytes than pinned),
            `disk-full`.
    """
    folder = cache / "artifacts" / artifact.sha256[:2] / artifact.sha256
    path = folder / artifact.file
    if path.is_file():
        if sha256_of(path) == artifact.sha256:
            return path
        path.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as name:
        aside = Path(name)
        _download(artifact, aside, any_interpreter)
        downloaded = aside / artifact.file
        if not downloaded.is_file():
            others = ", ".join(sorted(entry.name for entry in aside.iterdir())) or "nothing"
            raise Refusal("artifact-unavailable", f"pip brought {others}, not {artifact.file}")
        found = sha256_of(downloaded)
        if found != artifact.sha256:
            raise Refusal("artifact-hash", f"{artifact.file}: sha256 {found}, pinned {artifact.sha256}")
        downloaded.replace(path)
    return path


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(artifact: Artifact, folder: Path, any_interpreter: bool) -> None:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{artifact.requirement} --hash=sha256:{artifact.sha256}\n")
    # pip shows its own progress bar on a terminal; elsewhere its output is kept for the error message.
    terminal = sys.stderr.isatty()
    options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--no-cache-dir"]
    options += [f"--progress-bar={'on' if terminal else 'off'}", "-d", str(folder), "-r", str(requirements)]
    if any_interpreter and artifact.python != "py3":
        python, abi, platform = artifact.file.removesuffix(".whl").split("-")[-3:]
        options += ["--implementation", python[:2], "--python-version", python[2:], "--abi", abi]
        options += ["--platform", platform]
    answer = pip("download", *options, doing=f"fetching {artifact.file}", where=folder.parent, bar=terminal)
    requirements.unlink()
    if answer.returncode == 0:
        return
    if "DO NOT MATCH THE HASHES" in answer.stderr:
        lines = [line.strip() for line in answer.stderr.splitlines() if "Got" in line or "Expected" in line]
        raise Refusal(
            "artifact-hash",
            f"{artifact.file}: the index serves other bytes than the pinned ones ({'; '.join(lines)})",
            fix="do not install it; compare the pin with the project's release page",
        )
    raise Refusal(
        "artifact-unavailable",
        f"{artifact.requirement}: {reason(answer)}",
        fix="check the network and `pip config list`, or point PIP_FIND_LINKS at a folder that has the wheel",
    )
