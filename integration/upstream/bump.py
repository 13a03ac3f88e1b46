"""Try a series on another release, patch by patch, and end in a plan; `accept` carries the plan out.

Nothing is dropped without a word: every patch of the series is in the plan with what it is there and why. Patches that
no longer apply are merged three ways; what does not merge is written as files with conflict markers, and mended files
are used by the next run.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import tomlkit
from packaging.version import Version
from tomlkit.items import AoT

from sm120.integration.common.checkout import Checkout
from sm120.integration.common.git import git
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.canonical import DIFF
from sm120.integration.series.patch_file import SEPARATOR, Patch
from sm120.integration.series.pin import Artifact, Pin
from sm120.integration.series.series import load_series
from sm120.integration.series.switch import switch
from sm120.integration.upstream.conflicts import upstream_changes, went_to
from sm120.integration.upstream.history import History
from sm120.integration.upstream.ladder import Change, apply_to
from sm120.integration.upstream.matrix import Cell, column, make_columns
from sm120.integration.upstream.merge import merge_file
from sm120.integration.upstream.neighbours import refuse_unwanted, wishes
from sm120.integration.upstream.new_wheels import wheel_for
from sm120.integration.upstream.releases import Release, Snapshot, fetched, load_releases, snapshot, write_files
from sm120.integration.upstream.stages import Stage, Staged, pinned_release, stage_series

MARKERS = re.compile(rb"^(<{7}|\|{7}|>{7}) ", re.MULTILINE)
"""A file with any of these is not mended yet. A line of `=` alone may be a heading."""

GENERATED = "generated.json"
"""In the bump's folder: sha256 of each conflict file as it was written, by SLUG/FILE."""

Went = Callable[[Change, str], str]
"""Where the code of a file went that the new release has no more, one line."""

KEEP = ("clean", "moved", "merged 3-way", "mended")
"""Outcomes with a patch for the new pin; the others are `merged`, `superseded`, and those of `OPEN`."""

OPEN = ("conflicts", "blocked", "disputed")
"""Outcomes that a person decides."""


@dataclass
class Outcome:
    """What one patch is on the new release."""

    slug: str
    kind: str
    why: str
    rungs: list[str] = field(default_factory=list)
    died_of: list[str] = field(default_factory=list)
    """Upstream's own changes to the lines that the patch needs."""
    files: list[str] = field(default_factory=list)
    """Conflict files to mend."""
    exact: bool = True
    """False for a `merged` that is not an exact reverse: `accept` wants a person's yes for it."""


@dataclass
class Plan:
    """The outcome of every patch of a series on one release."""

    project: str
    pinned: str
    version: str
    file: str
    sha256: str
    series: list[str]
    """sha256 of each patch that was tried, in order: a plan for other patches is refused."""
    outcomes: list[Outcome]
    requires: list[str] = field(default_factory=list)
    """What the release requires of the other projects, where their pins are others: a line each."""

    @property
    def open(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.kind in OPEN]

    @property
    def unsure(self) -> list[Outcome]:
        """Merged says the text, but not by an exact reverse."""
        return [outcome for outcome in self.outcomes if outcome.kind == "merged" and not outcome.exact]


def bump_folder(checkout: Checkout, project: str, version: str) -> Path:
    return checkout.build / "bump" / f"{project}-{version}"


