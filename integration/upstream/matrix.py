"""The matrix: every patch on every listed release, one word a cell, each explained by the rungs of the ladder."""

from __future__ import annotations

import datetime
import json
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from sm120.integration.build.identity import digest
from sm120.integration.common.checkout import Checkout
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.overlay import load_overlay
from sm120.integration.series.patch_file import Patch
from sm120.integration.series.series import Series, load_series
from sm120.integration.upstream import ladder
from sm120.integration.upstream.history import History
from sm120.integration.upstream.hunks import Hunk
from sm120.integration.upstream.ladder import Rung, TextVerdict, apply_to, climb, decide
from sm120.integration.upstream.probes import ProbeResult, probe_modules, run_probes, without_paths
from sm120.integration.upstream.recorded_matrix import (
    Record,
    RecordedCell,
    RecordedProbe,
    RecordedTable,
    load_record,
    save_record,
    table_inputs,
)
from sm120.integration.upstream.releases import Release, Snapshot, load_releases, release_tree, snapshot, write_files
from sm120.integration.upstream.stages import Stage, Staged, stage_series

# Raise when the same inputs would give another cell (or probe result), so that cached ones are not used.
LAYOUT = 6
PROBES_LAYOUT = 3

# Seconds for all probes of a project on one release, and for one alone: a release that hangs one must not end the matrix.
PROBES_TIMEOUT = 1800
PROBE_TIMEOUT = 300

RULES = [ladder.ADDED_SHARE, ladder.REMOVED_SHARE, ladder.MINIMUM_LINES, ladder.STILL_SHARE]

WORDS = ("applies", "applies with closure", "conflicts", "partly", "disputed", "merged", "superseded", "n/a")

# A test that fails because the release lacks a name which the probe's own scaffolding uses has shown no defect.
MISFIT = re.compile(r"\S+: ([\w.]+\.)?(AttributeError|ImportError|ModuleNotFoundError|NameError|TypeError)\b")

Report = Callable[[str], None]


@dataclass(frozen=True)
class Cell:
    """What one patch is on one release."""

    word: str
    where: str
    """`file:hunk` of a conflict, or of what upstream did not take."""
    why: str
    rungs: tuple[Rung, ...]
    alone: TextVerdict | None = None
    """What the text of this release alone says; later releases are judged with it."""

    @property
    def exact(self) -> bool:
        """Whether everything of the change is there, literally."""
        return self.alone is not None and self.alone.exact

    @property
    def text(self) -> str:
        return f"{self.word} ({self.where})" if self.where else self.word


@dataclass(frozen=True)
class Row:
    """One patch on the releases of its project."""

    slug: str
    subject: str
    cells: dict[str, Cell]


@dataclass(frozen=True)
class Table:
    """The matrix of one project."""

    project: str
    pinned: str
    versions: list[str]
    yanked: dict[str, str]
    rows: list[Row]

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def make_matrix(
    checkout: Checkout,
    project: str,
    *,
    probes: bool = False,
    history: Path | None = None,
    report: Report = lambda line: None,
) -> Table:
    """Every patch of `project` on every release of its `releases.toml`.

    Results of probes that are known count; `probes` runs those that are not, which needs a runtime and unpacks each
    release.

    Raises:
        Refusal: from the series, the releases, or fetching.
    """
    series = load_series(checkout.patches / project)
    releases = load_releases(checkout.patches / project)
    results = {release.version: known_probe_results(checkout, series, release) for release in releases}
    path = checkout.build / "matrix" / f"table-{_table_key(checkout, series, releases, results, probes)}.json"
    if history is None and (known := _cached_table(path)) is not None:
        return known
    staged = stage_series(checkout, project)
    clone = History(history, series.pin) if history else None
    columns = make_columns(checkout, staged, releases, probes=lambda release: probes, history=clone, report=report)
    rows = [
        Row(
            stage.patch.slug,
            stage.patch.subject,
            {version: cells[stage.patch.slug] for version, cells in columns.items()},
        )
        for stage in staged.stages
    ]
    yanked = {release.version: release.yanked for release in releases if release.yanked}
    table = Table(project, series.pin.version, [release.version for release in releases], yanked, rows)
    results = {release.version: known_probe_results(checkout, series, release) for release in releases}
    # Where a probe gave no answer, it is asked again the next time.
    if history is None and (not probes or all(len(known) == len(series.patches) for known in results.values())):
        path = checkout.build / "matrix" / f"table-{_table_key(checkout, series, releases, results, probes)}.json"
        _write(path, json.dumps(table.as_data()))
    return table


