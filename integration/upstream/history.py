"""Which of upstream's commits took a change, in whatever words: git's range-diff over the history of a clone.

A release shows where its code ended up. A history shows each step, and a step that is our change in other words lies
nearer to it than to nothing, which is what range-diff measures.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sm120.integration.common.git import isolated, run_git, words
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.pin import Pin

CREATION_FACTOR = 60
"""Per cent of a change that may differ (git's own default); more matches what is not alike."""

Side = Mapping[str, bytes | None]


@dataclass(frozen=True)
class Taken:
    """The commit that took a change, and the one that took it back, if any."""

    commit: str
    subject: str
    reverted_by: str = ""


class History:
    """A clone of a project's repository, read only: what has to be written lies in a folder of our own.

    A partial clone (`git clone --filter=blob:none`) is enough; git then fetches what it compares.
    """

    def __init__(self, clone: Path, pin: Pin) -> None:
        """Raises: Refusal `history-clone` when `clone` is no repository, or lacks the tag of the pin."""
        self.clone, self.pin = clone.resolve(), pin
        self._git_dir = Path(self._say("rev-parse", "--absolute-git-dir"))
        self._objects = self._say("rev-parse", "--path-format=absolute", "--git-path", "objects")
        self.base = self.commit_of(pin.version)

    def commit_of(self, version: str) -> str:
        """The commit of a release, by the pin's form of a tag.

        Raises:
            Refusal: `history-clone`.
        """
        tag = self.pin.git_tag.replace(self.pin.version, version)
        return self._say("rev-parse", "--verify", "--quiet", f"{tag}^{{commit}}", lacks=f"has no tag {tag}")

    def find(self, before: Side, after: Side, version: str) -> Taken | None:
        """The commit between the pin and `version` that is the change from `before` to `after` (paths of the wheel)."""
        places = {path: self.pin.upstream_path(path) for path in before.keys() | after.keys()}
        return self.between(
            {places[path]: data for path, data in before.items()},
            {places[path]: data for path, data in after.items()},
            self.base,
            self.commit_of(version),
        )

    def between(self, before: Side, after: Side, base: str, tip: str) -> Taken | None:
        """The same in the repository's own paths, between two commits."""
        paths = sorted(before.keys() | after.keys())
        with tempfile.TemporaryDirectory(prefix="sm120-history-") as folder:
            env = self._environment(Path(folder))
            ours = self._commit(after, self._commit(before, None, env), env)
            command = ["range-diff", "--no-color", "-s", f"--creation-factor={CREATION_FACTOR}"]
            said = self._git(
                [*command, f"{ours}^..{ours}", f"{base}..{tip}", "--", *(f":(literal){path}" for path in paths)], env
            )
            found = re.search(r"(?m)^\s*1:\s+[0-9a-f]+ [=!]\s+\d+:\s+([0-9a-f]+) ", said)
            if not found:
                return None
            commit = self._git(["rev-parse", found[1]], env).strip()
        subject = self._say("log", "-1", "--format=%s", commit)
        reverts = self._say("log", "--format=%H", f"--grep=This reverts commit {commit}", f"{commit}..{tip}")
        return Taken(commit, subject, (reverts.splitlines() or [""])[0])

    def _commit(self, files: Side, parent: str | None, env: dict[str, str]) -> str:
        self._git(["read-tree", "--empty"], env)
        for path, data in files.items():
            if data is not None:
                blob = self._git(["hash-object", "-w", "--stdin"], env, data).strip()
                self._git(["update-index", "--add", "--cacheinfo", f"100644,{blob},{path}"], env)
        tree = self._git(["write-tree"], env).strip()
        return self._git(["commit-tree", tree, *(["-p", parent] if parent else []), "-m", "carried"], env).strip()

    def _environment(self, folder: Path) -> dict[str, str]:
        """New objects and the index go to `folder`; the clone is only read."""
        (folder / "objects").mkdir()
        return {
            "GIT_OBJECT_DIRECTORY": str(folder / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": self._objects,
            "GIT_INDEX_FILE": str(folder / "index"),
            **{f"GIT_{who}_{what}": "carried" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }

    def _say(self, *arguments: str, lacks: str = "is no git repository") -> str:
        """git's answer about the clone, without writing anything."""
        answer = run_git(self.clone, *arguments) if self.clone.is_dir() else None
        if answer is None or answer.returncode != 0:
            fix = "git clone --filter=blob:none URL, with its tags"
            raise Refusal("history-clone", lacks, path=self.clone, fix=fix)
        return answer.stdout.decode(errors="replace").strip()

    def _git(self, arguments: list[str], env: dict[str, str], data: bytes | None = None) -> str:
        where = f"--git-dir={self._git_dir}"
        answer = run_git(self.clone, where, *arguments, environment=isolated() | env, stdin=data or b"")
        if answer.returncode != 0:
            said = (words(answer).splitlines() or ["no reason given"])[-1]
            raise Refusal("history-git", f"git {arguments[0]}: {said}", path=self.clone)
        return os.fsdecode(answer.stdout)
