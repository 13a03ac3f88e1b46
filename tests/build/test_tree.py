"""Two commands at once: neither breaks the other, and both end with what one alone would have made."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sm120.integration.build.identity import load_recipe
from sm120.integration.build.tree import build_aside, sweep_unfinished
from sm120.integration.serve.namespace import checkpoint
from sm120.integration.serve.namespace.checkpoint import HashCache


def test_two_that_make_the_same_tree_both_get_it(tmp_path):
    both_at_work = threading.Barrier(2, timeout=20)

    def make(aside: Path) -> None:
        (aside / "file").write_text("made")
        both_at_work.wait()

    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda _: build_aside(tmp_path / "tree", make), range(2)))
    assert made == [tmp_path / "tree"] * 2 and (tmp_path / "tree" / "file").read_text() == "made"
    assert os.listdir(tmp_path) == ["tree"], "the slower one's folder is gone"


def test_an_error_is_no_other_being_faster(tmp_path):
    def make(aside: Path) -> None:
        (tmp_path / "tree").write_text("in the way")
        raise FileExistsError(17, "of its own", "x")

    with pytest.raises(FileExistsError, match="of its own"):
        build_aside(tmp_path / "tree", make)


def test_a_build_does_not_sweep_what_another_still_fills(tmp_path):
    """`make runtime` sweeps under its lock, and `sm120 probe`, `bump` and `series refresh` unpack without one."""
    (tmp_path / ".old.tmp-left" / "below").mkdir(parents=True)  # by one that was killed

    def make(aside: Path) -> None:
        (aside / "first").write_text("1")
        sweep_unfinished(tmp_path)
        (aside / "second").write_text("2")

    build_aside(tmp_path / "tree", make)
    assert sorted(os.listdir(tmp_path / "tree")) == ["first", "second"]
    assert os.listdir(tmp_path) == ["tree"]


def test_what_a_killed_process_filled_is_swept(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from sm120.integration.build.tree import build_aside\n"
        "build_aside(Path(sys.argv[1]) / 'tree', lambda aside: os.kill(os.getpid(), signal.SIGKILL))"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path]).returncode < 0
    assert len(os.listdir(tmp_path)) == 1
    sweep_unfinished(tmp_path)
    assert os.listdir(tmp_path) == []


def test_two_commands_on_a_fresh_checkout(mini):
    """Each needs the release unpacked; together with a build, which sweeps."""
    mini.patch("first-change", {"alpha/tool.sh": "#!/bin/sh\necho beta\n"})
    code = "from sm120.integration.cli import main; main()"
    commands = [["series", "refresh", "--check"], ["runtime", "--flavor", "none"], ["series", "refresh", "--check"]]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, *command],
            cwd=mini.checkout.root,
            env=mini.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    for process in running:
        printed, _ = process.communicate(timeout=240)
        assert process.returncode == 0, printed
    recipe = load_recipe(mini.checkout, "alpha")
    assert sorted(os.listdir(mini.checkout.build / "trees")) == sorted([mini.pristine.name, recipe.name])


def test_two_processes_remember_hashes_in_one_file(tmp_path, monkeypatch):
    files = [tmp_path / name for name in ("one", "two")]
    for file in files:
        file.write_text(file.name)
    first, second = (HashCache(tmp_path / "hashes.json") for _ in range(2))
    replace = os.replace

    def interrupted(aside: Path, path: Path) -> None:
        """The other process writes all of its own between our writing aside and our renaming."""
        monkeypatch.setattr(checkpoint.os, "replace", replace)
        second.put(files[1], HashCache._key(files[1]), "2" * 64)
        replace(aside, path)

    monkeypatch.setattr(checkpoint.os, "replace", interrupted)
    first.put(files[0], HashCache._key(files[0]), "1" * 64)
    assert HashCache(tmp_path / "hashes.json").get(files[0]) == "1" * 64
    second.put(files[1], HashCache._key(files[1]), "2" * 64)
    both = HashCache(tmp_path / "hashes.json")
    assert [both.get(file) for file in files] == ["1" * 64, "2" * 64]
    assert sorted(os.listdir(tmp_path)) == ["hashes.json", "one", "two"]


def test_pinned_archive_that_belies_its_record_is_refused(built, refuses):
    """The hash is that of the pin, and still a member is not what the wheel's own RECORD says."""
    built.release(version="1.1")
    wheel = built.releases / "alpha-1.1-py3-none-any.whl"
    good = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with zipfile.ZipFile(wheel) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    members["alpha/core.py"] += b"import os\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    pin = built.folder / "pin.toml"
    pin.write_text(pin.read_text().replace(good, hashlib.sha256(wheel.read_bytes()).hexdigest()))
    refuses(built, "artifact-corrupt", "alpha-1.1", "alpha/core.py")