def plan_bump(
    checkout: Checkout,
    project: str,
    release: Release,
    *,
    wheel: Path | None = None,
    probes: bool = False,
    history: Path | None = None,
) -> Plan:
    """Try every patch of `project` on `release`; patches, conflict files and the plan go to `build/bump/`.

    Raises:
        Refusal: `bump-yanked`, `bump-same`; from the series and from fetching.
    """
    if release.yanked:
        raise Refusal("bump-yanked", f"{project} {release.version} was withdrawn: {release.yanked}")
    staged = stage_series(checkout, project)
    pin = staged.series.pin
    if release.version == pin.version:
        raise Refusal("bump-same", f"{project} is pinned to {pin.version} already", path=staged.series.folder)
    columns = make_columns(
        checkout,
        staged,
        [*_between(checkout, project, pin.version, release.version), release],
        probes=lambda one: probes and one is release,
        wheels={release.version: wheel} if wheel else None,
        history=History(history, pin) if history else None,
    )
    overlay_names = {target for stage in staged.stages for target in stage.overlay}
    files = snapshot(checkout, release, set(staged.touched) | overlay_names, wheel)
    folder = bump_folder(checkout, project, release.version)
    shutil.rmtree(folder / "patches", ignore_errors=True)
    (folder / "patches").mkdir(parents=True)
    file = wheel or fetched(checkout, release)
    old_file = fetched(checkout, pinned_release(staged.series))

    def went(change: Change, path: str) -> str:
        return went_to(change, path, old_file, file)

    outcomes = _try_series(staged, files, columns[release.version], folder, went)
    shas = [patch.sha256 for patch in staged.series.patches]
    plan = Plan(project, pin.version, release.version, release.file, release.sha256, shas, outcomes)
    plan.requires = wishes(checkout, project, file)
    (folder / "plan.json").write_text(json.dumps(asdict(plan), indent=1) + "\n")
    return plan


def time_machine(
    checkout: Checkout, project: str, version: str, slug: str, report: Callable[[str], None] = lambda line: None
) -> str | None:
    """The newest listed release up to `version` on which `slug` applies (with its closure), or None."""
    staged = stage_series(checkout, project)
    for release in reversed(load_releases(checkout.patches / project)):
        if Version(release.version) <= Version(version):
            cell = column(checkout, staged, release)[slug]
            report(f"{release.version}: {cell.text}")
            if cell.word.startswith("applies"):
                return release.version
    return None


def _between(checkout: Checkout, project: str, pinned: str, version: str) -> list[Release]:
    low, high = Version(pinned), Version(version)
    return [release for release in load_releases(checkout.patches / project) if low < Version(release.version) < high]


def _try_series(staged: Staged, release: Snapshot, cells: dict[str, Cell], folder: Path, went: Went) -> list[Outcome]:
    outcomes: list[Outcome] = []
    lost: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="sm120-bump-") as name:
        tree = Path(name)
        git(tree, "init", "--quiet", "--initial-branch=bump")
        release.write(tree)
        taken = [target for target in _overlay(staged) if (tree / target).exists()]
        write_files(tree, {target: data for target, data in _overlay(staged).items() if target not in taken})
        _commit(tree, "release and overlay")
        for stage in staged.stages:
            cell = cells[stage.patch.slug]
            outcome = _try_patch(staged, stage, cell, tree, release, folder, lost, went)
            outcome.rungs = [f"{rung.name}: {_said(rung.holds)}: {rung.detail}" for rung in cell.rungs]
            if outcome.kind in KEEP:
                _commit(tree, stage.patch.slug)
                diff = git(tree, *DIFF, "HEAD^", "HEAD")
                if diff:
                    text = stage.patch.header + SEPARATOR + diff
                    (folder / "patches" / f"{stage.patch.slug}.patch").write_text(text, errors="surrogateescape")
                else:
                    why = f"nothing of it is left to carry, and yet: {cell.why}"
                    outcome = Outcome(stage.patch.slug, "disputed", why, outcome.rungs)
            else:
                if outcome.kind in OPEN:
                    lost.add(stage.patch.slug)
                git(tree, "reset", "--quiet", "--hard", "HEAD")
                git(tree, "clean", "--quiet", "-fd")
            outcomes.append(outcome)
    return outcomes


