"""What is known about every patch upstream: header, rivals, freshness, and contradictions between what is said."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sm120.integration.common.checkout import Checkout
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.patch_file import Patch
from sm120.integration.series.pin import load_pin
from sm120.integration.series.series import load_series
from sm120.integration.upstream.github import PULL, PullState, Unanswered, pull_states
from sm120.integration.upstream.matrix import Cell
from sm120.integration.upstream.releases import load_releases

STALE_DAYS = 30

Words = Callable[[str, str], Cell | None]
"""(project, slug) → the cell on the pinned release, where it is known."""


@dataclass(frozen=True)
class PatchStatus:
    """One patch: what its header says, what is known of the pull requests it names, and what does not fit."""

    project: str
    slug: str
    tier: str
    upstream: str
    rivals: list[str]
    checked: str
    age_days: int
    evidence: list[str]
    pulls: dict[str, str]
    """Last known state of each pull request with its date, e.g. `open 2026-11-29`."""
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def statuses(
    checkout: Checkout, today: datetime.date, cell_of: Words = lambda project, slug: None
) -> list[PatchStatus]:
    """The status of every patch, from the headers, the recorded answers and the ladder's cells.

    Raises:
        Refusal: from a series; `status-row` for a recorded row that does not read.
    """
    known = last_known(checkout)
    found = []
    for project in checkout.projects():
        for patch in load_series(checkout.patches / project).patches:
            found.append(_status(patch, known, today, cell_of(project, patch.slug)))
    return found


def _status(patch: Patch, known: dict[str, PullState], today: datetime.date, cell: Cell | None) -> PatchStatus:
    header = patch.fields["Upstream-Status"]
    checked = patch.fields["Status-Checked"]
    age = (today - datetime.date.fromisoformat(checked)).days
    warnings, errors = [], []
    if age > STALE_DAYS:
        warnings.append(f"checked {age} days ago")
    if age < 0:
        warnings.append(f"Status-Checked {checked} lies in the future")
    says = header.split()[0]
    own = [match[0] for match in PULL.finditer(header)]
    pulls = {pull: known[pull] for pull in own + patch.rivals if pull in known}
    for pull in own:
        state = pulls[pull].state if pull in pulls else ""
        if (says, state) in (("Submitted", "merged"), ("Rejected", "merged"), ("Merged", "open"), ("Merged", "closed")):
            errors.append(f"the header says {says}, but {pull} is {state}")
        if state in ("closed", "gone") and says == "Submitted":
            errors.append(f"the header says Submitted, but {pull} is {state}")
    for pull in patch.rivals:
        if pull in pulls and pulls[pull].state == "merged" and says in ("Pending", "Submitted"):
            release = pulls[pull].release
            where = f"and {release} has it" if release else "try the next release"
            warnings.append(f"the rival {pull} was merged: {where}")
        if pull in pulls and pulls[pull].state == "gone":
            warnings.append(f"the rival {pull} is gone")
    if cell and cell.word in ("merged", "superseded") and says not in ("Merged", "Superseded"):
        errors.append(f"the header says {says}, but on the pinned release it is {cell.word}: {cell.why}")
    if (
        cell
        and cell.word.startswith("applies")
        and says in ("Merged", "Superseded")
        and patch.fields["Tier"] != "backport"
    ):
        errors.append(f"the header says {says}, but on the pinned release it {cell.word}")
    return PatchStatus(
        patch.project,
        patch.slug,
        patch.fields["Tier"],
        header,
        patch.rivals,
        checked,
        age,
        patch.evidence,
        {pull: state.said for pull, state in pulls.items()},
        warnings,
        errors,
    )


def refresh(
    checkout: Checkout, today: datetime.date, api: str | None = None, also: Iterable[str] = ()
) -> tuple[Path | None, Unanswered | None]:
    """Ask GitHub about every pull request that headers and rivals name, and append one dated row to `patches/status/`.

    `also` are further ones to ask about: those of the ledger.

    Returns the file that the row went to (None when nothing was answered) and why asking stopped, if it did.
    """
    pulls = []
    for project in checkout.projects():
        for patch in load_series(checkout.patches / project).patches:
            pulls += [match[0] for match in PULL.finditer(patch.fields["Upstream-Status"])] + patch.rivals
    answered, unanswered = pull_states([*pulls, *also], api=api, today=today, tags=_tags(checkout))
    if not answered:
        return None, unanswered
    row = {
        "date": today.isoformat(),
        "complete": unanswered is None,
        "patches": _counts(checkout),
        "pulls": {state.pull: _answer(state) for state in answered},
    }
    path = checkout.patches / "status" / f"{today.year}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        # ASCII: a title may hold what some readers take for the end of a line.
        file.write(json.dumps(row, sort_keys=True) + "\n")
    return path, unanswered


def _tags(checkout: Checkout) -> dict[str, dict[str, str]]:
    """By `owner/repo`, the tag of each listed release, oldest first."""
    found = {}
    for project in checkout.projects():
        folder = checkout.patches / project
        pin = load_pin(folder)
        releases = load_releases(folder) if (folder / "releases.toml").is_file() else []
        repository = "/".join(pin.repository.removesuffix(".git").rstrip("/").split("/")[-2:])
        found[repository] = {one.version: pin.git_tag.replace(pin.version, one.version) for one in releases}
    return found


def _answer(state: PullState) -> dict[str, str | bool]:
    """What is recorded of one answer: where GitHub said nothing, no key."""
    said: dict[str, str | bool] = {
        "title": state.title,
        "draft": state.draft,
        "base": state.base,
        "merge_commit": state.merge_commit,
        "release": state.release,
    }
    return {"state": state.state, **{name: value for name, value in said.items() if value}}


def _counts(checkout: Checkout) -> dict[str, dict[str, int]]:
    """Patches per project and first word of their status: what a trend is plotted from."""
    counts: dict[str, dict[str, int]] = {}
    for project in checkout.projects():
        for patch in load_series(checkout.patches / project).patches:
            word = patch.fields["Upstream-Status"].split()[0]
            counts.setdefault(project, {}).setdefault(word, 0)
            counts[project][word] += 1
    return counts


def last_known(checkout: Checkout) -> dict[str, PullState]:
    """The newest recorded state of each pull request.

    Raises:
        Refusal: `status-row`, with the line.
    """
    found: dict[str, PullState] = {}
    for path in sorted((checkout.patches / "status").glob("*.jsonl")):
        for number, line in enumerate(path.read_text().removesuffix("\n").split("\n"), 1):
            try:
                row = json.loads(line)
                date = datetime.date.fromisoformat(row["date"]).isoformat()
                for pull, answer in row["pulls"].items():
                    if not PULL.fullmatch(pull) or answer["state"] not in ("open", "closed", "merged", "gone"):
                        raise ValueError(f"{pull} is {answer['state']!r}")
                    if pull not in found or found[pull].checked <= date:
                        found[pull] = PullState(
                            pull,
                            answer["state"],
                            date,
                            answer.get("title", ""),
                            answer.get("draft", False),
                            answer.get("base", ""),
                            answer.get("merge_commit", ""),
                            answer.get("release", ""),
                        )
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise Refusal("status-row", f"not a status row: {error}", path=path, line=number) from None
    return found


def as_json(rows: list[PatchStatus]) -> str:
    return json.dumps([asdict(row) for row in rows], indent=1)


def short(pull: str) -> str:
    """`owner/repo#N` as `repo#N`, for a table."""
    return re.sub(r"^[^/]+/", "", pull)