def make_columns(
    checkout: Checkout,
    staged: Staged,
    releases: list[Release],
    *,
    probes: Callable[[Release], bool] = lambda release: False,
    wheels: dict[str, Path] | None = None,
    history: History | None = None,
    report: Report = lambda line: None,
) -> dict[str, dict[str, Cell]]:
    """The cells of every patch on `releases` (oldest first), by version and slug; what one took is known to the next."""
    pinned = Version(staged.series.pin.version)
    columns: dict[str, dict[str, Cell]] = {}
    for release in releases:
        report(f"{staged.series.project} {release.version}")
        later = [version for version in columns if Version(version) > pinned]
        earlier = {
            stage.patch.slug: [text for version in later if (text := columns[version][stage.patch.slug].alone)]
            for stage in staged.stages
        }
        wheel = (wheels or {}).get(release.version)
        columns[release.version] = column(
            checkout, staged, release, probes=probes(release), wheel=wheel, earlier=earlier, history=history
        )
    return columns


def column(
    checkout: Checkout,
    staged: Staged,
    release: Release,
    *,
    probes: bool = False,
    wheel: Path | None = None,
    earlier: dict[str, list[TextVerdict]] | None = None,
    history: History | None = None,
) -> dict[str, Cell]:
    """The cells of every patch on one release, by slug; cells are cached by the content they depend on.

    `earlier` are what the releases between the pin and this one said, oldest first; `history` names commits that took
    a patch in other words.
    """
    if Version(release.version) <= Version(staged.series.pin.version):
        history = None
    tip = history.commit_of(release.version) if history else ""
    found: dict[str, Cell] = {}
    files: Snapshot | None = None
    if probes:
        results = probe_results(checkout, staged, release, wheel)
    else:
        results = known_probe_results(checkout, staged.series, release)
    for stage in staged.stages:
        before = (earlier or {}).get(stage.patch.slug, [])
        result = results.get(stage.patch.slug)
        path = checkout.build / "matrix" / f"{_key(stage, release, result, before, tip)}.json"
        cell = _cached(path)
        if cell is None:
            if files is None:
                names = set(staged.touched) | {target for one in staged.stages for target in one.overlay}
                files = snapshot(checkout, release, names, wheel)
            cell = make_cell(stage, staged.series.pin.version, files, result, before, history)
            _write(path, json.dumps(asdict(cell)))
        found[stage.patch.slug] = cell
    return found


def make_cell(
    stage: Stage,
    pinned: str,
    release: Snapshot,
    probe: ProbeResult | None = None,
    earlier: Sequence[TextVerdict] = (),
    history: History | None = None,
) -> Cell:
    """Decide one cell; the strongest reason wins: merged (unless the probe fails), superseded, n/a, partly, applies."""
    text = climb(stage.change, release.files)
    state, why = decide([*earlier, text])
    rungs = (*text.rungs, probe_rung(probe))
    if history:
        state, why, rung = _in_history(stage, release, text, state, why, history)
        rungs = (*text.rungs, rung, probe_rung(probe))
    passes = rungs[-1].holds
    if state == "merged" and passes is False:
        return Cell("disputed", "", f"its text is there ({why}), but its probe {rungs[-1].detail}", rungs, text)
    if state == "merged":
        return Cell("merged", "", why, rungs, text)
    if passes and Version(release.version) < Version(pinned):
        return Cell("n/a", "", "its probe passes on this older release: the defect came later", rungs, text)
    if passes:
        return Cell("superseded", "", "its probe passes on the unpatched release", rungs, text)
    if missing := _older_without(stage, pinned, release):
        return Cell("n/a", "", f"this older release has no {missing}", rungs, text)
    # What an older release shows of a change is code that upstream removed or that it was written after: no merge.
    if state == "partly" and Version(release.version) > Version(pinned):
        return Cell("partly", text.where, why, rungs, text)
    cell = _forward_cell(stage, release, text, rungs)
    if cell.word == "conflicts" and Version(release.version) > Version(pinned):
        return replace(cell, why=f"{state}: {why}; {cell.why}", alone=text)
    return replace(cell, alone=text)