def _try_patch(
    staged: Staged,
    stage: Stage,
    cell: Cell,
    tree: Path,
    release: Snapshot,
    folder: Path,
    lost: set[str],
    went: Went,
) -> Outcome:
    slug = stage.patch.slug
    conflicts = folder / "conflicts" / slug
    if cell.word in ("merged", "superseded"):
        shutil.rmtree(conflicts, ignore_errors=True)
        return Outcome(slug, cell.word, cell.why, exact=cell.word == "superseded" or cell.exact)
    if cell.word == "disputed":
        return Outcome(slug, cell.word, cell.why)
    if clash := sorted(stage.overlay.keys() & release.files.keys()):
        return Outcome(slug, "conflicts", f"upstream has {clash[0]} now, where the overlay goes")
    result = apply_to(tree, stage.patch.diff)
    if result.returncode == 0:
        shutil.rmtree(conflicts, ignore_errors=True)
        moved = len(re.findall(r"succeeded at", result.stderr))
        return Outcome(slug, "moved" if moved else "clean", f"{moved} hunks moved" if moved else "as it is")
    waits_for = [patch.slug for patch in stage.closure.patches if patch.slug in lost]
    if waits_for:
        return Outcome(slug, "blocked", f"waits for {', '.join(waits_for)}")
    unclean = _merge_three_ways(stage, tree, conflicts)
    if not unclean:
        mended = any(path.is_file() and _is_mended(path) for path in conflicts.rglob("*"))
        kind = "mended" if mended else "merged 3-way"
        why = "with the files that were mended by hand" if mended else "look at the result"
        return Outcome(slug, kind, f"{why}; {cell.text}: {cell.why}" if cell.word == "partly" else why)
    died_of = []
    for path in unclean:
        if path in staged.pinned and path not in release.files:
            died_of.append(went(stage.change, path))
        else:
            died_of += upstream_changes(stage.change, staged.pinned, release.files, path)
    files = [str(conflicts / path) for path in unclean if (conflicts / path).is_file()]
    said = f"; {cell.text}: {cell.why}" if cell.word == "partly" else ""
    return Outcome(slug, "conflicts", f"in {', '.join(unclean)}{said}", died_of=died_of, files=files)


def _merge_three_ways(stage: Stage, tree: Path, conflicts: Path) -> list[str]:
    """Merge each file into `tree`; files with conflicts are written to `conflicts`, unless edited there, and returned."""
    unclean = []
    for path in stage.patch.touched:
        old, new = stage.change.before[path], stage.change.after[path]
        target, mended = tree / path, conflicts / path
        current = target.read_bytes() if target.is_file() else None
        if mended.is_file() and _is_mended(mended):
            result: bytes | None = mended.read_bytes()
        elif current == old:
            result = new
        elif current is None or old is None or new is None:  # created or deleted by one side: nothing to merge with
            unclean.append(path)
            continue
        else:
            labels = ("the new release", "the pinned release", stage.patch.slug)
            result, clean = merge_file(current, old, new, labels)
            if not clean:
                _write_conflict(mended, result, conflicts.parents[1] / GENERATED, f"{stage.patch.slug}/{path}")
                unclean.append(path)
                continue
        if result is None:
            target.unlink()
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(result)
    return unclean


def _write_conflict(file: Path, text: bytes, record: Path, name: str) -> None:
    """Write a conflict file, unless somebody edited the one that is there.

    That one may be half mended, and whoever mends runs the bump to see how far they are. One that still is as it was
    written has nothing to lose, and would show the conflict of a patch or a release that has changed since.
    """
    try:
        generated = json.loads(record.read_text())
    except (FileNotFoundError, ValueError):
        generated = {}
    if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() != generated.get(name):
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text)
    generated[name] = hashlib.sha256(text).hexdigest()
    record.write_text(json.dumps(generated, indent=1, sort_keys=True) + "\n")


def _is_mended(file: Path) -> bool:
    return MARKERS.search(file.read_bytes()) is None


