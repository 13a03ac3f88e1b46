"""A deliberately altered fake release: merged, superseded, conflicting, blocked and clean patches are told apart."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import zipfile

import pytest

from sm120.integration.common.refusal import Refusal
from sm120.integration.series.patch_file import parse_patch
from sm120.integration.series.series import load_series
from sm120.integration.series.switch import switch
from sm120.integration.upstream import bump, matrix
from sm120.integration.upstream.matrix import make_matrix
from sm120.integration.upstream.probes import ProbeResult
from sm120.integration.upstream.releases import Release, fetched, find_release, load_releases, local_release

from .. import mini_checkout as foundation
from ..interrupted import DONE, KILLED, REFUSED, contents, interrupted

CORE = foundation.PRISTINE["alpha/core.py"]
KERNEL = foundation.PRISTINE["alpha/data/kernel.cu"]


def edit(text: str, **lines: str) -> str:
    """`text` with `line_N=M` replaced by the given right-hand side."""
    for name, value in lines.items():
        number = name.removeprefix("line_")
        text = text.replace(f"line_{number} = {number}\n", f"line_{number} = {value}\n")
    return text


NEW = foundation.PRISTINE | {
    # taken as it was sent; and another fix of line_20 than ours; line_30 rewritten; three lines more at the top
    "alpha/core.py": "import os\nimport sys\n\n" + edit(CORE, line_5="55", line_20="max(20, 0)", line_30="thirty()"),
    "alpha/extra.py": "fresh = 1\nsecond = 2\nthird = 3\n",
}


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """Six patches on alpha 1.0, alpha 1.1 beside it, and both wheels in the cache; made once, copied for each test."""
    home = tmp_path_factory.mktemp("queue")
    mini = foundation.make_mini(home)
    mini.patch("taken", {"alpha/core.py": edit(CORE, line_5="55")})
    base = foundation.PRISTINE | {"alpha/core.py": edit(CORE, line_5="55")}
    mini.patch("fixed-otherwise", {"alpha/core.py": edit(base["alpha/core.py"], line_20="20.0")}, base=base)
    base["alpha/core.py"] = edit(base["alpha/core.py"], line_20="20.0")
    mini.patch("clashes", {"alpha/core.py": edit(base["alpha/core.py"], line_30="3030")}, base=base)
    base["alpha/core.py"] = edit(base["alpha/core.py"], line_30="3030")
    builds_on = base["alpha/core.py"].replace("line_30 = 3030\n", "line_30 = 3030\nextra_30 = line_30\n")
    mini.patch("builds-on", {"alpha/core.py": builds_on}, base=base, Requires="clashes")
    base["alpha/core.py"] = builds_on
    mini.patch("moves", {"alpha/core.py": edit(base["alpha/core.py"], line_38="3838")}, base=base)
    mini.patch("clean", {"alpha/data/kernel.cu": KERNEL.replace("// row 3\n", "// row three\n")})
    list_release(mini, "1.0", foundation.PRISTINE)
    list_release(mini, "1.1", NEW)
    probes = mini.checkout.root / "tests" / "probes" / "alpha"
    probes.mkdir(parents=True)
    for slug in ("taken", "clashes", "builds_on", "moves", "clean", "fixed_otherwise"):
        (probes / f"test_{slug}.py").write_text(f"def test_{slug}():\n    assert True\n")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in mini.environment.items():
            patch.setenv(name, value)
        for release in load_releases(mini.folder):
            fetched(mini.checkout, release)
    return home


@pytest.fixture
def queue(template, tmp_path, monkeypatch):
    """A copy of the template that the test may spoil."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True, symlinks=True)
    mini = foundation.at(tmp_path)
    for name, value in mini.environment.items():
        monkeypatch.setenv(name, value)
    return mini


def listed(version: str, file: str, sha256: str) -> str:
    return f'[[releases]]\nversion = "{version}"\nfile = "{file}"\nsha256 = "{sha256}"\n'


def list_release(mini, version: str, files: dict[str, str], extra: str = "") -> None:
    wheel = mini.releases / f"alpha-{version}-py3-none-any.whl"
    if not wheel.is_file():
        wheel = foundation.make_wheel(mini.releases, "alpha", version, files)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with (mini.folder / "releases.toml").open("a") as file:
        file.write(f'[[releases]]\nversion = "{version}"\nfile = "{wheel.name}"\nsha256 = "{sha256}"\n{extra}\n')