def _in_history(
    stage: Stage, release: Snapshot, text: TextVerdict, state: str, why: str, history: History
) -> tuple[str, str, Rung]:
    """What upstream's commits add to the text's state: only where the code is not as it was before can one have it."""
    if state == "merged" or text.rung("forward").holds:
        return state, why, Rung("history", None, "not asked: the release's own text says it")
    taken = history.find(stage.change.before, stage.change.after, release.version)
    if taken is None:
        return state, why, Rung("history", False, "no commit since the pin is like it")
    name = f"{taken.commit[:12]} «{taken.subject}»"
    if taken.reverted_by:
        said = f"{name} took it, {taken.reverted_by[:12]} took it back"
        return state, f"{why}; {said}", Rung("history", False, said)
    if any(hunk.state == "missing" for hunk in text.hunks):
        said = f"{name} is like it, but a part is as it was before"
        return state, f"{why}; {said}", Rung("history", None, said)
    return "merged", f"upstream's commit {name} is this change in other words", Rung("history", True, name)


def _forward_cell(stage: Stage, release: Snapshot, verdict: TextVerdict, rungs: tuple[Rung, ...]) -> Cell:
    needed = stage.closure.patches[:-1]
    alone = verdict.rung("forward").holds
    taken = sorted(stage.overlay.keys() & release.files.keys())
    if taken:
        return Cell("conflicts", f"{taken[0]}:exists", "upstream has a file where the overlay goes", rungs)
    if alone and not needed:
        return Cell("applies", "", "it applies to the release as it is", rungs)
    failed = stage.patch.slug, verdict.failed_at
    with tempfile.TemporaryDirectory(prefix="sm120-matrix-") as name:
        tree = Path(name)
        names = {path for patch in stage.closure.patches for path in patch.touched}
        write_files(tree, {path: data for path, data in release.files.items() if path in names})
        write_files(tree, stage.overlay)
        for patch in stage.closure.patches:
            if apply_to(tree, patch.diff).returncode != 0:
                files = {path: (tree / path).read_bytes() for path in patch.touched if (tree / path).is_file()}
                change = ladder.Change(patch.diff, dict.fromkeys(patch.touched), dict.fromkeys(patch.touched))
                failed = patch.slug, climb(change, files).failed_at
                break
        else:
            slugs = ", ".join(patch.slug for patch in needed)
            return Cell("applies with closure", "", f"it applies after {slugs}", rungs)
    if alone:
        return Cell("applies", "", f"alone; {failed[0]}, which it needs to work, does not", rungs)
    by = "" if failed[0] == stage.patch.slug else f"; {failed[0]}, which it needs, fails first"
    return Cell("conflicts", failed[1], f"context differs{by}", rungs)


def _older_without(stage: Stage, pinned: str, release: Snapshot) -> str:
    """A file that the patch changes and an older release does not have; in a newer one that is a conflict."""
    if Version(release.version) >= Version(pinned):
        return ""
    created = {path for patch in stage.closure.patches for path in patch.created} | stage.overlay.keys()
    missing = [path for path in stage.patch.touched if path not in release.files and path not in created]
    return missing[0] if missing else ""