def load_plan(checkout: Checkout, project: str, version: str) -> Plan:
    """The plan that `plan_bump` wrote.

    Raises:
        Refusal: `bump-plan` when there is none or it does not read.
    """
    path = bump_folder(checkout, project, version) / "plan.json"
    try:
        data = json.loads(path.read_text())
        return Plan(**data | {"outcomes": [Outcome(**outcome) for outcome in data["outcomes"]]})
    except FileNotFoundError:
        raise Refusal("bump-plan", "no plan yet", path=path, fix=f"sm120 bump {project} {version}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise Refusal("bump-plan", f"does not read: {error}", path=path) from None


def accept(checkout: Checkout, plan: Plan, drop: list[str], taken: Sequence[str] = ()) -> list[str]:
    """Carry the plan out: pin, series and patches move to the new release; returns what was done, one line each.

    Patches that upstream has are taken off the series, and their probes go to `tests/upstream_probes/`, where they must
    pass on the new pin. Nothing is written when a patch is still open and not named in `drop`, or when one is called
    merged on less than an exact reverse and not named in `taken` by a person who looked. Everything changes in one step
    (see series/switch.py), after the new series was read as a whole.

    Raises:
        Refusal: `bump-open`, `bump-unsure`, `bump-stale` when the series changed since the plan was made,
            `bump-requires` when another project's pin does not allow this version, `unknown-slug`.
    """
    folder = checkout.patches / plan.project
    staged = stage_series(checkout, plan.project)
    patches = staged.series.patches
    if [patch.sha256 for patch in patches] != plan.series or staged.series.pin.version != plan.pinned:
        raise Refusal(
            "bump-stale",
            "the series changed since the plan was made",
            path=folder / "series",
            fix=f"sm120 bump {plan.project} {plan.version}",
        )
    if unknown := sorted({*drop, *taken} - {patch.slug for patch in patches}):
        raise Refusal("unknown-slug", f"--drop or --taken names {', '.join(unknown)}, not in the series")
    if still := [outcome.slug for outcome in plan.open if outcome.slug not in drop]:
        raise Refusal(
            "bump-open",
            f"not decided: {', '.join(still)}",
            path=bump_folder(checkout, plan.project, plan.version) / "conflicts",
            fix="mend the conflict files and run the bump again, or give patches up with --drop",
        )
    if unsure := [outcome for outcome in plan.unsure if outcome.slug not in (*drop, *taken)]:
        slugs = [outcome.slug for outcome in unsure]
        raise Refusal(
            "bump-unsure",
            f"called merged, but not by an exact reverse: {'; '.join(f'{one.slug} ({one.why})' for one in unsure)}",
            fix=f"look at upstream's code, then: {' '.join(f'--taken {slug}' for slug in slugs)}",
        )
    orphans = [p.slug for p in patches if p.slug not in drop and set(p.requires) & set(drop)]
    if orphans:
        raise Refusal("bump-open", f"{', '.join(orphans)} require what --drop names", path=folder / "series")
    refuse_unwanted(checkout, plan.project, plan.version)
    new_pin = _new_pin(staged.series.pin, plan)
    made = bump_folder(checkout, plan.project, plan.version) / "patches"
    outcomes = {outcome.slug: outcome for outcome in plan.outcomes}
    kept = [p.slug for p in patches if outcomes[p.slug].kind in KEEP and p.slug not in drop]
    gone = {patch.slug for patch in patches} - set(kept)
    done: list[str] = []
    put: dict[Path, bytes] = {}
    delete: list[Path] = []
    for patch in patches:
        outcome = outcomes[patch.slug]
        if patch.slug in gone:
            done.append(_retire(checkout, patch, outcome, put, delete))
            continue
        old, new = patch.path.read_bytes(), (made / patch.path.name).read_bytes()
        if new != old:
            done.append(f"{patch.slug}: rewritten ({outcome.kind})")
        put[patch.path] = _without_requirements(new, gone)
    put[folder / "series"] = _kept_lines((folder / "series").read_text(), gone).encode()
    put[folder / "pin.toml"] = _moved_pin((folder / "pin.toml").read_text(), plan, new_pin).encode()
    done.append(f"pin: {plan.pinned} → {plan.version}: {', '.join(one.file for one in new_pin.artifacts)}")
    done += new_pin.lines
    if listed := _listed_release(folder, plan):
        put[folder / "releases.toml"] = listed.encode()
        done.append(f"releases.toml: {plan.version} listed")

    def check(copy: Path) -> None:
        load_series(copy)
        load_releases(copy)

    switch(folder, put, delete, check=check)
    return done


def _retire(checkout: Checkout, patch: Patch, outcome: Outcome, put: dict[Path, bytes], delete: list[Path]) -> str:
    """Take a patch off the series: note its file and its probe in `put` and `delete`."""
    delete.append(patch.path)
    probe = checkout.root / patch.fields["Probe"]
    if outcome.kind in ("merged", "superseded") and probe.is_file():
        target = checkout.root / "tests" / "upstream_probes" / patch.project / probe.name
        put[target] = probe.read_bytes()
        delete.append(probe)
        return f"{patch.slug}: {outcome.kind}, taken off; its probe now guards upstream as {target.name}"
    return f"{patch.slug}: dropped"


def _without_requirements(patch: bytes, gone: set[str]) -> bytes:
    """`patch` without the slugs that left the series in its `Requires:`."""
    header, separator, diff = patch.decode(errors="surrogateescape").partition(f"\n{SEPARATOR}")
    lines = []
    for line in f"{header}\n".splitlines(keepends=True):
        if line.startswith("Requires: "):
            left = [name for name in line.removeprefix("Requires: ").strip().split(", ") if name not in gone]
            line = f"Requires: {', '.join(left)}\n" if left else ""
        lines.append(line)
    return "".join([*lines, separator.removeprefix("\n"), diff]).encode(errors="surrogateescape")


def _kept_lines(text: str, gone: set[str]) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if line.strip().removesuffix(".patch") not in gone)