@pytest.fixture
def probed(monkeypatch):
    """What the probes say on the fake release (running them needs a runtime): two defects are gone there."""

    def results(checkout, staged, release, wheel):
        gone = ("fixed-otherwise", "taken") if release.version == "1.1" else ()
        green, red = ProbeResult(1, 0, 0, 0, ()), ProbeResult(0, 1, 0, 0, ("x",))
        return {patch.slug: green if patch.slug in gone else red for patch in staged.series.patches}

    monkeypatch.setattr(matrix, "probe_results", results)


def plan_of(queue, **options):
    return bump.plan_bump(queue.checkout, "alpha", find_release(queue.folder, "1.1"), **options)


def kinds(plan) -> dict[str, str]:
    return {outcome.slug: outcome.kind for outcome in plan.outcomes}


def test_every_fate_is_told_apart(queue, probed):
    plan = plan_of(queue, probes=True)
    assert kinds(plan) == {
        "taken": "merged",
        "fixed-otherwise": "superseded",
        "clashes": "conflicts",
        "builds-on": "blocked",
        "moves": "moved",
        "clean": "clean",
    }
    clash = next(outcome for outcome in plan.outcomes if outcome.slug == "clashes")
    assert any("+ line_30 = thirty()" in line for line in clash.died_of), clash.died_of
    assert clash.why == "in alpha/core.py" and len(clash.files) == len(set(clash.died_of[:1])) == 1
    text = (
        bump.bump_folder(queue.checkout, "alpha", "1.1") / "conflicts" / "clashes" / "alpha" / "core.py"
    ).read_text()
    assert "<<<<<<< the new release\nline_30 = thirty()\n" in text and "line_30 = 3030\n>>>>>>> clashes\n" in text


def test_without_probes_a_different_fix_is_a_conflict_and_not_called_merged(queue):
    assert kinds(plan_of(queue))["fixed-otherwise"] == "conflicts"


def test_the_matrix_says_the_same_of_both_releases(queue, probed):
    table = make_matrix(queue.checkout, "alpha", probes=True)
    words = {row.slug: [row.cells[version].word for version in table.versions] for row in table.rows}
    assert words == {
        "taken": ["applies", "merged"],
        "fixed-otherwise": ["applies", "superseded"],
        "clashes": ["applies", "conflicts"],
        "builds-on": ["applies with closure", "conflicts"],
        "moves": ["applies", "applies"],
        "clean": ["applies", "applies"],
    }
    clash = next(row for row in table.rows if row.slug == "clashes")
    assert clash.cells["1.1"].where == "alpha/core.py:1"


def test_a_mended_conflict_lets_the_rest_through_and_the_plan_can_be_accepted(queue, probed):
    plan_of(queue, probes=True)
    conflict = bump.bump_folder(queue.checkout, "alpha", "1.1") / "conflicts" / "clashes" / "alpha" / "core.py"
    before, _, rest = conflict.read_text().partition("<<<<<<< the new release\n")
    conflict.write_text(before + "line_30 = 3030\n" + rest.split(">>>>>>> clashes\n", 1)[1])
    plan = plan_of(queue, probes=True)
    assert kinds(plan)["clashes"] == "mended" and not plan.open, plan.outcomes
    done = bump.accept(queue.checkout, bump.load_plan(queue.checkout, "alpha", "1.1"), [])
    series = load_series(queue.folder)
    assert series.pin.version == "1.1" and series.pin.git_tag == "v1.1"
    assert [patch.slug for patch in series.patches] == ["clashes", "builds-on", "moves", "clean"]
    assert "+line_30 = 3030" in parse_patch(queue.folder / "clashes.patch").diff
    guards = queue.checkout.root / "tests" / "upstream_probes" / "alpha"
    assert sorted(path.name for path in guards.iterdir()) == ["test_fixed_otherwise.py", "test_taken.py"]
    assert any("taken: merged" in line for line in done)
    result = queue.build()
    assert result.returncode == 0, result.stderr


def test_half_mended_files_are_kept_and_not_taken_for_mended(queue, probed):
    plan_of(queue, probes=True)
    conflict = bump.bump_folder(queue.checkout, "alpha", "1.1") / "conflicts" / "clashes" / "alpha" / "core.py"
    half = conflict.read_text().replace("<<<<<<< the new release\n", "# mine so far\n")
    conflict.write_text(half)
    plan = plan_of(queue, probes=True)
    assert conflict.read_text() == half
    clash = next(outcome for outcome in plan.outcomes if outcome.slug == "clashes")
    assert clash.kind == "conflicts" and clash.files == [str(conflict)]


