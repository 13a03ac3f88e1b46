"""The tiny models: the same bytes every time, and outputs that a wrong cache would change. No server is started."""

import hashlib
from pathlib import Path

import pytest

from sm120.integration.build import models
from sm120.integration.build.installed_runtime import Runtime
from sm120.integration.prove import reference
from sm120.integration.prove.caching import DENSE_PROMPT, HYBRID_PROMPT
from sm120.integration.prove.prompts import prompt

pytestmark = [pytest.mark.served, pytest.mark.timeout(300)]


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("model", [models.HYBRID, models.DFLASH_DRAFT], ids=["hybrid", "dflash"])
def test_same_description_gives_same_bytes(runtime: Runtime, tmp_path: Path, model: models.Model) -> None:
    first, second = models.make(runtime, model, tmp_path / "a"), models.make(runtime, model, tmp_path / "b")
    assert first.name == second.name
    assert digests(first) == digests(second)
    assert "model.safetensors" in digests(first) and "tokenizer.json" in digests(first)


def test_a_cached_model_is_not_made_again(runtime: Runtime, work: Path) -> None:
    folder = models.make(runtime, models.DENSE, work / "models")
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert models.make(runtime, models.DENSE, work / "models") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert not list((work / "models").glob(".making-*"))


@pytest.mark.parametrize(
    ("model", "asked"),
    [(models.DENSE, DENSE_PROMPT), (models.HYBRID, HYBRID_PROMPT)],
    ids=["dense", "hybrid"],
)
def test_the_proofs_prompt_depends_on_what_is_cached(
    runtime: Runtime, work: Path, model: models.Model, asked: list[int]
) -> None:
    """One other token, anywhere in the pages that a hit restores, changes the reference's continuation."""
    others = [[*asked[:at], (asked[at] + 1) % 256, *asked[at + 1 :]] for at in (10, 30, 60, 100, 120)]
    folder = models.make(runtime, model, work / "models")
    _, (first, *changed) = reference.verdicts(runtime, folder, [asked, *others], [], new_tokens=16, tolerance=0.0)
    assert [first != other for other in changed] == [True] * 5
    assert len(set(first)) > 4


def test_the_reference_rejects_another_token(runtime: Runtime, work: Path) -> None:
    folder = models.make(runtime, models.DENSE, work / "models")
    asked = prompt(0, 40)
    _, (greedy,) = reference.verdicts(runtime, folder, [asked], [], new_tokens=8, tolerance=0.0)
    flipped = [*greedy[:5], greedy[5] ^ 1, *greedy[6:]]
    (right, wrong), _ = reference.verdicts(
        runtime, folder, [asked], [(0, greedy), (0, flipped)], new_tokens=8, tolerance=reference.TIE["float32"]
    )
    assert right == reference.Verdict(True, 0, None)
    assert wrong == reference.Verdict(False, 0, 5)
