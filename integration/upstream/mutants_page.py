"""The record of what the probes noticed, patches/mutants.json, and the page that is made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from sm120.integration.common.checkout import Checkout
from sm120.integration.series.series import load_series
from sm120.integration.upstream.mutate import Score, fingerprint

HEAD = """# Do the tests notice?

A patch's mutants are the patched files with one thing of the patch made wrong: a hunk dropped, two statements in each other's place, a
condition negated, an argument replaced by its neighbour. `sm120 mutate SLUG` runs the patch's probe on each in a throwaway tree; what it
still passes on is a survivor. Made by `sm120 mutate SLUG --record` from [patches/mutants.json](../patches/mutants.json).

Some survivors are no fault: the mutant does the same by another way. Not mutated: overlays of kernels, which have mutation twins
among their own tests, messages, and hunks that a later patch has rewritten. Served tests are not run here, so what only they see
stands as a survivor.
"""


def record_path(checkout: Checkout) -> Path:
    return checkout.patches / "mutants.json"


def page_path(checkout: Checkout) -> Path:
    return checkout.root / "docs" / "mutants.md"


def load_scores(checkout: Checkout) -> dict[str, Score]:
    """The recorded scores by slug; none without a record."""
    path = record_path(checkout)
    entries = json.loads(path.read_text()) if path.is_file() else {}
    return {
        slug: Score(**(entry | {"survivors": tuple(entry["survivors"]), "moved": tuple(entry["moved"])}))
        for slug, entry in entries.items()
    }


def record(checkout: Checkout, scores: Mapping[str, Score]) -> None:
    """Add `scores` to the record, and write the page."""
    every = {slug: asdict(score) for slug, score in sorted((load_scores(checkout) | dict(scores)).items())}
    record_path(checkout).write_text(json.dumps(every, indent=1) + "\n")
    page_path(checkout).write_text(page(checkout))


def page(checkout: Checkout) -> str:
    """The page, by name; a score of another text of the patch or its probe says so."""
    scores = load_scores(checkout)
    patches = {p.slug: p for project in checkout.projects() for p in load_series(checkout.patches / project).patches}
    rows, details = [], []
    for slug, score in scores.items():
        now = slug in patches and score.patch == fingerprint(checkout, patches[slug])
        stale = "" if now else " (of an earlier text)"
        share = f"{score.caught / score.mutants:.0%}"
        rows.append(f"| `{slug}`{stale} | {score.mutants} | {score.caught} | {share} | {len(score.moved)} |")
        if score.survivors:
            details += ["", f"**`{slug}`**", ""]
            details += [f"* {at['kind']}, `{at['file']}:{at['line']}`: `{at['says']}`" for at in score.survivors]
    mutants, caught = sum(s.mutants for s in scores.values()), sum(s.caught for s in scores.values())
    lines = [
        HEAD,
        f"Of {mutants} mutants of {len(rows)} patches {caught} are caught. No other patch has been run yet.",
        "",
    ]
    lines += ["| patch | mutants | caught | score | hunks rewritten later |", "| --- | --- | --- | --- | --- |", *rows]
    return "\n".join([*lines, "", "## Survivors", *(details or ["", "None."]), ""])