@pytest.mark.parametrize("edited", [False, True], ids=["as-written", "edited"])
def test_a_conflict_file_follows_a_changed_patch_until_it_is_edited(queue, probed, edited):
    plan_of(queue, probes=True)
    conflict = bump.bump_folder(queue.checkout, "alpha", "1.1") / "conflicts" / "clashes" / "alpha" / "core.py"
    first = conflict.read_text()
    if edited:
        conflict.write_text(first.replace("<<<<<<< the new release\n", "# mine so far\n"))
    kept = conflict.read_text()
    for value in ("3131", "3232"):  # twice: what was written anew is known as such too
        for name in ("clashes.patch", "builds-on.patch"):
            path = queue.folder / name
            path.write_text(re.sub(r"line_30 = 3\d3\d\b", f"line_30 = {value}", path.read_text()))
        clash = next(outcome for outcome in plan_of(queue, probes=True).outcomes if outcome.slug == "clashes")
        assert (clash.kind, clash.files) == ("conflicts", [str(conflict)])
        assert conflict.read_text() == (kept if edited else first.replace("line_30 = 3030", f"line_30 = {value}"))


def test_a_wheel_that_is_named_is_the_one_that_probes_run_on(queue, monkeypatch, tmp_path):
    """No index has it, and it is not listed: it comes from nowhere but the file."""
    wheel = foundation.make_wheel(tmp_path / "elsewhere", "alpha", "1.2", NEW)
    trees = []

    def run(checkout, patches, tree, **_):
        trees.append((tree / "alpha" / "extra.py").read_text())
        return {patch.slug: ProbeResult(0, 1, 0, 0, ("x",)) for patch in patches}

    monkeypatch.setattr(matrix, "run_probes", run)
    release = local_release(wheel, "1.2", "alpha")
    bump.plan_bump(queue.checkout, "alpha", release, wheel=wheel, probes=True)
    assert trees == [NEW["alpha/extra.py"]]


@pytest.mark.parametrize(
    ("platform", "machine"),
    [
        ("any", "any"),
        ("manylinux_2_28_x86_64", "x86_64"),
        ("manylinux2014_x86_64", "x86_64"),
        ("manylinux1_i686", "i686"),
        ("manylinux2014_aarch64", "aarch64"),
        ("manylinux_2_17_x86_64.manylinux2014_x86_64", "x86_64"),
        ("musllinux_1_2_x86_64", "x86_64"),
        ("linux_x86_64", "x86_64"),
    ],
)
def test_the_machine_of_a_wheel_is_read_from_every_platform_tag(platform, machine):
    release = Release(version="1.1", file=f"alpha-1.1-cp311-cp311-{platform}.whl", sha256="0" * 64)
    assert release.artifact.machine == machine


@pytest.fixture
def red(monkeypatch):
    """Every probe fails on every release."""

    def results(checkout, staged, release, wheel):
        return {patch.slug: ProbeResult(0, 1, 0, 0, ("test_a: assert 1 == 2",)) for patch in staged.series.patches}

    monkeypatch.setattr(matrix, "probe_results", results)


def test_a_red_probe_vetoes_merged_and_nothing_is_taken_off(queue, red):
    """The text is there literally, and the defect too: only a person may give the patch up, by its name."""
    plan = plan_of(queue, probes=True)
    taken = next(outcome for outcome in plan.outcomes if outcome.slug == "taken")
    assert taken.kind == "disputed" and "its probe fails there: test_a: assert 1 == 2" in taken.why
    assert taken in plan.open
    before = state(queue)
    for yes in ([], ["taken"]):
        with pytest.raises(Refusal, match=r"\[bump-open\].*not decided: taken"):
            bump.accept(queue.checkout, plan, ["clashes", "builds-on", "fixed-otherwise"], yes)
    assert state(queue) == before
    bump.accept(queue.checkout, plan, ["clashes", "builds-on", "fixed-otherwise", "taken"])
    assert [patch.slug for patch in load_series(queue.folder).patches] == ["moves", "clean"]
    guards = queue.checkout.root / "tests" / "upstream_probes" / "alpha"
    assert not guards.exists(), "a probe that fails on the release guards nothing there"


