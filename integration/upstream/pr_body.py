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

# Sections by the words that projects' templates use for them, the first that matches.
MEANINGS = (
    ("motivation", r"motivation|\bwhy\b|description"),
    ("changes", r"modification|changes|\bwhat\b|\bhow\b"),
    ("speed", r"benchmark|profil|speed|performance"),
    ("evidence", r"accuracy|\btests?\b|verification"),
    ("related", r"related|\bissues?\b"),
)
DEFAULT_TEMPLATE = "## Motivation\n\n## Modifications\n\n## Tests\n\n## Related issues\n"


def pr_body(
    pin: Pin, closure: Closure, before: ProbeResult, after: ProbeResult, test_path: str, template: str | None = None
) -> str:
    """Markdown for the pull request of `closure.patch`.

    `before` is the probe's result on the pristine release, `after` on the release with only the closure.
    """
    sections = _sections(pin, closure, before, after, test_path)
    return fill_template(template or DEFAULT_TEMPLATE, sections)


def fill_template(template: str, sections: dict[str, str]) -> str:
    """The template with each section's text under the heading that means it.

    Hints in comments make way for the text; checklists and headings without a meaning stay as the project wrote them,
    for whoever sends it to tick. What no heading asks for follows the motivation.
    """
    parts = _parts(template)
    meanings: list[str | None] = []
    for heading, _ in parts:
        found = (name for name, words in MEANINGS if re.search(words, heading, re.IGNORECASE))
        meaning = next((name for name in found if name not in meanings), None)
        meanings.append(meaning if heading and "checklist" not in heading.lower() else None)
    homeless = [name for name in ("motivation", "changes", "evidence") if name not in meanings]
    lines = []
    for (heading, body), meaning in zip(parts, meanings, strict=True):
        lines.append(heading)
        if meaning:
            lines.append(f"\n{sections[meaning]}\n")
            body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
            if meaning == "motivation":
                lines += [f"{sections[name]}\n" for name in homeless]
        lines.append(re.sub(r"\n{3,}", "\n\n", body.strip("\n")) + "\n" if body.strip() else "")
    if "motivation" not in meanings:
        lines += [f"{sections[name]}\n" for name in homeless]
    return "\n".join(line for line in lines if line != "") + "\n"


def _parts(template: str) -> list[tuple[str, str]]:
    """(heading line, text below it); a '#' inside a code fence or a comment is no heading."""
    parts: list[tuple[str, list[str]]] = [("", [])]
    fenced = commented = False
    for line in template.splitlines():
        fenced ^= line.lstrip().startswith("```")
        if not fenced and not commented and re.match(r"#{1,4} ", line):
            parts.append((line.rstrip(), []))
        else:
            parts[-1][1].append(line)
        if not fenced:
            commented = "-->" not in line if "<!--" in line else commented and "-->" not in line
    return [(heading, "\n".join(body)) for heading, body in parts]


def find_template(clone: Path, ref: str) -> str | None:
    """The pull request template of `clone` at `ref`, wherever GitHub would look for it."""
    listing = subprocess.run(["git", "ls-tree", "-r", "--name-only", ref], cwd=clone, capture_output=True, text=True)
    for name in listing.stdout.splitlines():
        if re.fullmatch(r"(\.github/|docs/)?pull_request_template\.md", name, re.IGNORECASE):
            shown = subprocess.run(["git", "show", f"{ref}:{name}"], cwd=clone, capture_output=True, text=True)
            return shown.stdout
    return None


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
