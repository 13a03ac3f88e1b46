"""What goes first, and that no accident to the index, the folder or the process deletes anything else."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sm120.kernels.page_index import page_index
from sm120.kernels.page_index.page_index import IndexLoop, PageIndex, evict_shared, evict_without_index

SUFFIXES = ("_m_0_1_k", "_m_0_1_v", "_m_0_1_mamba")
PAGE = 3 * 4096


class Folder:
    """A folder of pages of three files, 4 KiB each, as storage lays them out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        for bucket in range(256):
            (root / f"{bucket:02x}").mkdir(exist_ok=True)

    def store(self, *keys: str, size: int = 4000) -> list[str]:
        return [self._file(key + suffix, size) for key in keys for suffix in SUFFIXES]

    def _file(self, name: str, size: int) -> str:
        path = self.root / f"{sum(name.encode()) % 256:02x}" / name
        with path.open("wb") as file:
            file.truncate(size)
        return str(path)

    def keys(self) -> set[str]:
        """Keys of the pages that are whole; none may be in parts."""
        names = [path.name for path in self.root.glob("[0-9a-f][0-9a-f]/*")]
        keys = {name.partition("_")[0] for name in names}
        assert len(names) == 3 * len(keys), "a page is left in parts"
        return keys


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "pages")


def opened(folder: Folder) -> PageIndex:
    index = PageIndex([str(folder.root)])
    for _ in index.reconcile():
        pass
    return index


def filled(folder: Folder, chains: list[list[str]]) -> PageIndex:
    index = opened(folder)
    for chain in chains:
        index.record(folder.store(*chain), [chain])
    return index


def evict_all(index: PageIndex, limit: int) -> int:
    pages = 0
    while True:
        done = index.evict(limit)[0]
        if not done:
            return pages
        pages += done


def stamp(folder: Folder, key: str) -> int:
    times = {path.stat().st_mtime_ns for path in folder.root.glob(f"*/{key}_*")}
    assert len(times) == 1, "files of one page have one time"
    return times.pop()


def test_the_page_unused_for_longest_goes_first_and_no_more_than_the_limit_says(folder):
    index = filled(folder, [["a"], ["b"], ["c"], ["d"]])
    index.record([], [["a"]])
    assert index.total() == (12, 4 * PAGE)
    assert [size for _, size in index.by_age()] == [PAGE] * 4
    assert [used * 1000 for used, _ in index.by_age()] == [stamp(folder, key) for key in "bcda"]
    assert index.evict(2 * PAGE) == (2, 2 * PAGE)
    assert folder.keys() == {"a", "d"}
    assert index.evict(2 * PAGE) == (0, 0)
    assert index.evict(2 * PAGE - 1) == (1, PAGE) and folder.keys() == {"a"}


def test_a_prefix_loses_its_last_page_first(folder):
    """Two conversations on one system prompt: whatever is used, and however far one goes back, no tail is left alone."""
    rng = random.Random(5)
    chains = [["s1", "s2"] + [f"{name}{i}" for i in range(1, 9)] for name in "abc"]
    index = filled(folder, [chain[: 2 + i] for chain in chains for i in (2, 5, 8)])
    while folder.keys():
        keys = folder.keys()
        for chain in chains:
            there = [key in keys for key in chain]
            assert there == sorted(there, reverse=True), f"a tail without its prefix: {chain} {there}"
        chain = rng.choice(chains)
        index.record([], [[key for key in chain if key in keys][: rng.randrange(11)]])
        assert index.evict(index.total()[1] - 1)[0] == 1


def test_a_rebuilt_index_has_the_order_of_the_lost_one(folder):
    chains = [["s"] + [f"{name}{i}" for i in range(4)] for name in "ab"]
    index = filled(folder, chains)
    index.record([], [chains[0]])
    order = sorted(folder.keys(), key=lambda key: stamp(folder, key))
    assert order == ["b3", "b2", "b1", "b0", "a3", "a2", "a1", "a0", "s"]
    index.close()
    Path(index.path).unlink()
    again = opened(folder)
    while folder.keys():
        assert again.evict(again.total()[1] - 1)[0] == 1
        order.pop(0)
        assert folder.keys() == set(order)


def test_one_more_file_of_a_page_makes_it_no_younger_than_its_prefix(folder):
    """A state is written after the pages before it, whose end it belongs to; neither index nor times may turn round."""
    index = filled(folder, [["a0", "a1"], ["b"]])
    index.record([folder._file("a1_m_0_1_indexer", 4000)], [])
    times = {path.stat().st_mtime_ns for path in folder.root.glob("*/a1_*")}
    assert len(times) == 1 and times.pop() < stamp(folder, "a0")
    assert index.total() == (10, 3 * PAGE + 4096)
    assert index.evict(2 * PAGE)[0] == 1
    assert not list(folder.root.glob("*/a1_*")) and list(folder.root.glob("*/a0_*"))