def release_of(queue, version: str, files: dict[str, str], **options):
    """A plan for a release that is listed only here."""
    list_release(queue, version, files)
    return bump.plan_bump(queue.checkout, "alpha", find_release(queue.folder, version), **options)


@pytest.fixture
def wide(mini, monkeypatch):
    """One patch of two hunks on alpha 1.0, the second of twelve lines."""
    for name, value in mini.environment.items():
        monkeypatch.setenv(name, value)
    block = "".join(f"value_{n} = compute({n}, 'base')\n" for n in range(12))
    mini.block = block
    mini.whole = edit(CORE, line_5="55").replace("line_30 = 30\n", "line_30 = 30\n" + block)
    mini.patch("wide", {"alpha/core.py": mini.whole})
    probe = mini.checkout.root / "tests" / "probes" / "alpha" / "test_wide.py"
    probe.parent.mkdir(parents=True)
    probe.write_text("def test_wide():\n    assert True\n")
    list_release(mini, "1.0", foundation.PRISTINE)
    return mini


def changed(mini, old: str, new: str) -> dict[str, str]:
    assert old in mini.whole
    return foundation.PRISTINE | {"alpha/core.py": mini.whole.replace(old, new)}


def carried(mini, version: str) -> str:
    return (bump.bump_folder(mini.checkout, "alpha", version) / "patches" / "wide.patch").read_text()


def test_of_a_half_merge_the_other_half_is_carried(wide):
    plan = release_of(wide, "1.1", changed(wide, "line_5 = 55\n", "line_5 = 5\n"))
    (outcome,) = plan.outcomes
    assert outcome.kind == "merged 3-way" and "partly (alpha/core.py:1)" in outcome.why, outcome
    assert "+line_5 = 55" in carried(wide, "1.1") and "value_3" not in carried(wide, "1.1")
    bump.accept(wide.checkout, plan, [])
    assert [patch.slug for patch in load_series(wide.folder).patches] == ["wide"]


@pytest.mark.parametrize("probes", [False, True], ids=["text", "probes"])
def test_a_merge_that_lacks_one_line_keeps_the_patch(wide, red, probes):
    plan = release_of(wide, "1.1", changed(wide, "value_7 = compute(7, 'base')\n", ""), probes=probes)
    (outcome,) = plan.open
    assert outcome.kind == "conflicts" and "partly (alpha/core.py:2)" in outcome.why, outcome
    with pytest.raises(Refusal, match=r"\[bump-open\]"):
        bump.accept(wide.checkout, plan, [])


@pytest.mark.parametrize("probes", [False, True], ids=["text", "probes"])
def test_a_merge_that_a_later_release_reverted_keeps_the_patch(wide, red, probes):
    list_release(wide, "1.1", foundation.PRISTINE | {"alpha/core.py": wide.whole})
    # Reverted, and the code around it went on: it neither applies as it is nor in reverse.
    reverted = edit(CORE, line_4="four()", line_31="thirty_one()", line_29="twenty_nine()")
    plan = release_of(wide, "1.2", foundation.PRISTINE | {"alpha/core.py": reverted}, probes=probes)
    (outcome,) = plan.outcomes
    assert outcome.kind in (*bump.KEEP, "conflicts") and not plan.unsure, outcome
    table = make_matrix(wide.checkout, "alpha")
    words = [table.rows[0].cells[version] for version in table.versions]
    assert [cell.word for cell in words[:2]] == ["applies", "merged"] and words[2].word == "conflicts"
    assert "as it was before again" in words[2].why, words[2].why


def test_merged_on_less_than_an_exact_reverse_wants_a_yes(wide):
    plan = release_of(wide, "1.1", changed(wide, "value_7 = compute(7, 'base')\n", "value_7 = compute(7, BASE)\n"))
    assert [outcome.slug for outcome in plan.unsure] == ["wide"] and not plan.open
    before = state(wide)
    with pytest.raises(Refusal, match=r"(?s)\[bump-unsure\].*--taken wide"):
        bump.accept(wide.checkout, plan, [])
    with pytest.raises(Refusal, match=r"\[unknown-slug\].*nonsense"):
        bump.accept(wide.checkout, plan, [], ["nonsense"])
    assert state(wide) == before
    loaded = bump.load_plan(wide.checkout, "alpha", "1.1")
    bump.accept(wide.checkout, loaded, [], ["wide"])
    assert not load_series(wide.folder).patches


