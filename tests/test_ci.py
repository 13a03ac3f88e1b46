"""What checks a commit: the hooks run what `make lint` runs, and the workflows let nobody in."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def recipe(target: str) -> list[str]:
    """The commands of a rule of the Makefile, without its prerequisites' own."""
    found = re.search(rf"(?m)^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text())
    assert found is not None, target
    return [line.strip() for line in found[1].splitlines()]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not on PATH")
def test_the_hooks_run_what_make_lint_runs():
    entries = re.findall(r"entry: (.+)", (ROOT / ".pre-commit-config.yaml").read_text())
    hooks = {entry.removesuffix(" --force-exclude") for entry in entries}
    linted = {line.removesuffix(" .").replace("$(MAKE)", "make") for line in recipe("lint")}
    assert hooks == linted | {"make types"} and len(entries) == 3
    assert re.search(r"(?m)^lint:.* types$", (ROOT / "Makefile").read_text())
    command = ["make", "--dry-run", "--always-make", "lint"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}, timeout=60)
    assert "build/dev/bin/mypy" in done.stdout and "ruff format --check ." in done.stdout, done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_names_actions_by_commit_and_asks_for_little(path):
    text = path.read_text()
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used and all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action) for action, _ in used)
    assert all(re.fullmatch(r" # v\d+(\.\d+)*", version) for _, version in used), "the version stands beside it"
    assert re.search(r"(?m)^permissions: \{\}$", text), "a job asks for what it needs"
    assert text.count("persist-credentials: false") == text.count("actions/checkout@")
    jobs = text[text.index("\njobs:") :]
    assert len(re.findall(r"(?m)^  \w+:$", jobs)) == jobs.count("timeout-minutes: ") == jobs.count("permissions:\n")


def test_one_action_is_one_commit_everywhere():
    seen: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for action, commit in re.findall(r"uses: ([\w./-]+)@([0-9a-f]{40})", path.read_text()):
            seen.setdefault(action, set()).add(commit)
    assert {action for action, commits in seen.items() if len(commits) > 1} == set()


def test_ci_runs_lint_and_the_readmes_test_command():
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert "run: make lint\n" in text and "run: make test RUNTIME=cpu\n" in text
