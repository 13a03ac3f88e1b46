"""A build is reproducible, redoes only what changed, survives being killed, and says what it installed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from sm120.integration.build.doctor import diagnose
from sm120.integration.build.identity import load_recipe
from sm120.integration.build.runtime import build_runtime, link_test_layer, site_packages
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.commit_message import message_of
from sm120.integration.series.patch_file import parse_patch
from sm120.integration.series.series import write_patches
from sm120.integration.upstream.releases import Release, release_tree

from ..mini_checkout import PRISTINE, at, make_mini, make_wheel, runtime_state
from ..series.test_refusals import add_fuzzy_patch, add_kernel

HOOK = PRISTINE["alpha/core.py"].replace("line_30 = 30", "line_30 = 'hook'")


def test_the_runtime_contains_patches_and_overlay(built):
    add_kernel(built)
    built.patch("hook", {"alpha/core.py": HOOK, "alpha/data/kernel.cu": "// gone\n"}, Kernels="packing")
    assert built.build().returncode == 0
    installed = site_packages(built.checkout.runtime)
    assert "line_5 = 55" in (installed / "alpha/core.py").read_text()
    assert "line_30 = 'hook'" in (installed / "alpha/core.py").read_text()
    assert (installed / "alpha/data/packing.cuh").read_text() == "// device code\n"
    assert os.access(built.checkout.runtime / "bin/serve", os.X_OK)
    code = "import importlib.metadata as m, alpha.core as c; print(m.version('alpha'), c.line_5)"
    result = subprocess.run([built.checkout.runtime / "bin/python", "-c", code], capture_output=True, text=True)
    manifest = json.loads((built.checkout.runtime / "runtime.json").read_text())
    assert result.stdout.split() == [manifest["projects"]["alpha"]["version"], "55"]
    assert [patch["slug"] for patch in manifest["projects"]["alpha"]["patches"]] == ["first-change", "hook"]
    assert manifest["projects"]["alpha"]["overlay"][0]["kernel"] == "packing"


def test_same_inputs_give_the_same_bytes(tmp_path):
    first = make_mini(tmp_path / "one")
    add_kernel(first)
    first.patch("hook", {"alpha/core.py": HOOK}, Kernels="packing")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    wheels = []
    for made, mask in ((first, 0o022), (at(tmp_path / "two"), 0o077)):
        before = os.umask(mask)
        try:
            assert made.build().returncode == 0
        finally:
            os.umask(before)
        wheels += (made.checkout.build / "wheels").rglob("*.whl")
        time.sleep(2.1)  # a zip archive counts in steps of 2 s
    assert wheels[0].name == wheels[1].name
    assert wheels[0].read_bytes() == wheels[1].read_bytes()


def test_a_users_attributes_do_not_change_a_line_end(mini, tmp_path):
    """Git reads them from their usual place even where it reads no configuration."""
    (tmp_path / "config" / "git").mkdir(parents=True)
    (tmp_path / "config" / "git" / "attributes").write_text("* text eol=crlf\n")
    mini.patch("hook", {"alpha/core.py": HOOK, "alpha/new.py": "new = 1\n"})
    assert mini.build(XDG_CONFIG_HOME=str(tmp_path / "config"), HOME=str(tmp_path)).returncode == 0
    installed = site_packages(mini.checkout.runtime)
    assert (installed / "alpha/core.py").read_bytes() == HOOK.encode()
    assert (installed / "alpha/new.py").read_bytes() == b"new = 1\n"
    refresh = mini.sm120("series", "refresh", "--check", XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert refresh.returncode == 0, refresh.stdout + refresh.stderr


def test_the_wheel_agrees_with_its_own_record(built, tmp_path):
    (wheel,) = (built.checkout.build / "wheels").rglob("*.whl")
    result = subprocess.run(
        [sys.executable, "-m", "wheel", "unpack", "--dest", tmp_path / "unpacked", wheel],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        record = next(name for name in names if name.endswith("RECORD"))
        listed = {line.split(",")[0] for line in archive.read(record).decode().splitlines()}
    assert listed == names
    assert built.pristine.is_dir()


def test_nothing_changed_nothing_done(built):
    before = {path: path.stat().st_mtime_ns for path in built.checkout.build.rglob("*")}
    result = built.build()
    assert "is up to date" in result.stdout
    assert {path: path.stat().st_mtime_ns for path in built.checkout.build.rglob("*")} == before


def test_one_changed_patch_rebuilds_one_wheel_and_no_dependencies(built):
    beta = built.checkout.patches / "beta"
    shutil.copytree(built.folder, beta)
    for path in beta.iterdir():
        path.write_text(path.read_text().replace("alpha", "beta"))
    files = {name.replace("alpha", "beta"): text for name, text in PRISTINE.items()}
    wheel = make_wheel(built.releases, "beta", "1.0", files)
    pin = (beta / "pin.toml").read_text()
    old = pin.split('sha256 = "')[1][:64]
    (beta / "pin.toml").write_text(pin.replace(old, hashlib.sha256(wheel.read_bytes()).hexdigest()))
    assert built.build().returncode == 0
    wheels = {path.name: path.stat().st_mtime_ns for path in (built.checkout.build / "wheels").rglob("*.whl")}
    layers = {path: path.stat().st_mtime_ns for path in (built.checkout.build / "deps").iterdir()}
    built.patch("hook", {"alpha/core.py": HOOK})
    assert built.build().returncode == 0
    after = {path.name: path.stat().st_mtime_ns for path in (built.checkout.build / "wheels").rglob("*.whl")}
    assert {name for name in after if name.startswith("beta")} <= set(wheels)
    assert all(after[name] == wheels[name] for name in after if name.startswith("beta"))
    assert len({name for name in after if name.startswith("alpha")} - set(wheels)) == 1
    assert {path: path.stat().st_mtime_ns for path in (built.checkout.build / "deps").iterdir()} == layers


def test_another_wheel_of_the_same_version_is_unpacked_anew(built, monkeypatch):
    """As of another Python or machine: the identity names its hash, so its files must be what is installed."""
    before = built.pristine
    built.release({**PRISTINE, "alpha/core.py": PRISTINE["alpha/core.py"] + "other_wheel = True\n"})
    assert built.pristine.name.startswith("alpha-1.0-") and built.pristine != before
    for name, value in built.environment.items():
        monkeypatch.setenv(name, value)
    artifact = load_recipe(built.checkout, "alpha").artifact
    release = Release(version="1.0", file=artifact.file, sha256=artifact.sha256)
    assert "other_wheel" in (release_tree(built.checkout, "alpha", release) / "alpha/core.py").read_text()
    shutil.rmtree(built.pristine)
    assert built.build().returncode == 0
    assert "other_wheel" in (site_packages(built.checkout.runtime) / "alpha/core.py").read_text()
    assert "other_wheel" not in (before / "alpha/core.py").read_text()


def test_killed_at_any_moment_and_run_again(built):
    """kill -9 at random moments of the build; the old runtime is whole after each, and the last run ends the job."""
    chooser = random.Random(20261129)
    good = runtime_state(built)
    built.patch("hook", {"alpha/core.py": HOOK})
    code = "from sm120.integration.cli import main; main()"
    outcomes = []
    for _ in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", code, "runtime", "--flavor", "none"],
            cwd=built.checkout.root,
            env=built.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(chooser.uniform(0.3, 3.0))
        outcomes.append(process.poll())
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        state = runtime_state(built)
        assert state == good or "hook" in state[1]
        python = built.checkout.runtime / "bin/python"
        assert subprocess.run([python, "-c", "import alpha.core"]).returncode == 0
        if state != good:
            break
    assert None in outcomes, "no kill fell into a running build"
    assert built.build().returncode == 0
    assert "hook" in runtime_state(built)[1]
    left = [path for path in built.checkout.build.rglob("*") if ".tmp-" in path.name]
    assert left == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small filesystem needs root")
@pytest.mark.parametrize("full", ["build", "cache"])
def test_full_disk_is_refused(built, tmp_path, full):
    """A filesystem that fills up during the build: a named refusal, and the old runtime still works."""
    size = {"build": "12m", "cache": "64k"}[full]
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", mount], check=True)
    try:
        environment = {}
        if full == "build":
            shutil.copytree(built.checkout.build, mount / "build", symlinks=True)
            shutil.rmtree(built.checkout.build)
            built.checkout.build.symlink_to(mount / "build")
            big = {**PRISTINE, **{f"alpha/big{n}.bin": random.Random(n).randbytes(300_000).hex() for n in range(20)}}
        else:
            environment["SM120_CACHE"] = str(mount / "cache")
            big = {**PRISTINE, "alpha/big.bin": random.Random(1).randbytes(200_000).hex()}
        built.release(big, version="1.1")
        before = runtime_state(built)
        result = built.build(**environment)
        assert result.returncode == 2, result.stdout
        assert "[disk-full]" in result.stderr, result.stderr
        assert runtime_state(built) == before
        assert subprocess.run([built.checkout.runtime / "bin/python", "-c", "import alpha.core"]).returncode == 0
    finally:
        subprocess.run(["umount", "--lazy", mount], check=True)


def test_doctor_sees_drift_by_hash(built):
    assert diagnose(built.checkout).drift == []
    assert built.sm120("doctor").returncode == 0
    installed = site_packages(built.checkout.runtime.resolve())
    (installed / "alpha/core.py").write_text(PRISTINE["alpha/core.py"])
    (installed / "alpha/tool.sh").write_text("#!/bin/sh\nrm -rf /\n")
    found = diagnose(built.checkout)
    assert ("alpha", "first-change", "drifted: alpha/core.py") in found.patches
    assert any("alpha/tool.sh differs from the wheel's RECORD" in line for line in found.drift)
    result = built.sm120("doctor")
    assert result.returncode == 1 and "drifted: alpha/core.py" in result.stdout


@pytest.mark.parametrize("loss", ["layer", "mark"])
def test_a_runtime_without_its_dependencies_is_not_up_to_date(built, loss, monkeypatch, tmp_path):
    """`build/deps` may be deleted to free space, and an interrupted installation has no mark of completeness."""
    (layer,) = (built.checkout.build / "deps").iterdir()
    if loss == "layer":
        shutil.rmtree(layer)
    else:
        (layer / "complete").unlink()
    found = diagnose(built.checkout)
    assert len(found.drift) == 1 and layer.name in found.drift[0] and "make runtime" in found.drift[0]
    assert built.sm120("doctor").returncode == 1
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    site_packages(tmp_path / "venv").mkdir(parents=True)
    with pytest.raises(Refusal, match=r"(?s)\[runtime-missing\].*make runtime"):
        link_test_layer(built.checkout)
    monkeypatch.undo()
    result = built.build()
    assert result.returncode == 0 and "is up to date" not in result.stdout, result.stdout
    assert (layer / "complete").is_file() and diagnose(built.checkout).drift == []


def test_a_runtime_whose_proof_failed_does_not_push_out_a_proven_one(built, monkeypatch):
    """After a good, a failed and a good one it is the first good one that a return would want."""
    for name, value in built.environment.items():
        monkeypatch.setenv(name, value)

    def build(verdict: int) -> str:
        def prove(home: Path, rows: Path) -> int:
            rows.write_text("[]")
            return verdict

        with contextlib.suppress(Refusal):
            build_runtime(built.checkout, "none", lambda line: None, prove)
        return max((built.checkout.build / "runtimes").iterdir(), key=lambda home: home.stat().st_mtime).name

    first = build(0)
    built.patch("failing", {"alpha/tool.sh": "#!/bin/sh\nexit 1\n"})
    failed = build(1)
    assert built.checkout.runtime.resolve().name == first != failed
    built.patch("hook", {"alpha/core.py": HOOK})
    last = build(0)
    assert {home.name for home in (built.checkout.build / "runtimes").iterdir()} == {first, last}


def test_doctor_without_a_runtime_or_gpu_is_no_error(mini):
    result = mini.sm120("doctor", "--json", PATH="/usr/bin:/bin")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert any("make runtime" in line for line in found["missing"])
    assert any("exactly 12.0" in line for line in found["missing"])


def test_the_command_line_prints_the_refusal_and_exits_with_2(mini):
    (mini.folder / "series").write_text("ghost.patch\n")
    result = mini.sm120("runtime", "--flavor", "none")
    assert result.returncode == 2
    assert result.stderr.startswith("error: [patch-missing] ") and "series:1:" in result.stderr


def test_edit_and_save_give_back_the_same_bytes(built, tmp_path):
    add_kernel(built)
    built.patch("hook", {"alpha/core.py": HOOK, "alpha/tool.sh": None}, Kernels="packing", Requires="first-change")
    assert built.sm120("series", "refresh").returncode == 0
    before = {path.name: path.read_bytes() for path in built.folder.iterdir()}
    hostile = tmp_path / "gitconfig"
    hostile.write_text("[core]\nautocrlf = true\n[diff]\nnoprefix = true\nmnemonicPrefix = true\ncontext = 9\n")
    work = tmp_path / "work"
    result = built.sm120("series", "edit", "alpha", str(work), GIT_CONFIG_GLOBAL=str(hostile))
    assert result.returncode == 0, result.stderr
    result = built.sm120("series", "save", "alpha", str(work), GIT_CONFIG_GLOBAL=str(hostile))
    assert result.returncode == 0, result.stderr
    assert {path.name: path.read_bytes() for path in built.folder.iterdir()} == before


def test_a_commit_reads_and_rebases_like_any_other(built, tmp_path):
    text = "why it is so,\n in two lines\n .\n   indented\n #1 is a number"
    built.patch("worded", {"alpha/tool.sh": PRISTINE["alpha/tool.sh"] + "echo more\n"}, Description=text)
    before = {path.name: path.read_bytes() for path in built.folder.iterdir()}
    work = tmp_path / "work"
    assert built.sm120("series", "edit", "alpha", str(work)).returncode == 0
    log = ["git", "log", "-1", "--format=%s%n%b%n%(trailers:key=Slug,valueonly)"]
    subject, *body = subprocess.run(log, cwd=work, capture_output=True, text=True, check=True).stdout.splitlines()
    assert subject == "core: change worded" and body[:4] == ["why it is so,", "in two lines", "", "  indented"]
    assert "Slug: worded" in body and "worded" in body, "git takes the last lines for trailers"
    amend = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--amend", "--quiet", "--no-edit"]
    subprocess.run([*amend, "--cleanup=whitespace"], cwd=work, check=True)
    assert built.sm120("series", "save", "alpha", str(work)).returncode == 0
    assert {path.name: path.read_bytes() for path in built.folder.iterdir()} == before


def test_save_names_the_files_that_it_deletes(built, tmp_path):
    built.patch("dropped", {"alpha/tool.sh": PRISTINE["alpha/tool.sh"] + "echo more\n"})
    work = tmp_path / "work"
    assert built.sm120("series", "edit", "alpha", str(work)).returncode == 0
    subprocess.run(["git", "reset", "--quiet", "--hard", "HEAD^"], cwd=work, check=True)
    result = built.sm120("series", "save", "alpha", str(work))
    assert result.returncode == 0 and f"deleted, as its commit is gone: {built.folder}/dropped.patch\n" in result.stdout
    assert not (built.folder / "dropped.patch").exists()


def test_save_refuses_a_commit_without_a_name_and_a_dirty_folder(built, tmp_path):
    work = tmp_path / "work"
    assert built.sm120("series", "edit", "alpha", str(work)).returncode == 0
    before = {path.name: path.read_bytes() for path in built.folder.iterdir()}
    (work / "alpha/core.py").write_text("changed = True\n")
    assert "[workspace-dirty]" in built.sm120("series", "save", "alpha", str(work)).stderr
    commit = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "no slug here"]
    subprocess.run(commit, cwd=work, check=True)
    assert "[workspace-commit]" in built.sm120("series", "save", "alpha", str(work)).stderr
    assert {path.name: path.read_bytes() for path in built.folder.iterdir()} == before


def test_save_refuses_a_rebase_that_is_not_finished(built, tmp_path):
    """HEAD is then before the patches that are still to be picked, and each of those would be deleted."""
    work = tmp_path / "work"
    assert built.sm120("series", "edit", "alpha", str(work)).returncode == 0
    before = {path.name: path.read_bytes() for path in built.folder.iterdir()}
    rebase = ["git", "-c", "sequence.editor=sed -i 1ibreak", "rebase", "--quiet", "--interactive", "sm120-base"]
    subprocess.run(rebase, cwd=work, check=True)
    assert "[workspace-rebase]" in built.sm120("series", "save", "alpha", str(work)).stderr
    assert {path.name: path.read_bytes() for path in built.folder.iterdir()} == before


@pytest.mark.parametrize("checkout", [["sm120-base"], ["-b", "trial", "sm120-base"]], ids=["detached", "branch"])
def test_save_refuses_what_is_not_the_branch_of_the_series(built, tmp_path, checkout):
    """There the patches that the branch goes on with would count as gone."""
    work = tmp_path / "work"
    assert built.sm120("series", "edit", "alpha", str(work)).returncode == 0
    before = {path.name: path.read_bytes() for path in built.folder.iterdir()}
    subprocess.run(["git", "checkout", "--quiet", *checkout], cwd=work, check=True)
    result = built.sm120("series", "save", "alpha", str(work))
    assert result.returncode == 2 and "[workspace-branch]" in result.stderr and "git checkout series" in result.stderr
    subprocess.run(["git", "checkout", "--quiet", "series"], cwd=work, check=True)
    subprocess.run(["git", "reset", "--quiet", "--hard", "sm120-base"], cwd=work, check=True)
    assert "[workspace-empty]" in built.sm120("series", "save", "alpha", str(work)).stderr
    assert {path.name: path.read_bytes() for path in built.folder.iterdir()} == before


def test_save_keeps_the_patches_that_edit_did_not_come_to(built, tmp_path):
    """`edit` stops at a patch that does not apply; mending that one must not cost those behind it."""
    add_fuzzy_patch(built)
    base = PRISTINE["alpha/tool.sh"]
    built.patch("last", {"alpha/tool.sh": base + "echo more\n"})
    last = (built.folder / "last.patch").read_bytes()
    work = tmp_path / "work"
    assert "[patch-conflict]" in built.sm120("series", "edit", "alpha", str(work)).stderr
    before = {path.name: path.read_bytes() for path in built.folder.iterdir()}
    result = built.sm120("series", "save", "alpha", str(work))
    assert (result.returncode, result.stdout.split()) == (0, ["first-change", "needs-fuzz", "last"]), result.stderr
    assert "kept unseen" in result.stderr and "no commit of them: needs-fuzz, last\n" in result.stderr
    assert f"delete {built.folder}/SLUG.patch and its line in {built.folder / 'series'}\n" in result.stderr
    assert {path.name: path.read_bytes() for path in built.folder.iterdir()} == before, "nothing was mended"

    core = work / "alpha/core.py"
    core.write_text(core.read_text().replace("line_20 = 20\n", "line_20 = 2020\n"))
    message = message_of(parse_patch(built.folder / "needs-fuzz.patch"))
    commit = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--all", "--message", message]
    subprocess.run(commit, cwd=work, check=True)
    result = built.sm120("series", "save", "alpha", str(work))
    assert result.stdout.split() == ["first-change", "needs-fuzz", "last"], result.stderr
    assert "no commit of them: last\n" in result.stderr
    assert (built.folder / "last.patch").read_bytes() == last
    assert built.build().returncode == 0

    # What the message says to do drops it, and nothing is left to say.
    (built.folder / "last.patch").unlink()
    series = built.folder / "series"
    series.write_text(series.read_text().replace("last.patch\n", ""))
    result = built.sm120("series", "save", "alpha", str(work))
    assert result.stdout.split() == ["first-change", "needs-fuzz"] and "unseen" not in result.stderr
    assert built.build().returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a filesystem needs root")
def test_save_from_another_file_system(built, tmp_path):
    before = {path.name: path.read_bytes() for path in built.folder.iterdir()}
    mount = tmp_path / "memory"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", mount], check=True)
    try:
        work = mount / "work"
        assert built.sm120("series", "edit", "alpha", str(work)).returncode == 0
        result = built.sm120("series", "save", "alpha", str(work))
        assert (result.returncode, result.stdout) == (0, "first-change\n"), result.stderr
    finally:
        subprocess.run(["umount", "--lazy", mount], check=True)
    assert {path.name: path.read_bytes() for path in built.folder.iterdir()} == before
    assert [path.name for path in built.checkout.patches.iterdir()] == ["alpha"], "nothing is left aside"


def test_a_series_that_cannot_be_written_whole_is_not_written(built):
    good = (built.folder / "first-change.patch").read_bytes()
    before = {path.name: path.read_bytes() for path in built.folder.iterdir()}
    changed = good.replace(b"without it", b"without that")
    with pytest.raises(Refusal, match="header-end"):
        write_patches(built.folder, {"first-change": changed, "second-change": b"no patch\n"}, ["second-change"])
    assert {path.name: path.read_bytes() for path in built.folder.iterdir()} == before
    assert [path.name for path in built.checkout.patches.iterdir()] == ["alpha"]


def test_a_description_that_ends_a_line_like_the_separator_stays_whole(built, tmp_path):
    """Only the line `---` ends a header; what `refresh` and `save` cut off there was lost."""
    text = "a table\n | old | new |\n -------\n behind it"
    path = built.patch("drawn", {"alpha/tool.sh": PRISTINE["alpha/tool.sh"] + "echo more\n"}, Description=text)
    path.write_text(path.read_text().replace("@@ -1,2 +1,3 @@", "@@ -1,2 +1,3 @@ main"))
    header = parse_patch(path).header
    assert header.endswith("Evidence: cpu\n") and path.read_text().startswith(header + "---\ndiff --git ")
    result = built.sm120("series", "refresh")
    assert (result.returncode, result.stdout) == (0, "rewritten: drawn\n"), result.stderr
    assert parse_patch(path).header == header
    before = path.read_bytes()
    work = tmp_path / "work"
    assert built.sm120("series", "edit", "alpha", str(work)).returncode == 0
    assert built.sm120("series", "save", "alpha", str(work)).returncode == 0
    assert path.read_bytes() == before


def test_apply_patches_a_users_tree_or_leaves_it_alone(built, tmp_path):
    add_kernel(built)
    built.patch("hook", {"alpha/core.py": HOOK, "alpha/tool.sh": None}, Kernels="packing")
    assert built.sm120("series", "refresh").returncode == 0
    assert built.build().returncode == 0
    mine = tmp_path / "mine"
    shutil.copytree(built.pristine, mine)
    (mine / "alpha/notes.txt").write_text("mine")
    assert built.sm120("series", "apply", "alpha", str(mine)).returncode == 0
    (mine / "alpha/notes.txt").unlink()
    recipe = load_recipe(built.checkout, "alpha")
    assert snapshot(mine) == snapshot(built.checkout.build / "trees" / recipe.name)

    patched = snapshot(mine)
    again = built.sm120("series", "apply", "alpha", str(mine))
    assert again.returncode == 2 and "[overlay-exists]" in again.stderr
    (mine / "alpha/data/packing.cuh").unlink()
    again = built.sm120("series", "apply", "alpha", str(mine))
    assert again.returncode == 2 and "[patch-conflict]" in again.stderr
    assert snapshot(mine) == {name: data for name, data in patched.items() if not name.endswith("packing.cuh")}


@pytest.mark.skipif(shutil.which("quilt") is None, reason="needs Debian's quilt")
def test_real_quilt_gives_the_same_tree(built, tmp_path):
    add_kernel(built)
    built.patch("hook", {"alpha/core.py": HOOK, "alpha/new.py": "new = 1\n", "alpha/tool.sh": None}, Kernels="packing")
    assert built.sm120("series", "refresh").returncode == 0
    recipe = load_recipe(built.checkout, "alpha")
    assert built.build().returncode == 0
    ours = built.checkout.build / "trees" / recipe.name
    theirs = quilt_tree(built.checkout, recipe, built.pristine, tmp_path / "quilt")
    assert snapshot(ours) == snapshot(theirs)


def quilt_tree(checkout, recipe, pristine: Path, folder: Path) -> Path:
    """Apply the overlay (as a generated first patch) and the series with Debian's quilt."""
    from sm120.integration.series.quilt import export_quilt

    shutil.copytree(pristine, folder, symlinks=True)
    export_quilt(recipe.series, recipe.overlay, folder / "patches")
    environment = os.environ | {"QUILT_PATCHES": "patches", "QUILTRC": "-"}
    result = subprocess.run(
        ["quilt", "push", "-a", "--fuzz=0"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "offset" not in result.stdout
    shutil.rmtree(folder / ".pc")
    shutil.rmtree(folder / "patches")
    return folder


def snapshot(tree: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(tree)): hashlib.sha256(path.read_bytes()).digest()
        for path in tree.rglob("*")
        if path.is_file()
    }