def state(queue) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in queue.checkout.patches.rglob("*") if path.is_file()}


def test_an_undecided_plan_is_not_carried_out(queue, probed):
    plan, before = plan_of(queue, probes=True), state(queue)
    with pytest.raises(Refusal, match=r"\[bump-open\].*clashes, builds-on"):
        bump.accept(queue.checkout, plan, [])
    with pytest.raises(Refusal, match=r"builds-on require what --drop names"):
        bump.accept(queue.checkout, kinds_blocked_kept(plan), ["clashes"])
    with pytest.raises(Refusal, match=r"\[unknown-slug\].*nonsense"):
        bump.accept(queue.checkout, plan, ["nonsense"])
    assert state(queue) == before


def kinds_blocked_kept(plan):
    for outcome in plan.outcomes:
        if outcome.slug == "builds-on":
            outcome.kind = "clean"
    return plan


def test_patches_are_given_up_only_by_name(queue, probed):
    plan = plan_of(queue, probes=True)
    bump.accept(queue.checkout, plan, ["clashes", "builds-on"])
    assert [patch.slug for patch in load_series(queue.folder).patches] == ["moves", "clean"]


def test_an_accept_that_is_killed_or_out_of_disk_leaves_no_half_moved_series(queue, probed, monkeypatch, tmp_path):
    """What `accept` switches is switched in a child that ends before each of its changes; then a command reads it."""
    plan = plan_of(queue, probes=True)
    asked = {}
    with monkeypatch.context() as patch:
        patch.setattr(bump, "switch", lambda folder, put, delete, check: asked.update(all=(folder, put, delete, check)))
        bump.accept(queue.checkout, plan, ["clashes", "builds-on"])
    folder, put, delete, check = asked["all"]

    def work() -> None:
        switch(folder, put, delete, check=check)

    root, kept = queue.checkout.root, tmp_path / "kept"
    shutil.copytree(root / "patches", kept / "patches")
    shutil.copytree(root / "tests", kept / "tests")
    before, ends, at, code = contents(kept), [], 0, KILLED
    while code == KILLED:
        code = interrupted(work, at)
        load_series(queue.folder)
        now = contents(root / "patches") | {f"tests/{name}": data for name, data in contents(root / "tests").items()}
        if now not in ends:
            ends.append(now)
        for part in ("patches", "tests"):
            shutil.rmtree(root / part)
            shutil.copytree(kept / part, root / part)
        at += 1
    old, new = ends
    assert code == DONE and at > 20
    assert old == contents(kept / "patches") | {f"tests/{n}": d for n, d in contents(kept / "tests").items()}
    assert b'version = "1.1"' in new["alpha/pin.toml"] and "tests/upstream_probes/alpha/test_taken.py" in new
    code, at = REFUSED, 0
    while code == REFUSED:
        code = interrupted(work, at, full=True)
        if code == REFUSED:
            found = {f"{part}/{n}": d for part in ("patches", "tests") for n, d in contents(root / part).items()}
            assert found == before, f"no room from change {at} on"
        at += 1


def test_a_stale_plan_is_refused(queue, probed):
    plan = plan_of(queue, probes=True)
    path = queue.folder / "clean.patch"
    path.write_text(path.read_text().replace("Tier: core", "Tier: extra"))
    with pytest.raises(Refusal, match=r"\[bump-stale\]"):
        bump.accept(queue.checkout, plan, ["clashes", "builds-on"])


def test_the_time_machine_finds_the_newest_release_that_still_fits(queue):
    list_release(queue, "1.2", NEW | {"alpha/core.py": "rewritten = True\n" * 40})
    assert bump.time_machine(queue.checkout, "alpha", "1.2", "clashes") == "1.0"
    assert bump.time_machine(queue.checkout, "alpha", "1.2", "moves") == "1.1"


def test_what_was_taken_stays_taken_when_its_code_moves_on(queue):
    list_release(
        queue, "1.2", NEW | {"alpha/core.py": edit(NEW["alpha/core.py"], line_4="4.5", line_5="0").replace("55", "5.5")}
    )
    table = make_matrix(queue.checkout, "alpha")
    row = next(row for row in table.rows if row.slug == "taken")
    assert [row.cells[version].word for version in table.versions] == ["applies", "merged", "merged"]
    assert "an earlier release took it" in row.cells["1.2"].why