def test_a_file_that_was_removed_is_reported_like_one_that_was_written(folder):
    index = filled(folder, [["a"]])
    gone = next(folder.root.glob("*/a_*"))
    gone.unlink()
    index.record([str(gone), "/etc/passwd", str(folder.root / "zz" / "a_m"), str(folder.root / "a_m")], [])
    assert index.total() == (2, 2 * 4096)


def test_a_clock_that_goes_back_changes_no_order(folder, monkeypatch):
    index = filled(folder, [["a"], ["b"]])
    now = time.time_ns()
    monkeypatch.setattr(page_index.time, "time_ns", lambda: now - 10**18)
    index.record([], [["a"]])
    index.record([], [["b"]])
    index.record([], [["a"]])
    assert stamp(folder, "a") > stamp(folder, "b")
    index.evict(PAGE)
    assert folder.keys() == {"a"}


def test_files_from_the_far_future_are_entered(folder):
    for path in folder.store("a", "b"):
        os.utime(path, ns=(2**63 - 1, 2**63 - 1))
    index = opened(folder)
    index.record([], [["a"]])
    index.evict(PAGE)
    assert folder.keys() == {"a"}


@pytest.mark.parametrize("how", ["garbage", "empty", "half", "other version", "other tables"])
def test_a_damaged_index_is_made_again_and_deletes_nothing_by_itself(folder, how):
    chains = [[f"{name}{i}" for i in range(6)] for name in "abcd"]
    index = filled(folder, chains)
    index.close()
    path = Path(index.path)
    if how == "garbage":
        path.write_bytes(random.Random(1).randbytes(path.stat().st_size))
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "half":
        os.truncate(path, path.stat().st_size // 8192 * 4096)
    else:
        db = sqlite3.connect(path)
        db.execute("PRAGMA user_version = 99" if how == "other version" else "DROP TABLE total")
        db.commit()
        db.close()
    again = PageIndex([str(folder.root)])
    with pytest.raises(ValueError, match="stale"):
        again.evict(0)
    run_until_quiet(loop := IndexLoop(options(folder, max_bytes=20 * PAGE)))
    assert loop.index.total() == (60, 20 * PAGE)
    assert folder.keys() == {key for chain in chains for key in chain} - {"a5", "a4", "a3", "a2"}


def test_flipped_bytes_of_the_index_delete_nothing_but_pages_over_the_limit(folder):
    """The limit is not reached, so nothing may go, whatever the rows say; only sizes are believed without asking."""
    rng = random.Random(7)
    chains = [[f"{name}{i}" for i in range(6)] for name in "abcd"]
    index = filled(folder, chains)
    index.close()
    path = Path(index.path)
    good = path.read_bytes()
    for _ in range(150):
        bad = bytearray(good)
        for _ in range(rng.choice((1, 4, 64))):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        path.write_bytes(bad)
        run_until_quiet(loop := IndexLoop(options(folder, max_bytes=1 << 50)))
        assert folder.keys() == {key for chain in chains for key in chain}
        loop.index.close()


def options(folder: Folder, **more: object) -> dict:
    return {
        "dirs": [str(folder.root)],
        "high_watermark": 101.0,
        "low_watermark": 100.0,
        "max_bytes": None,
        "shared_dirs": None,
        "shared_max_bytes": None,
        "interval_sec": 0.0,
        "reconcile_sec": 3600.0,
        **more,
    }


def run_until_quiet(loop: IndexLoop) -> None:
    for _ in range(20_000):
        if not loop.step() and not loop.index.stale:
            return
    raise AssertionError("the loop never comes to rest")


def test_an_index_deleted_under_its_process_is_made_again(folder):
    index = filled(folder, [["a"], ["b"]])
    Path(index.path).unlink()
    index.record(folder.store("c"), [["c"]])
    assert index.stale
    for _ in index.reconcile():
        pass
    assert index.total() == (9, 3 * PAGE)


def test_pages_deleted_behind_its_back_are_forgotten_and_not_replaced_by_others(folder):
    index = filled(folder, [["a"], ["b"], ["c"]])
    for path in folder.root.glob("*/b_*"):
        path.unlink()
    for _ in index.reconcile():
        pass
    assert index.total() == (6, 2 * PAGE)
    assert index.evict(2 * PAGE) == (0, 0) and folder.keys() == {"a", "c"}


def test_what_is_no_page_file_is_left_alone(folder):
    outside = folder.root.parent / "outside"
    outside.write_text("mine")
    bucket = folder.root / "00"
    (bucket / "x_link").symlink_to(outside)
    (bucket / "y_folder").mkdir()
    (folder.root / "README").write_text("mine")
    (folder.root / ".staging").mkdir()
    (folder.root / ".staging" / "0").write_text("being written")
    index = filled(folder, [["a"]])
    assert index.total() == (3, PAGE)
    evict_all(index, 0)
    assert outside.read_text() == "mine" and (bucket / "x_link").is_symlink() and (bucket / "y_folder").is_dir()
    assert (folder.root / ".staging" / "0").exists() and (folder.root / "README").exists()


def test_a_bucket_that_is_a_symbolic_link_is_not_followed(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "z_m_0_1_k").write_text("somebody's")
    (folder.root / "00").rmdir()
    (folder.root / "00").symlink_to(elsewhere)
    index = opened(folder)
    assert index.total() == (0, 0)


@pytest.mark.parametrize("point", range(0, 60, 3))
def test_killed_at_any_point_only_the_oldest_pages_are_gone(folder, point):
    """`point` counts the statements and the deletions of recording and evicting; every third one ends a process."""
    chains = [[f"{name}{i}" for i in range(4)] for name in "ab"]
    filled(folder, chains).close()
    child = os.fork()
    if child == 0:
        try:
            index = opened(folder)
            left = [point]

            def one_less(*_: object) -> None:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            index._open().set_trace_callback(one_less)
            unlink = page_index._unlinked
            page_index._unlinked = lambda path: (one_less(), unlink(path))[1]
            index.record(folder.store("a4"), [["a0", "a1", "a2", "a3", "a4"]])
            index.evict(5 * PAGE)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    index = opened(folder)
    names = {path.name for path in folder.root.glob("[0-9a-f][0-9a-f]/*")}
    assert index.total()[0] == len(names)
    rule = ["b3", "b2", "b1", "b0"]  # after a's use was recorded; before it, a's pages go first
    gone = {key for chain in chains for key in chain} - {name.partition("_")[0] for name in names}
    assert gone in [set(rule[:n]) for n in range(5)]
    evict_all(index, 2 * PAGE)
    assert len(folder.keys()) == 2


def test_a_full_disk_keeps_the_pages_and_is_recovered_from(folder):
    index = filled(folder, [[f"a{i}"] for i in range(40)])
    loop = IndexLoop(options(folder, max_bytes=1 << 40))
    loop.index = index
    used = index._open().execute("PRAGMA page_count").fetchone()[0]
    index._open().execute(f"PRAGMA max_page_count = {used}")  # SQLite's own "database or disk is full"
    keys = [f"b{i}" for i in range(400)]
    loop.record([["S", folder.store(*keys)], ["U", keys]])
    assert index.stale and index.total() == (120, 40 * PAGE)
    with pytest.raises(ValueError, match="stale"):
        index.evict(0)
    loop.step()
    index.close()  # room again
    run_until_quiet(loop)
    assert loop.index.total() == (1320, 440 * PAGE)
    assert len(folder.keys()) == 440


def test_a_disk_too_full_for_an_index_loses_the_oldest(folder, monkeypatch):
    monkeypatch.setattr(page_index, "_WITHOUT_INDEX", 6)
    for i in range(6):
        for path in folder.store(f"a{i}"):
            os.utime(path, (1000 + i, 1000 + i))
    assert evict_without_index(str(folder.root)) == 6
    assert folder.keys() == {"a2", "a3", "a4", "a5"}


def test_a_folder_that_cannot_be_written_is_said_once_and_survived(folder, monkeypatch, caplog):
    folder.store("a", "b")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(page_index.os, "mkdir", refuse)
    loop = IndexLoop(options(folder, max_bytes=0))
    for _ in range(5):
        loop.record([["S", folder.store("c")]])
        loop.step()
    assert caplog.text.count("Read-only file system") == 1
    assert folder.keys() == {"a", "b", "c"}


def test_pages_that_cannot_be_deleted_do_not_stop_the_others(folder, monkeypatch):
    index = filled(folder, [["a"], ["b"], ["c"]])
    unlink = os.unlink

    def refuse(path: str) -> None:
        if os.path.basename(path) == "a_m_0_1_v":
            raise PermissionError(1, "immutable", path)
        unlink(path)

    monkeypatch.setattr(page_index.os, "unlink", refuse)
    assert index.evict(PAGE + 4096)[0] == 1
    assert index.total() == (4, PAGE + 4096), "what stayed still counts"
    assert index.evict(0)[0] == 1
    monkeypatch.undo()
    assert index.evict(0) == (1, 4096) and folder.keys() == set()


def test_two_servers_on_one_folder_count_and_delete_as_one(folder):
    """Each enters pages of its own, at once; the limit holds for both together, and no row is lost."""
    code = """if True:
        import sys
        from pathlib import Path
        from sm120.kernels.page_index.tests.test_page_index import Folder, PAGE, opened
        folder = Folder(Path(sys.argv[1]))
        index = opened(folder)
        for i in range(60):
            key = f"{sys.argv[2]}{i}"
            index.record(folder.store(key), [[key]])
            index.evict(40 * PAGE)
    """
    running = [subprocess.Popen([sys.executable, "-c", code, str(folder.root), name]) for name in "xy"]
    assert [each.wait(60) for each in running] == [0, 0]
    index = opened(folder)
    assert len(folder.keys()) == 40 and index.total() == (120, 40 * PAGE)
    assert {f"{name}59" for name in "xy"} & folder.keys()


def test_namespaces_share_a_limit_and_the_oldest_page_of_any_goes(tmp_path):
    folders = [Folder(tmp_path / name) for name in ("one", "two")]
    indexes = [opened(folder) for folder in folders]
    for i in range(6):
        key = f"k{i}"
        indexes[i % 2].record(folders[i % 2].store(key), [[key]])
    while evict_shared(indexes, 3 * PAGE)[0]:
        pass
    assert folders[0].keys() | folders[1].keys() == {"k3", "k4", "k5"}
    # The same by the loop of one server, which reads the other's folder by itself.
    Path(indexes[1].path).unlink()
    loop = IndexLoop(options(folders[0], shared_dirs=str(tmp_path / "*"), shared_max_bytes=PAGE))
    run_until_quiet(loop)
    assert folders[0].keys() | folders[1].keys() == {"k5"}


def test_a_limit_is_shared_where_one_folder_is_none(tmp_path):
    folder = Folder(tmp_path / "one")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / ".index").write_text("in the way")
    filled(folder, [["a"], ["b"]]).close()
    run_until_quiet(IndexLoop(options(folder, shared_dirs=str(tmp_path / "*"), shared_max_bytes=PAGE)))
    assert folder.keys() == {"b"}


