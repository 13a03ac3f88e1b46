"""git: one way to run it, as it is without its user. What comes out must not depend on the configuration of a machine.

A user's `apply.ignoreWhitespace` is fuzz by another name, and their attributes rewrite line ends.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from sm120.integration.common.disk import refuse_if_full
from sm120.integration.common.refusal import Refusal

CONFIG = (
    "core.quotepath=true",
    "core.autocrlf=false",
    # Both have a default place that is read even where there is no configuration.
    f"core.attributesFile={os.devnull}",
    f"core.excludesFile={os.devnull}",
    "diff.renames=true",
    "diff.algorithm=myers",
    "apply.ignoreWhitespace=no",
    "apply.whitespace=nowarn",
)
OPTIONS = [part for entry in CONFIG for part in ("-c", entry)]
"""What fixes the bytes on git's command line, where even the configuration of a repository counts for nothing."""

# Where git would look for a repository instead of in the folder that it is started in; git sets these for its hooks.
LOCATION = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
)

# Who makes the commits of throw-away repositories and of workspaces, and when: their ids depend on nothing else.
IDENTITY = {
    f"GIT_{role}_{name}": value
    for role in ("AUTHOR", "COMMITTER")
    for name, value in {
        "NAME": "sm120-runtime",
        "EMAIL": "patches@localhost",
        "DATE": "2000-01-01T00:00:00Z",
    }.items()
}


def git(folder: Path, *arguments: str) -> str:
    """Run git in `folder`, without its user and with IDENTITY, and return its standard output.

    core.quotepath keeps that ASCII but for the contents of files; those stay bytes-clean through surrogateescape.

    Raises:
        Refusal: `git-failed` with git's own message; `disk-full`.
    """
    answer = run_git(folder, *arguments, environment=isolated() | IDENTITY)
    if answer.returncode != 0:
        raise Refusal("git-failed", f"git {arguments[0]}: {words(answer)}", path=folder)
    return answer.stdout.decode(errors="surrogateescape")


def run_git(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """What git answers in `folder`, whatever that is; `environment` is `isolated()` unless another one is given.

    Raises:
        Refusal: `disk-full`.
    """
    answer = subprocess.run(
        ["git", *OPTIONS, *arguments],
        cwd=folder,
        env=isolated() if environment is None else environment,
        input=stdin,
        capture_output=True,
    )
    if answer.returncode != 0:
        command = next((word for word in arguments if not word.startswith("-")), "")
        refuse_if_full(words(answer), f"git {command} works", folder)
    return answer


def words(answer: subprocess.CompletedProcess[bytes]) -> str:
    """What git said on standard error."""
    return answer.stderr.decode(errors="replace").strip()


def isolated() -> dict[str, str]:
    """The environment without the user's, the machine's and the environment's own configuration of git."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name == "GIT_EXEC_PATH"}
    return kept | {
        "LC_ALL": "C",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
    }


def of_the_user() -> dict[str, str]:
    """The environment with the user's configuration, identity included, for git in the folder it is started in."""
    return {name: value for name, value in os.environ.items() if name not in LOCATION} | {"LC_ALL": "C"}
