"""Speculative against plain decoding: the checks here hold on the patched tree, and the release fails them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sm120.integration.build.identity import load_recipe
from sm120.integration.build.runtime import pristine_of
from sm120.integration.build.tree import patched_tree
from sm120.integration.common.checkout import find_checkout
from sm120.integration.upstream.probes import tree_environment

HERE = Path(__file__).parent
CHECKOUT = find_checkout(HERE)
CHECKS = sorted(file.name for file in HERE.glob("check_*.py"))


@pytest.fixture(scope="module")
def trees() -> dict[str, Path]:
    recipe = load_recipe(CHECKOUT, "sglang")
    pristine = pristine_of(CHECKOUT, recipe)
    patched = patched_tree(pristine, recipe.series, recipe.overlay, CHECKOUT.build / "trees" / recipe.name)
    return {"pristine": pristine, "patched": patched}


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on a check with `tree` first on the import path, then the runtime and the proof layer."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command,
        cwd=HERE,
        env=tree_environment(CHECKOUT, tree),
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )


def test_speculation_does_what_plain_decoding_does(trees):
    """All checks in one process: importing the tree takes longer than any of them."""
    done = run(trees["patched"], *CHECKS)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_the_same_check_rejects_the_release(trees):
    """The mutation twin of the harness: penalties, min_p and logit processors are known to be lost there."""
    done = run(trees["pristine"], "check_sampling_parameters.py", "-k", "penalty or min_p or custom or min_new")
    assert done.returncode == 1, done.stdout[-6000:]
    lost = set(re.findall(r"AssertionError: (.+ on \w+): distributions differ", done.stdout))
    assert {"min_p on eagle", "frequency_penalty on dflash", "custom_logit_processor on ngram"} <= lost
    assert " error" not in done.stdout.splitlines()[-1]


@pytest.mark.long
def test_no_stream_is_misread_and_the_count_rejects_the_release(trees):
    """Over 10,000 streams of tool calls and reasoning; a few cuttings are enough to see the release misread."""
    patched, pristine = (streams(trees["patched"], 100), streams(trees["pristine"], 1))
    assert patched.returncode == 0, patched.stdout + patched.stderr[-2000:]
    found = re.fullmatch(r"(\d+) streams, 0 malformed", patched.stdout.splitlines()[-1])
    assert found and int(found[1]) >= 10_000, patched.stdout
    assert pristine.returncode == 1, pristine.stdout + pristine.stderr[-2000:]


def streams(tree: Path, count: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "streams.py"), str(count)]
    environment = tree_environment(CHECKOUT, tree)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=580, check=False)
