"""The text of a pull request: motivation, change, evidence before and after, how to reproduce.

The headings are those of the clone's own template when it has one.
"""

from __future__ import annotations

import re
from pathlib import Path

from sm120.integration.common.git import of_the_user, run_git
from sm120.integration.series.patch_file import Patch
from sm120.integration.series.pin import Pin
from sm120.integration.upstream.closure import Closure
from sm120.integration.upstream.probes import ProbeResult

# Sections by the words that projects' templates use for them, the first that matches.
MEANINGS = (
    ("motivation", r"motivation|\bwhy\b|description"),
    ("changes", r"modification|changes|\bwhat\b|\bhow\b"),
    ("speed", r"benchmark|profil|speed|performance"),
    ("evidence", r"accuracy|\btests?\b|verification"),
    ("related", r"related|\bissues?\b"),
)
NOTHING_RELATED = "None known."
DEFAULT_TEMPLATE = "## Motivation\n\n## Modifications\n\n## Tests\n\n## Related issues\n"


def pr_body(
    pin: Pin,
    closure: Closure,
    results: tuple[ProbeResult, ProbeResult] | None,
    added: list[str],
    template: str | None = None,
) -> str:
    """Markdown for the pull request of `closure.patch`.

    `results` are the probe's on the pristine release and on the release with only the closure, None where it was not
    run; `added` are the new files beside the diff's, the test first.
    """
    sections = _sections(pin, closure, results, added, added[0])
    return fill_template(template or DEFAULT_TEMPLATE, sections)


def fill_template(template: str, sections: dict[str, str]) -> str:
    """The template with each section's text under the heading that means it.

    Hints, in comments or in italics, make way for the text; checklists and headings without a meaning stay as the
    project wrote them, for whoever sends it to tick. What no heading asks for follows motivation and changes.
    """
    parts = _parts(template)
    meanings: list[str | None] = []
    for heading, _ in parts:
        found = (name for name, words in MEANINGS if re.search(words, heading, re.IGNORECASE))
        meaning = next((name for name in found if name not in meanings), None)
        meanings.append(meaning if heading and "checklist" not in heading.lower() else None)
    homeless = [name for name in ("motivation", "changes", "evidence", "related") if name not in meanings]
    homeless = [name for name in homeless if sections[name] != NOTHING_RELATED]
    host = next((name for name in reversed(meanings) if name in ("motivation", "changes")), None)
    lines = []
    for (heading, body), meaning in zip(parts, meanings, strict=True):
        lines.append(heading)
        if meaning:
            lines.append(f"\n{sections[meaning]}\n")
            body = re.sub(r"<!--.*?-->|^_[^_].*?_$", "", body, flags=re.DOTALL | re.MULTILINE)
            if meaning == host:
                lines += [f"{sections[name]}\n" for name in homeless]
        lines.append("\n" + re.sub(r"\n{3,}", "\n\n", body.strip("\n")) + "\n" if body.strip() else "")
    if host is None:
        lines += [f"{sections[name]}\n" for name in homeless]
    text = "\n".join(line for line in lines if line != "")
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


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
    listing = run_git(clone, "ls-tree", "-r", "--name-only", ref, environment=of_the_user())
    for name in listing.stdout.decode().splitlines():
        if re.fullmatch(r"(\.github/|docs/)?pull_request_template\.md", name, re.IGNORECASE):
            return run_git(clone, "show", f"{ref}:{name}", environment=of_the_user()).stdout.decode()
    return None


def _sections(
    pin: Pin,
    closure: Closure,
    results: tuple[ProbeResult, ProbeResult] | None,
    added: list[str],
    test_path: str,
) -> dict[str, str]:
    patch = closure.patch
    needs = ""
    if len(closure.patches) > 1:
        needs = "\n\nIt needs these, which are here as commits of their own, before it:\n\n" + "\n".join(
            f"* {other.subject.split('] ', 1)[1]}" for other in closure.patches[:-1]
        )
    return {
        "motivation": reflowed(patch.description),
        "changes": _files(pin, patch, added) + needs,
        "evidence": f"{_ran(pin, results, test_path)}```\npython -m pytest {test_path}\n```\n\n{_rungs(patch)}",
        "speed": "No claim about speed is made.",
        "related": f"{_listed(patch.rivals)} the same defect." if patch.rivals else NOTHING_RELATED,
    }


def _ran(pin: Pin, results: tuple[ProbeResult, ProbeResult] | None, test_path: str) -> str:
    """What the test said without and with the change; only its name where it was not run for this text."""
    if results is None:
        return f"`{test_path}` is the test of this change.\n\n"
    before, after = results
    return (
        f"`{test_path}` on {pin.git_tag} without this change: {before.failed} failed, {before.passed} passed.\n\n"
        f"```\n{_failures(before)}\n```\n\nWith it: {after.passed} passed.\n\n"
    )


def reflowed(text: str) -> str:
    """`text` with each paragraph on one line: GitHub shows a line break in a comment as one. Lists stay as they are."""
    paragraphs = []
    for paragraph in re.split(r"\n{2,}", text):
        plain = not re.search(r"^(\s|[*+-] |\d+\. |```|\|)", paragraph, re.MULTILINE)
        paragraphs.append(" ".join(paragraph.splitlines()) if plain else paragraph)
    return "\n\n".join(paragraphs)


def _listed(pulls: list[str]) -> str:
    """Pull requests as the subject of a sentence."""
    if len(pulls) == 1:
        return f"{pulls[0]} addresses"
    return f"{', '.join(pulls[:-1])} and {pulls[-1]} address"


def _files(pin: Pin, patch: Patch, added: list[str]) -> str:
    """What the last commit changes, the new files last."""
    rows = [f"* `{pin.upstream_path(file.path)}` +{file.added} −{file.removed}" for file in patch.files]
    return "\n".join(rows + [f"* new: `{path}`" for path in added])


def _failures(before: ProbeResult, limit: int = 8) -> str:
    lines = [line if len(line) <= 160 else f"{line[:159]}…" for line in before.failures[:limit]]
    more = len(before.failures) - limit
    return "\n".join(lines + ([f"and {more} more"] if more > 0 else []))


def _rungs(patch: Patch) -> str:
    words = {
        "reference": "the maths against a float64 reference",
        "cpu": "on the CPU",
        "ptx": "the PTX for sm_120a, run on the CPU",
        "served": "in a server answering real requests on the CPU",
        "sm_120a": "compiled for sm_120a (not run on a device)",
    }
    return "Checked " + "; ".join(words.get(rung, rung) for rung in patch.evidence) + "."