def test_cells_come_from_the_cache_until_an_input_changes(queue, monkeypatch):
    first = make_matrix(queue.checkout, "alpha")

    def never(*_):
        raise AssertionError("the cache was not used")

    with monkeypatch.context() as patch:
        patch.setattr(matrix, "climb", never)
        assert make_matrix(queue.checkout, "alpha") == first
        path = queue.folder / "clean.patch"
        path.write_text(path.read_text().replace("+// row three", "+// row iii"))
        with pytest.raises(AssertionError, match="cache was not used"):
            make_matrix(queue.checkout, "alpha")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (listed("1.0", "alpha-1.1-py3-none-any.whl", "0" * 64), "releases-field"),
        (listed("one", "alpha-one-py3-none-any.whl", "0" * 64), "releases-field"),
        (listed("1.0", "alpha-1.0-py3-none-any.whl", "abc"), "releases-field"),
        (listed("1.0", "alpha-1.0-py3-none-any.whl", "0" * 64) * 2, "releases-twice"),
        ("releases = 1 2\n", "releases-syntax"),
    ],
    ids=["other-version", "no-version", "short-hash", "twice", "no-toml"],
)
def test_a_bad_list_of_releases_is_refused(mini, text, code):
    (mini.folder / "releases.toml").write_text(text)
    with pytest.raises(Refusal, match=rf"\[{code}\]"):
        load_releases(mini.folder)


def test_releases_that_cannot_be_had_are_refused_by_name(queue):
    with pytest.raises(Refusal, match=r"\[release-unknown\].*listed: 1\.0, 1\.1"):
        find_release(queue.folder, "9.9")
    with (queue.folder / "releases.toml").open("a") as file:
        file.write(f'[[releases]]\nversion = "1.3"\nfile = "alpha-1.3-py3-none-any.whl"\nsha256 = "{"0" * 64}"\n')
    with pytest.raises(Refusal, match=r"\[release-unfetched\].*withdrawn"):
        bump.plan_bump(queue.checkout, "alpha", find_release(queue.folder, "1.3"))
    list_release(queue, "1.4", NEW, extra='yanked = "broken metadata"\n')
    with pytest.raises(Refusal, match=r"\[bump-yanked\].*broken metadata"):
        bump.plan_bump(queue.checkout, "alpha", find_release(queue.folder, "1.4"))
    with pytest.raises(Refusal, match=r"\[bump-same\]"):
        bump.plan_bump(queue.checkout, "alpha", find_release(queue.folder, "1.0"))


def test_other_bytes_than_listed_are_refused(queue):
    path = queue.folder / "releases.toml"
    releases = load_releases(queue.folder)
    changed = path.read_text().replace(releases[-1].sha256, "f" * 64)
    path.write_text(changed)
    with pytest.raises(Refusal, match=r"\[artifact-hash\]"):
        bump.plan_bump(queue.checkout, "alpha", find_release(queue.folder, "1.1"))


def test_a_plan_is_json_that_anyone_can_read(queue, probed):
    plan_of(queue, probes=True)
    data = json.loads((bump.bump_folder(queue.checkout, "alpha", "1.1") / "plan.json").read_text())
    assert data["version"] == "1.1" and len(data["outcomes"]) == 6
    assert all(len(outcome["rungs"]) == 6 for outcome in data["outcomes"])


