"""The text of a pull request: motivation, change, evidence before and after, how to reproduce.

The headings are those of the clone's own template when it has one.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from sm120.integration.patch_file import Patch
from sm120.integration.pin import Pin
from sm120.integration.probes import ProbeResult
from sm120.integration.upstream.closure import Closure

# Sections by the words that projects' templates use for them.
MEANINGS = (
    ("motivation", r"motivation|why|description|what\b"),
    ("changes", r"modification|changes|how\b"),
    ("evidence", r"accuracy|tests?\b|verification"),
    ("speed", r"benchmark|profil|speed|performance"),
    ("related", r"related|issues"),
)
DEFAULT_HEADINGS = ("## Motivation", "## Modifications", "## Tests", "## Related issues")


def pr_body(
    pin: Pin, closure: Closure, before: ProbeResult, after: ProbeResult, test_path: str, template: str | None = None
) -> str:
    """Markdown for the pull request of `closure.patch`.

    `before` is the probe's result on the pristine release, `after` on the release with only the closure.
    """
    sections = _sections(pin, closure, before, after, test_path)
    headings = _headings(template) if template else list(DEFAULT_HEADINGS)
    parts, used = [], set()
    for heading in headings:
        meaning = next((name for name, words in MEANINGS if re.search(words, heading, re.IGNORECASE)), None)
        if meaning and meaning not in used:
            used.add(meaning)
            parts.append(f"{heading}\n\n{sections[meaning]}\n")
    for meaning in ("motivation", "changes", "evidence"):
        if meaning not in used:
            parts.append(f"## {meaning.capitalize()}\n\n{sections[meaning]}\n")
    return "\n".join(parts)


def find_template(clone: Path, ref: str) -> str | None:
    """The pull request template of `clone` at `ref`, wherever GitHub would look for it."""
    listing = subprocess.run(["git", "ls-tree", "-r", "--name-only", ref], cwd=clone, capture_output=True, text=True)
    for name in listing.stdout.splitlines():
        if re.fullmatch(r"(\.github/|docs/)?pull_request_template\.md", name, re.IGNORECASE):
            shown = subprocess.run(["git", "show", f"{ref}:{name}"], cwd=clone, capture_output=True, text=True)
            return shown.stdout
    return None


def _headings(template: str) -> list[str]:
    return [line.rstrip() for line in template.splitlines() if re.match(r"#{1,4} ", line)]


def _sections(pin: Pin, closure: Closure, before: ProbeResult, after: ProbeResult, test_path: str) -> dict[str, str]:
    patch = closure.patch
    failures = "\n".join(f"    {line}" for line in before.failures[:8])
    needs = ""
    if len(closure.patches) > 1:
        needs = "\n\nOne commit each, in this order:\n" + "\n".join(
            f"* {other.subject.split('] ', 1)[1]}" for other in closure.patches
        )
    return {
        "motivation": patch.description,
        "changes": _diffstat(pin, patch) + needs,
        "evidence": (
            f"`{test_path}` on {pin.git_tag} without this change: {before.failed} failed, {before.passed} passed.\n"
            f"{failures}\n\nWith it: {after.passed} passed.\n\n"
            f"```\npython -m pytest {test_path}\n```\n\n{_rungs(patch)}"
        ),
        "speed": "No claim about speed is made.",
        "related": ", ".join(patch.rivals) + " address the same defect." if patch.rivals else "None known.",
    }


def _diffstat(pin: Pin, patch: Patch) -> str:
    rows = [f"* `{pin.upstream_path(file.path)}` +{file.added} −{file.removed}" for file in patch.files]
    return "\n".join(rows)


def _rungs(patch: Patch) -> str:
    words = {
        "reference": "the maths against a float64 reference",
        "cpu": "on the CPU",
        "served": "in a server answering real requests on the CPU",
        "sm_120a": "compiled for sm_120a (not run on a device)",
    }
    return "Checked " + "; ".join(words.get(rung, rung) for rung in patch.evidence) + "."