def probe_rung(result: ProbeResult | None) -> Rung:
    """Rung 5 from a probe's result on an unpatched release; a probe that breaks there says nothing."""
    if result is None:
        return Rung("probe", None, "not run")
    if result.green:
        return Rung("probe", True, f"passes on the unpatched release ({result.passed} passed)")
    said = telling_failure(result)
    if result.red and MISFIT.match(said):
        return Rung("probe", None, f"does not fit that release: {said}"[:200])
    if result.red:
        return Rung("probe", False, f"fails there: {said}"[:200])
    if result.errors:
        return Rung("probe", None, f"cannot run there: {said.partition(': ')[2] or said}"[:200])
    why = f"{result.skipped} of its tests skip" if result.skipped else "none of its tests ran"
    return Rung("probe", None, f"cannot run there: {why}")


def telling_failure(result: ProbeResult) -> str:
    """The first failure that says something about behaviour; a misfit when there are only misfits."""
    lines = [without_paths(line) for line in result.failures]
    return next((line for line in lines if not MISFIT.match(line)), next(iter(lines), f"{result.failed} failed"))


def probe_results(
    checkout: Checkout, staged: Staged, release: Release, wheel: Path | None = None
) -> dict[str, ProbeResult]:
    """Probes of the series on the unpatched release, cached by the probes' and the release's content."""
    found = known_probe_results(checkout, staged.series, release)
    todo = [patch for patch in staged.series.patches if patch.slug not in found]
    if todo:
        tree = release_tree(checkout, staged.series.project, release, wheel)
        results = _run_all(checkout, todo, tree)
        for patch in todo:
            # What broke or hung may run tomorrow, or on another machine: only an answer is kept.
            if _is_answer(results[patch.slug]):
                key = _probe_key(checkout, patch, release)
                _write(_probe_path(checkout, key), json.dumps(asdict(results[patch.slug])))
        found |= results
    return found


def _run_all(checkout: Checkout, patches: list[Patch], tree: Path) -> dict[str, ProbeResult]:
    """All probes in one process; when one takes that down or hangs, each in a process of its own."""
    try:
        return run_probes(checkout, patches, tree, timeout=PROBES_TIMEOUT)
    except Refusal as refusal:
        if refusal.code != "probe-crashed":
            raise
    results: dict[str, ProbeResult] = {}
    for patch in patches:
        try:
            results |= run_probes(checkout, [patch], tree, timeout=PROBE_TIMEOUT)
        except Refusal as refusal:
            if refusal.code != "probe-crashed":
                raise
            said = refusal.what.splitlines()[-1]
            results[patch.slug] = ProbeResult(0, 0, 1, 0, (f"{patch.slug}: the process ended early: {said}",))
    return results


def known_probe_results(checkout: Checkout, series: Series, release: Release) -> dict[str, ProbeResult]:
    """What earlier runs of the same probes on the same release gave, by slug: those of this checkout, and the recorded."""
    recorded = load_record(checkout).probes
    found = {}
    for patch in series.patches:
        key = _probe_key(checkout, patch, release)
        result = _cached_probe(_probe_path(checkout, key))
        if result is None and key in recorded:
            result = ProbeResult(**recorded[key].model_dump())
        if result is not None and _is_answer(result):
            found[patch.slug] = result
    return found


def _is_answer(result: ProbeResult) -> bool:
    """Whether a probe passed or failed; where it broke, hung or skipped it said nothing about the release."""
    return result.green or result.red


def _probe_key(checkout: Checkout, patch: Patch, release: Release) -> str:
    texts = [path.read_text() for path in probe_modules(checkout, patch)]
    return digest([PROBES_LAYOUT, release.sha256, texts])[:24]


def _probe_path(checkout: Checkout, key: str) -> Path:
    return checkout.build / "matrix" / "probes" / f"{key}.json"


