"""Fetch pinned artifacts with the user's own pip into a content-addressed cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

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
    bar = "on" if sys.stderr.isatty() else "off"
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    command += [
        "--only-binary=:all:",
        "--no-cache-dir",
        f"--progress-bar={bar}",
        "-d",
        str(folder),
        "-r",
        str(requirements),
    ]
    if any_interpreter and artifact.python != "py3":
        python, abi, platform = artifact.file.removesuffix(".whl").split("-")[-3:]
        command += ["--implementation", python[:2], "--python-version", python[2:], "--abi", abi]
        command += ["--platform", platform]
    output = None if sys.stderr.isatty() else subprocess.PIPE
    process = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True)
    requirements.unlink()
    if process.returncode == 0:
        return
    text = process.stderr
    if "DO NOT MATCH THE HASHES" in text:
        lines = [line.strip() for line in text.splitlines() if "Got" in line or "Expected" in line]
        raise Refusal(
            "artifact-hash",
            f"{artifact.file}: the index serves other bytes than the pinned ones ({'; '.join(lines)})",
            fix="do not install it; compare the pin with the project's release page",
        )
    if "No space left on device" in text:
        raise Refusal("disk-full", f"no space left while fetching {artifact.file}", path=folder.parent)
    errors = [line.removeprefix("ERROR: ") for line in text.splitlines() if line.startswith("ERROR")]
    reason = errors[-1] if errors else (text.strip().splitlines() or ["pip gave no reason"])[-1]
    raise Refusal(
        "artifact-unavailable",
        f"{artifact.requirement}: {reason}",
        fix="check the network and `pip config list`, or point PIP_FIND_LINKS at a folder that has the wheel",
    )


def free_bytes(path: Path) -> int:
    """Free space on the filesystem of the nearest existing parent of `path`."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(os.fspath(path)).free