def wheel_named(folder, name: str) -> str:
    """A wheel under any tags; returns its sha256. Only metadata is ever read from it."""
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        distribution, version = name.split("-")[:2]
        archive.writestr(
            f"{distribution}-{version}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n",
        )
        archive.writestr(
            f"{distribution}-{version}.dist-info/WHEEL",
            f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {name.removesuffix('.whl').split('-', 2)[2]}\n",
        )
        archive.writestr(f"{distribution}-{version}.dist-info/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def artifact(python: str, machine: str, file: str, sha256: str = "0" * 64) -> str:
    return f'[[artifacts]]\npython = "{python}"\nmachine = "{machine}"\nfile = "{file}"\nsha256 = "{sha256}"\n'


@pytest.fixture
def served(queue):
    """The pin serves three more interpreters or machines, and has a companion that moves with it."""
    path = queue.folder / "pin.toml"
    more = [
        artifact("cp312", "x86_64", "alpha-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"),
        artifact("cp313", "aarch64", "alpha-1.0-cp313-cp313-manylinux_2_28_aarch64.whl"),
        artifact("cp314", "x86_64", "alpha-1.0-cp314-cp314-manylinux_2_28_x86_64.whl"),
    ]
    companion = '[[companions]]\ndistribution = "alpha_meta"\nversion = "1.0"\n' + artifact(
        "py3", "any", "alpha_meta-1.0-py3-none-any.whl"
    ).replace("[[artifacts]]", "[[companions.artifacts]]")
    path.write_text("\n".join([path.read_text(), *more, companion]))
    queue.shas = {
        name: wheel_named(queue.releases, name)
        for name in (
            "alpha-1.1-cp312-cp312-manylinux_2_34_x86_64.whl",  # built for another glibc than the old one
            "alpha-1.1-cp313-cp313-manylinux_2_28_aarch64.whl",
            "alpha_meta-1.1-py3-none-any.whl",
        )
    }
    return queue


def test_what_accepting_says_to_do_next_can_be_done(queue, probed):
    """Every command names the arguments that it needs, and the record those probes that its table wants."""
    plan_of(queue, probes=True)
    result = queue.sm120("bump", "alpha", "1.1", "--accept", "--drop", "clashes", "--drop", "builds-on")
    assert result.returncode == 0, result.stderr
    said = next(line for line in result.stdout.splitlines() if line.startswith("now: "))
    steps = [step.strip() for step in said.removeprefix("now: ").split(",")]
    assert steps == [
        "sm120 lock",
        "sm120 series refresh --check",
        "sm120 probe alpha",
        "sm120 matrix --record --probes",
        "sm120 readme",
        "make test",
    ]


def test_an_accepted_pin_serves_what_the_old_one_served(served, probed):
    plan = plan_of(served, probes=True)
    done = bump.accept(served.checkout, plan, ["clashes", "builds-on"])
    pin = load_series(served.folder).pin
    found = {(one.python, one.machine): (one.file, one.sha256) for one in pin.artifacts}
    assert found.keys() == {("py3", "any"), ("cp312", "x86_64"), ("cp313", "aarch64"), ("cp314", "x86_64")}
    assert found["cp314", "x86_64"] == found["py3", "any"], (
        "where no wheel is built for it, the universal one serves it"
    )
    for python, machine, name in (
        ("cp312", "x86_64", "alpha-1.1-cp312-cp312-manylinux_2_34_x86_64.whl"),
        ("cp313", "aarch64", "alpha-1.1-cp313-cp313-manylinux_2_28_aarch64.whl"),
    ):
        assert found[python, machine] == (name, served.shas[name])
    (companion,) = pin.companions
    assert companion.version == "1.1"
    assert companion.artifacts[0].sha256 == served.shas["alpha_meta-1.1-py3-none-any.whl"]
    assert not [line for line in done if "MISSING" in line]


def test_what_has_no_new_wheel_is_named_loudly(served, probed):
    (served.releases / "alpha_meta-1.1-py3-none-any.whl").unlink()
    plan = plan_of(served, probes=True)
    for path in served.releases.glob("alpha-1.1-py3-none-any.whl"):
        path.unlink()  # the wheel that was tried is named all the same
    done = bump.accept(served.checkout, plan, ["clashes", "builds-on"])
    assert [one.python for one in load_series(served.folder).pin.artifacts] == ["py3", "cp312", "cp313"]
    loud = [line for line in done if line.startswith("MISSING") and "alpha 1.1 for cp314/x86_64" in line]
    assert len(loud) == 1 and "pin.toml" in loud[0], done
    assert load_series(served.folder).pin.companions[0].version == "1.0"
    assert any(line.startswith("MISSING") and "alpha_meta 1.1" in line for line in done), done


def test_an_unlisted_release_is_listed_once_it_is_the_pin(queue):
    text = (queue.folder / "releases.toml").read_text()
    new = next(part for part in text.split("[[releases]]") if 'version = "1.1"' in part)
    release = find_release(queue.folder, "1.1")
    (queue.folder / "releases.toml").write_text(text.replace("[[releases]]" + new, ""))
    plan = bump.plan_bump(queue.checkout, "alpha", release)
    assert any("1.1 listed" in line for line in bump.accept(queue.checkout, plan, [o.slug for o in plan.open]))
    assert [one.version for one in load_releases(queue.folder)] == ["1.0", "1.1"]
    assert load_releases(queue.folder)[1].sha256 == release.sha256
