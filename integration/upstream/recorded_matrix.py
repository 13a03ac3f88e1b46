"""The matrix as it is committed: `patches/matrix.json`, from which the README's tables are made.

It says of what it was made. When the series, the pin or the listed releases change, it is stale and nothing is
generated from it; probe results in it are kept by content, so that a fresh clone need not run the probes again.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from sm120.integration.build.identity import digest
from sm120.integration.common.checkout import Checkout
from sm120.integration.common.manifest import first_problem
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.overlay import load_overlay
from sm120.integration.series.series import Series
from sm120.integration.upstream.releases import load_releases

FIX = "sm120 matrix --record, then sm120 readme"


class RecordedCell(BaseModel):
    """One patch on one release: the word, where it conflicts, and what its probe does there unpatched."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    word: str
    where: str = ""
    probe: str


class RecordedTable(BaseModel):
    """The matrix of one project on a day."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    made: datetime.date
    inputs: str
    pinned: str
    versions: list[str]
    cells: dict[str, dict[str, RecordedCell]]


class RecordedProbe(BaseModel):
    """What a probe did on an unpatched release."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    passed: int
    failed: int
    errors: int
    skipped: int
    failures: tuple[str, ...] = ()


class Record(BaseModel):
    """Everything in `patches/matrix.json`; `probes` by the digest of probe and release."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    projects: dict[str, RecordedTable] = {}
    probes: dict[str, RecordedProbe] = {}


def record_path(checkout: Checkout) -> Path:
    return checkout.patches / "matrix.json"


def load_record(checkout: Checkout) -> Record:
    """The committed record; an empty one when there is none.

    Raises:
        Refusal: `matrix-record` when it does not read.
    """
    path = record_path(checkout)
    try:
        return Record.model_validate_json(path.read_text())
    except FileNotFoundError:
        return Record()
    except (ValidationError, UnicodeDecodeError) as error:
        first = first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise Refusal("matrix-record", f"does not read: {first}", path=path, fix=FIX) from None


def save_record(checkout: Checkout, record: Record) -> Path:
    """Write the record, one cell a line, in an order that depends on nothing but its content."""
    path = record_path(checkout)
    data = record.model_dump(mode="json", exclude_defaults=True)
    data["probes"] = dict(sorted(data.get("probes", {}).items()))
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    return path


def table_inputs(checkout: Checkout, series: Series) -> str:
    """Digest of what a project's cells are made of: pin, releases, and the diffs with what they require and overlay."""
    releases = load_releases(checkout.patches / series.project)
    overlay = load_overlay(checkout.kernels, series.kernels, series.project)
    return digest(
        [
            series.pin.version,
            [release.model_dump() for release in releases],
            [(patch.slug, patch.diff, patch.requires, patch.kernels) for patch in series.patches],
            sorted(file.target for file in overlay),
        ]
    )[:16]


def current_table(checkout: Checkout, series: Series) -> RecordedTable:
    """The recorded matrix of a series, which must be of this very series.

    Raises:
        Refusal: `matrix-record` when there is none, `matrix-stale` when it was made of another series, pin or releases.
    """
    path = record_path(checkout)
    table = load_record(checkout).projects.get(series.project)
    if table is None:
        raise Refusal("matrix-record", f"no matrix of {series.project} is recorded", path=path, fix=FIX)
    if table.inputs != table_inputs(checkout, series):
        reason = f"the matrix of {series.project} was made of another series, pin or releases on {table.made}"
        raise Refusal("matrix-stale", reason, path=path, fix=FIX)
    return table