@dataclass
class _NewPin:
    """What the pin will name; `lines` say what was found, and loudly what was not."""

    artifacts: list[Artifact]
    companions: dict[str, list[Artifact]]
    lines: list[str]


def _new_pin(pin: Pin, plan: Plan) -> _NewPin:
    """A wheel of the new release for every Python and machine that the old pin served, and the companions' wheels."""
    tried = Release(version=plan.version, file=plan.file, sha256=plan.sha256).artifact
    new = _NewPin([], {}, [])
    for served in pin.artifacts:
        same = (served.python, served.machine) == (tried.python, tried.machine)
        artifact = tried if same else wheel_for(pin.distribution, plan.version, served)
        if artifact is None:
            new.lines.append(_missing(pin.distribution, plan.version, served))
        else:
            new.artifacts.append(artifact)
    if tried not in new.artifacts:
        new.artifacts.append(tried)
    for companion in pin.companions:
        if companion.version != plan.pinned:
            new.lines.append(
                f"{companion.distribution} stays at {companion.version}: look whether the release needs another"
            )
            continue
        wheels = [(served, wheel_for(companion.distribution, plan.version, served)) for served in companion.artifacts]
        missing = [_missing(companion.distribution, plan.version, served) for served, found in wheels if found is None]
        new.lines += missing
        if not missing:
            new.companions[companion.distribution] = [found for _, found in wheels if found]
    return new


def _missing(distribution: str, version: str, served: Artifact) -> str:
    name = f"{distribution} {version} for {served.python}/{served.machine}"
    return (
        f"MISSING: no wheel of {name} was found, and the pin no longer serves it: when there is one, "
        f"add it to pin.toml with its sha256 (`pip download` and `sha256sum`)"
    )


def _moved_pin(text: str, plan: Plan, new: _NewPin) -> str:
    document = tomlkit.parse(text)
    document["git_tag"] = str(document["git_tag"]).replace(plan.pinned, plan.version)
    document["version"] = plan.version
    document["artifacts"] = _tables(new.artifacts)
    for companion in document.get("companions", []):
        if found := new.companions.get(str(companion["distribution"])):
            companion["version"] = plan.version
            companion["artifacts"] = _tables(found)
    return tomlkit.dumps(document)


def _tables(artifacts: list[Artifact]) -> AoT:
    tables = tomlkit.aot()
    for artifact in artifacts:
        tables.append(tomlkit.item(artifact.model_dump()))
    return tables


def _listed_release(folder: Path, plan: Plan) -> str:
    """`releases.toml` with the new pin, so that the matrix has its column; empty when it is listed."""
    if any(release.version == plan.version for release in load_releases(folder)):
        return ""
    entry = f'[[releases]]\nversion = "{plan.version}"\nfile = "{plan.file}"\nsha256 = "{plan.sha256}"\n'
    return f"{(folder / 'releases.toml').read_text().rstrip()}\n\n{entry}"


def _overlay(staged: Staged) -> dict[str, bytes]:
    return {target: data for stage in staged.stages for target, data in stage.overlay.items()}


def _commit(tree: Path, message: str) -> None:
    git(tree, "add", "--all", "--force")
    git(tree, "commit", "--quiet", "--allow-empty", "--message", message)


def _said(holds: bool | None) -> str:
    return {True: "yes", False: "no", None: "cannot tell"}[holds]