def test_watermarks_end_at_the_low_one(folder, monkeypatch):
    filled(folder, [[f"a{i}"] for i in range(100)]).close()
    monkeypatch.setattr(page_index, "_used_percent", lambda _: float(len(folder.keys())))
    run_until_quiet(IndexLoop(options(folder, high_watermark=80.0, low_watermark=50.0)))
    left = folder.keys()
    assert 18 <= len(left) <= 49, "a batch may pass the mark"
    assert left == {f"a{i}" for i in range(100 - len(left), 100)}


def test_the_process_ends_with_its_server_and_leaves_nothing_unrecorded(folder):
    code = "import json, sys; from sm120.kernels.page_index.page_index import run; run(json.loads(sys.argv[1]))"
    child = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(options(folder, max_bytes=4 * PAGE))], stdin=subprocess.PIPE
    )
    keys = [f"a{i}" for i in range(9)]
    for line in (["S", folder.store(*keys)], ["U", keys]):
        child.stdin.write((json.dumps(line) + "\n").encode())
    child.stdin.flush()
    deadline = time.monotonic() + 30
    while len(list(folder.root.glob("*/a*"))) > 12:
        assert time.monotonic() < deadline, "the limit was not kept"
        time.sleep(0.02)
    assert folder.keys() == {"a0", "a1", "a2", "a3"}
    child.stdin.write((json.dumps(["S", folder.store("z")]) + "\n").encode())
    child.stdin.close()
    assert child.wait(30) == 0
    rows = sqlite3.connect(folder.root / ".index" / "pages.sqlite3").execute("SELECT key FROM page").fetchall()
    assert ("z",) in rows


@pytest.mark.parametrize(("base", "files", "index"), [(0o755, 0o600, 0o700), (0o2770, 0o660, 0o2770)])
def test_files_of_before_are_closed_to_others_and_the_index_is(folder, caplog, base, files, index):
    folder.root.chmod(base)
    for path in folder.store("a"):
        os.chmod(path, 0o644)
    opened(folder).close()
    assert {path.stat().st_mode & 0o7777 for path in folder.root.glob("*/a_*")} == {files}
    assert (folder.root / ".index").stat().st_mode & 0o7777 == index
    assert (folder.root / ".index" / "pages.sqlite3").stat().st_mode & 0o7777 == files