def record_matrix(checkout: Checkout, tables: list[Table], today: datetime.date) -> Path:
    """Commit-ready: the tables and every known result of the probes that they rest on, into `patches/matrix.json`."""
    record = load_record(checkout)
    projects, probes = dict(record.projects), {}
    for project in checkout.projects():
        series = load_series(checkout.patches / project)
        for release in load_releases(checkout.patches / project):
            for slug, result in known_probe_results(checkout, series, release).items():
                first = (telling_failure(result)[:200],) if result.failures else ()
                key = _probe_key(checkout, series.patch(slug), release)
                probes[key] = RecordedProbe(**asdict(result) | {"failures": first})
    for table in tables:
        cells = {row.slug: {version: _recorded(cell) for version, cell in row.cells.items()} for row in table.rows}
        series = load_series(checkout.patches / table.project)
        inputs = table_inputs(checkout, series)
        old = projects.get(table.project)
        # The date says when the content was found, so that recording it again changes nothing.
        same = old is not None and (old.inputs, old.cells) == (inputs, cells)
        made = old.made if old is not None and same else today
        projects[table.project] = RecordedTable(
            made=made, inputs=inputs, pinned=table.pinned, versions=table.versions, cells=cells
        )
    projects = {name: projects[name] for name in checkout.projects() if name in projects}
    return save_record(checkout, Record(projects=projects, probes=probes))


def _recorded(cell: Cell) -> RecordedCell:
    rung = next(rung for rung in cell.rungs if rung.name == "probe")
    return RecordedCell(word=cell.word, where=cell.where, probe=rung.detail)


def _cached_probe(path: Path) -> ProbeResult | None:
    try:
        data = json.loads(path.read_text())
        return ProbeResult(**data | {"failures": tuple(data["failures"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _table_key(
    checkout: Checkout,
    series: Series,
    releases: list[Release],
    results: dict[str, dict[str, ProbeResult]],
    probes: bool,
) -> str:
    """Everything that a table depends on, without applying anything; it is complete only with all probe results."""
    overlay = load_overlay(checkout.kernels, series.kernels, series.project)
    return digest(
        [
            LAYOUT,
            RULES,
            [release.model_dump() for release in releases],
            series.pin.version,
            [(patch.slug, patch.sha256) for patch in series.patches],
            [(file.target, file.sha256) for file in overlay],
            [probes, {version: {slug: asdict(one) for slug, one in some.items()} for version, some in results.items()}],
        ]
    )[:24]


def _cached_table(path: Path) -> Table | None:
    try:
        data = json.loads(path.read_text())
        rows = [
            Row(row["slug"], row["subject"], {version: _as_cell(cell) for version, cell in row["cells"].items()})
            for row in data.pop("rows")
        ]
        return Table(rows=rows, **data)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(f".{os.getpid()}.tmp")
    aside.write_text(text)
    aside.replace(path)


def _as_cell(data: dict[str, Any]) -> Cell:
    alone = data["alone"]
    return Cell(
        data["word"],
        data["where"],
        data["why"],
        tuple(Rung(**rung) for rung in data["rungs"]),
        alone and _as_verdict(alone),
    )


def _as_verdict(data: dict[str, Any]) -> TextVerdict:
    rungs = tuple(Rung(**rung) for rung in data["rungs"])
    return TextVerdict(**data | {"rungs": rungs, "hunks": tuple(Hunk(**hunk) for hunk in data["hunks"])})


def _key(stage: Stage, release: Release, probe: ProbeResult | None, earlier: Sequence[TextVerdict], tip: str) -> str:
    overlay = {target: digest(data.decode(errors="replace")) for target, data in stage.overlay.items()}
    patches = [patch.sha256 for patch in stage.closure.patches]
    # The files before the patch come from the whole series, so what they were is part of what a cell depends on.
    before = {path: digest((data or b"").decode(errors="replace")) for path, data in stage.change.before.items()}
    taken = any(text.merged for text in earlier)
    said = asdict(probe) if probe else None
    return digest([LAYOUT, RULES, release.sha256, patches, overlay, before, said, taken, tip])[:24]


def _cached(path: Path) -> Cell | None:
    try:
        return _as_cell(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError):
        return None
