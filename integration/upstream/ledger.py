"""The ledger: every change that was once wanted, those that need no patch any more included.

A row that upstream has taken keeps a behavioural probe that must pass on the unpatched pin, so that a regression
upstream is noticed at the next bump.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Annotated, Literal

from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from sm120.integration.common.checkout import Checkout
from sm120.integration.common.manifest import read_manifest
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.series import Series, load_series
from sm120.integration.upstream.status import STALE_DAYS

Pull = Annotated[str, StringConstraints(pattern=r"^[\w.-]+/[\w.-]+#\d+$")]
Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]

Verdict = Literal["needed", "partly", "taken", "superseded", "not reachable", "n/a"]


class LedgerRow(BaseModel):
    """One change.

    `pins` says, per release, whether the change is still needed there; `patches` carry what is needed on the pin;
    `probe` guards what upstream has.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Slug
    project: str
    what: str
    upstream: list[Pull] = []
    rivals: list[Pull] = []
    """Open ones for the same. A row with patches has those that the headers of its patches name, and states none."""
    related: list[Pull] = []
    """Others that were read: closed ones, or of a part."""
    first_release: str = ""
    pins: dict[str, Verdict] = Field(min_length=1)
    patches: list[Slug] = []
    probe: str = ""
    no_probe: str = ""
    """Why a taken row has no probe: what a CPU cannot show."""
    evidence: Annotated[str, StringConstraints(min_length=8)]
    checked: datetime.date

    @property
    def pulls(self) -> list[str]:
        """All that it names."""
        return [*self.upstream, *self.rivals, *self.related]


class _Ledger(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    change: list[LedgerRow]


def load_ledger(checkout: Checkout) -> list[LedgerRow]:
    """Read and check `patches/ledger.toml` against the series and the probes that exist.

    Rows with patches come with the rivals that the headers of these patches name.

    Raises:
        Refusal: `ledger-missing`, `ledger-syntax`, `ledger-field`, `ledger-row` (the row contradicts itself or names
            what is not there, or a patch has no row).
    """
    path = checkout.patches / "ledger.toml"
    rows = read_manifest(path, _Ledger, "ledger", missing="no ledger").change
    series = {project: load_series(checkout.patches / project) for project in checkout.projects()}
    seen: set[str] = set()
    for row in rows:
        for problem in _problems(checkout, row, series, seen):
            raise Refusal("ledger-row", f"{row.name}: {problem}", path=path)
        seen.add(row.name)
    carried = {slug for row in rows for slug in row.patches}
    for one in series.values():
        for patch in one.patches:
            if patch.slug not in carried:
                raise Refusal("ledger-row", f"no row says what {patch.slug} is for upstream", path=path)
    headers = {patch.slug: patch.rivals for one in series.values() for patch in one.patches}
    return [
        row.model_copy(update={"rivals": list(dict.fromkeys(pull for slug in row.patches for pull in headers[slug]))})
        if row.patches
        else row
        for row in rows
    ]


def ledger_findings(
    rows: list[LedgerRow], today: datetime.date, word_of: Callable[[str, str, str], str | None]
) -> tuple[list[str], list[str]]:
    """Warnings (rows checked too long ago) and errors (rows that the matrix contradicts), a line each.

    `word_of(project, slug, version)` is the matrix's word for a patch on a release, None where it is not known.
    """
    warnings, errors = [], []
    for row in rows:
        age = (today - row.checked).days
        if age > STALE_DAYS:
            warnings.append(f"{row.name}: checked {age} days ago")
        for version, verdict in row.pins.items():
            words = [word_of(row.project, slug, version) for slug in row.patches]
            taken = [word for word in words if word in ("merged", "superseded")]
            if verdict == "needed" and words and len(taken) == len(words):
                errors.append(f"{row.name}: needed on {version} says the ledger, {taken[0]} says the matrix")
    return warnings, errors


def _problems(checkout: Checkout, row: LedgerRow, series: dict[str, Series], seen: set[str]) -> Iterator[str]:
    if row.name in seen:
        yield "stands there twice"
    if row.project not in series:
        yield f"no project is called {row.project!r}"
        return
    if row.rivals and row.patches:
        yield "names rivals: the headers of its patches do (one that is no rival is `related`)"
    slugs = {patch.slug for one in series.values() for patch in one.patches}
    for slug in row.patches:
        if slug not in slugs:
            yield f"names the patch {slug}, which no series has"
    for version in [*row.pins, *filter(None, [row.first_release])]:
        try:
            Version(version)
        except InvalidVersion:
            yield f"{version!r} is not a version"
            return
    pinned = series[row.project].pin.version
    verdict = row.pins.get(pinned)
    if verdict is None:
        yield f"has no verdict for the pinned {pinned}"
    if verdict in ("needed", "partly") and not row.patches:
        yield f"is {verdict} on {pinned}, and no patch carries it"
    if verdict in ("taken", "superseded") and not (row.probe or row.no_probe):
        yield f"is {verdict}, and no probe guards it"
    if row.probe and not (checkout.root / row.probe).is_file():
        yield f"its probe {row.probe} does not exist"
    if row.first_release:
        for version, said in row.pins.items():
            if Version(version) >= Version(row.first_release) and said == "needed":
                yield f"is needed on {version}, though {row.first_release} has it"
            if Version(version) < Version(row.first_release) and said in ("taken", "superseded"):
                yield f"is {said} on {version}, before {row.first_release}"
