"""The index of NIXL FILE storage: which pages there are, how large, how long unused, and which of them go first.

It lives in SQLite beside the pages, is rebuilt from the folder when it is lost or damaged, and decides only what is
deleted: whether a page is there, and whole, is asked of its file. Needs the standard library only, so that it runs in a
small process of its own.
"""

from __future__ import annotations

import glob
import heapq
import json
import logging
import os
import re
import select
import signal
import sqlite3
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

logger = logging.getLogger(__name__)

INDEX_DIR = ".index"
INDEX_FILE = "pages.sqlite3"
VERSION = 1
# File systems store whole blocks, and O_DIRECT pads pages to them.
BLOCK = 4096
_BUCKET = re.compile("[0-9a-f]{2}")
_BUCKETS = 256
# Pages that are deleted in one transaction: others wait for its end.
_EVICT_BATCH = 32
_WITHOUT_INDEX = 1000
# Microseconds, far ahead of any clock: a time that a file can be given in nanoseconds.
_LATEST = 2**62 // 1000

_SCHEMA = f"""
CREATE TABLE page (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, used INTEGER NOT NULL);
CREATE INDEX page_used ON page (used);
CREATE TABLE suffix (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE file (
    page INTEGER NOT NULL, suffix INTEGER NOT NULL, folder INTEGER NOT NULL, bytes INTEGER NOT NULL,
    PRIMARY KEY (page, suffix)
) WITHOUT ROWID;
CREATE INDEX file_folder ON file (folder);
CREATE TABLE total (files INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO total VALUES (0, 0);
CREATE TRIGGER file_added AFTER INSERT ON file
    BEGIN UPDATE total SET files = files + 1, bytes = bytes + NEW.bytes; END;
CREATE TRIGGER file_removed AFTER DELETE ON file
    BEGIN UPDATE total SET files = files - 1, bytes = bytes - OLD.bytes; END;
CREATE TRIGGER file_resized AFTER UPDATE OF bytes ON file
    BEGIN UPDATE total SET bytes = bytes + NEW.bytes - OLD.bytes; END;
PRAGMA user_version = {VERSION};
"""


class PageIndex:
    """The pages below ``dirs``, the directories of one storage.

    A page is all files whose names have the same key, which is the part before the first ``_``. ``used`` orders pages
    by their last use and is never the same for two: microseconds, or one more than any before where the clock does not
    go on. It is also the modification time of the files, so a rebuilt index has the order of the lost one.

    Every method may raise ``OSError`` or ``sqlite3.Error``, and anything for a damaged value: then nothing of what it
    did is recorded, and the index is stale.
    """

    def __init__(self, dirs: list[str]):
        self.dirs = [os.path.abspath(path) for path in dirs]
        self.folder = os.path.join(self.dirs[0], INDEX_DIR)
        self.path = os.path.join(self.folder, INDEX_FILE)
        self._suffixes: dict[str, int] = {}
        self._db: sqlite3.Connection | None = None
        self._inode = 0
        self._file_mode = 0o600
        self._closed = 0
        # Whether files may be missing from the index: until reconcile() ran through, nothing may be deleted by it.
        self.stale = True

    def record(self, changed: Iterable[str], uses: Iterable[list[str]]) -> None:
        """Enter files that were written or removed, by path, and uses of prefixes, by keys from the first page on.

        A page is used later than the pages after it, so that of a prefix the last page goes first.
        """
        with self._transaction() as db:
            for path in changed:
                place = self._place(path)
                if place is not None:
                    self._enter(db, *place, reported=True)
            stamps: dict[str, int] = {}
            stamp = self._next_stamp(db)
            for keys in uses:
                stamp += len(keys)
                stamps.update((key.partition("_")[0], stamp - i) for i, key in enumerate(keys))
            for key, used in stamps.items():
                row = db.execute("UPDATE page SET used = ? WHERE key = ? RETURNING id", (used, key)).fetchone()
                for _, path, _ in self._files(db, row[0], key) if row else ():
                    with suppress(OSError):  # deleted behind the index's back, or by another server
                        os.utime(path, ns=(used * 1000, used * 1000), follow_symlinks=False)

    def reconcile(self) -> Iterator[None]:
        """Make the index say what the folders hold, one folder between two yields. Clears ``stale`` at the end."""
        self.stale = True
        for number in range(len(self.dirs) * _BUCKETS):
            self._reconcile_folder(number)
            yield
        with self._transaction() as db:
            db.execute("DELETE FROM page WHERE NOT EXISTS (SELECT 1 FROM file WHERE page = page.id)")
            db.execute("UPDATE total SET (files, bytes) = (SELECT count(*), coalesce(sum(bytes), 0) FROM file)")
        if self._closed:
            logger.info("Gave %d files of before the mode %o", self._closed, self._file_mode)
            self._closed = 0
        self.stale = False

    def evict(self, limit: int | None = None, *, before: int | None = None, disk: int | None = None) -> tuple[int, int]:
        """Delete the pages unused for longest while more than ``limit`` bytes are stored, at most one batch.

        Without a limit: one batch. Only pages last used ``before``, only pages with files on ``dirs[disk]``, where
        those are given. Returns (pages, bytes).
        Files go before their rows: if this is killed between, reconcile() finds rows without files.
        """
        if self.stale:
            raise ValueError("the index is stale: reconcile it first")
        pages = freed = 0
        on_disk = ""
        if disk is not None:
            folders = f"{disk * _BUCKETS} AND {(disk + 1) * _BUCKETS - 1}"
            on_disk = f"WHERE EXISTS (SELECT 1 FROM file WHERE page = page.id AND folder BETWEEN {folders})"
        with self._transaction() as db:
            stored = db.execute("SELECT bytes FROM total").fetchone()[0]
            oldest = db.execute(
                f"SELECT id, key, used FROM page {on_disk} ORDER BY used LIMIT {_EVICT_BATCH}"
            ).fetchall()
            for page, key, used in oldest:
                if (limit is not None and stored - freed <= limit) or (before is not None and used >= before):
                    break
                gone = [(suffix, size) for suffix, path, size in self._files(db, page, key) if _unlinked(path)]
                db.executemany("DELETE FROM file WHERE page = ? AND suffix = ?", [(page, suffix) for suffix, _ in gone])
                freed += sum(size for _, size in gone)
                if db.execute(
                    "DELETE FROM page WHERE id = ? AND NOT EXISTS (SELECT 1 FROM file WHERE page = ?)", (page, page)
                ).rowcount:
                    pages += 1
                else:  # not ours to delete: the next one, and this one again when all others were used
                    db.execute("UPDATE page SET used = ? WHERE id = ?", (self._next_stamp(db), page))
        return pages, freed

    def by_age(self) -> Iterator[tuple[int, int]]:
        """(used, bytes) of every page, the one that would go first first."""
        rows = self._open().execute(
            "SELECT used, (SELECT coalesce(sum(bytes), 0) FROM file WHERE page = page.id) FROM page ORDER BY used"
        )
        try:
            yield from rows
        finally:
            rows.close()

    def total(self) -> tuple[int, int]:
        """Files and bytes, each file in whole blocks."""
        with self._translated():
            return self._open().execute("SELECT files, bytes FROM total").fetchone()

    def oldest(self) -> int | None:
        """When the page that would go first was last used, or None if there is none."""
        with self._translated():
            return self._open().execute("SELECT min(used) FROM page").fetchone()[0]

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _open(self) -> sqlite3.Connection:
        """The database; a fresh one, and the index stale, if it is not there, damaged, or of another version."""
        if self._db is not None:
            with suppress(OSError):
                if os.lstat(self.path).st_ino == self._inode:
                    return self._db
            logger.warning("The page index %s was removed: making it again", self.path)
            self.close()
            self.stale = True
        # As storage does it: for the owner alone, unless the directory was given to a group.
        base = os.stat(self.dirs[0]).st_mode
        shared = base & stat.S_ISGID and base & stat.S_IWGRP
        self._file_mode = 0o660 if shared else 0o600
        try:
            os.mkdir(self.folder)
            os.chmod(self.folder, 0o2770 if shared else 0o700)
        except FileExistsError:
            pass
        if stat.S_ISLNK(os.lstat(self.folder).st_mode):
            raise OSError(f"{self.folder} is a symbolic link")
        # Two servers may come here at once: the first makes the tables, the second finds them.
        db = sqlite3.connect(self.path, timeout=30.0, isolation_level=None)
        try:
            with suppress(PermissionError):  # another server's
                os.chmod(self.path, self._file_mode)
            # The index may be lost with the machine's power: it is rebuilt. Not WAL: it needs shared memory.
            db.executescript("PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = OFF; PRAGMA cache_size = -8000;")
            db.execute("BEGIN IMMEDIATE")
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                self.stale = True
                for statement in _statements(_SCHEMA):
                    db.execute(statement)
            db.execute("COMMIT")
            if version not in (0, VERSION):
                raise sqlite3.DatabaseError(f"version {version}, not {VERSION}")
            db.execute("SELECT bytes FROM total").fetchone()[0] + 0
            self._inode = os.lstat(self.path).st_ino
        except BaseException as error:
            db.close()
            if _damaged(error):
                self._discard(error)
                return self._open()
            raise
        self._suffixes.clear()
        self._db = db
        return db

    def _discard(self, error: BaseException) -> None:
        logger.warning("The page index %s is damaged (%s): making it again", self.path, error)
        self.close()
        self.stale = True
        for end in ("", "-journal", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(self.path + end)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Discard a database that turns out to be damaged; the error goes on to the caller."""
        try:
            yield
        except Exception as error:
            if _damaged(error):
                self._discard(error)
            raise

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._translated():
            db = self._open()
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                self.stale = True
                self._suffixes.clear()
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise

    def _place(self, path: str) -> tuple[str, int] | None:
        """A file's name and the number of its folder; None if it is not where pages are."""
        bucket, name = os.path.split(os.path.abspath(path))
        base, bucket = os.path.split(bucket)
        if base not in self.dirs or not _BUCKET.fullmatch(bucket):
            return None
        return name, self.dirs.index(base) * _BUCKETS + int(bucket, 16)

    def _folder_path(self, number: int) -> str:
        return os.path.join(self.dirs[number // _BUCKETS], f"{number % _BUCKETS:02x}")

    def _enter(self, db: sqlite3.Connection, name: str, number: int, *, reported: bool) -> None:
        """Enter one file as it is now, or that it is gone. One more file of a page does not make the page younger."""
        path = os.path.join(self._folder_path(number), name)
        key, mark, rest = name.partition("_")
        suffix = self._suffix(db, mark + rest)
        try:
            found = os.lstat(path)
        except OSError:
            page = "SELECT id FROM page WHERE key = ?"
            db.execute(f"DELETE FROM file WHERE page = ({page}) AND suffix = ?", (key, suffix))
            return
        if not stat.S_ISREG(found.st_mode):
            return
        if stat.S_IMODE(found.st_mode) != self._file_mode:
            with suppress(OSError):
                os.chmod(path, self._file_mode)
                self._closed += 1
        written = min(found.st_mtime_ns // 1000, _LATEST)
        db.execute("INSERT INTO page (key, used) VALUES (?, ?) ON CONFLICT (key) DO NOTHING", (key, written))
        page, used = db.execute("SELECT id, used FROM page WHERE key = ?", (key,)).fetchone()
        if reported and used < written:
            with suppress(OSError):
                os.utime(path, ns=(used * 1000, used * 1000), follow_symlinks=False)
        elif used < written:
            db.execute("UPDATE page SET used = ? WHERE id = ?", (written, page))
        db.execute(
            "INSERT INTO file VALUES (?, ?, ?, ?)"
            " ON CONFLICT (page, suffix) DO UPDATE SET bytes = excluded.bytes, folder = excluded.folder",
            (page, suffix, number, -(-found.st_size // BLOCK) * BLOCK),
        )

    def _suffix(self, db: sqlite3.Connection, text: str) -> int:
        if text not in self._suffixes:
            if len(self._suffixes) >= 1000:  # the names are somebody else's
                self._suffixes.clear()
            db.execute("INSERT INTO suffix (text) VALUES (?) ON CONFLICT (text) DO NOTHING", (text,))
            self._suffixes[text] = db.execute("SELECT id FROM suffix WHERE text = ?", (text,)).fetchone()[0]
        return self._suffixes[text]

    def _files(self, db: sqlite3.Connection, page: int, key: str) -> list[tuple[int, str, int]]:
        """Suffix, path and bytes of every file of a page. No row leads outside of the folders of pages."""
        rows = db.execute(
            "SELECT suffix, folder, text, bytes FROM file JOIN suffix ON suffix.id = file.suffix WHERE page = ?",
            (page,),
        ).fetchall()
        if any("/" in key + text or not 0 <= number < len(self.dirs) * _BUCKETS for _, number, text, _ in rows):
            raise sqlite3.DatabaseError(f"page {page} has a file that is none")
        return [
            (suffix, os.path.join(self._folder_path(number), key + text), size) for suffix, number, text, size in rows
        ]

    def _reconcile_folder(self, number: int) -> None:
        folder = self._folder_path(number)
        present = set(_regular_files(folder))
        with self._transaction() as db:
            rows = db.execute(
                "SELECT page, suffix, key || text FROM file JOIN page ON page.id = file.page"
                " JOIN suffix ON suffix.id = file.suffix WHERE folder = ?",
                (number,),
            ).fetchall()
            for page, suffix, name in rows:
                # Another server can have entered a file after it was looked for.
                if name not in present and not os.path.lexists(os.path.join(folder, name)):
                    db.execute("DELETE FROM file WHERE page = ? AND suffix = ?", (page, suffix))
            for name in present.difference(name for _, _, name in rows):
                self._enter(db, name, number, reported=False)

    @staticmethod
    def _next_stamp(db: sqlite3.Connection) -> int:
        last = db.execute("SELECT max(used) FROM page").fetchone()[0] or 0
        return max(last + 1, time.time_ns() // 1000)


def evict_shared(indexes: list[PageIndex], limit: int) -> tuple[int, int, int]:
    """Delete one batch of the pages unused for longest in all ``indexes`` while they hold more than ``limit`` bytes.

    Returns (pages, bytes, the index that had them). Servers that do this at once can delete a batch each.
    """
    totals = [index.total()[1] for index in indexes]
    ages = sorted((used, i) for i, used in enumerate(index.oldest() for index in indexes) if used is not None)
    if sum(totals) <= limit or not ages:
        return 0, 0, 0
    first = ages[0][1]
    before = ages[1][0] if len(ages) > 1 else None
    return *indexes[first].evict(max(0, limit - sum(totals) + totals[first]), before=before), first


def evict_without_index(base: str) -> int:
    """Delete the thousand files that were used longest ago, found by a scan that remembers no more than those.

    For a disk so full that no index can be written. Returns how many are gone.
    """
    oldest = heapq.nsmallest(_WITHOUT_INDEX, _files_by_age(base))
    return sum(_unlinked(path) for _, path in oldest)


def _files_by_age(base: str) -> Iterator[tuple[int, str]]:
    for bucket in range(_BUCKETS):
        folder = os.path.join(base, f"{bucket:02x}")
        for name in _regular_files(folder):
            path = os.path.join(folder, name)
            with suppress(FileNotFoundError):
                yield os.lstat(path).st_mtime_ns, path


class IndexLoop:
    """What the process of an index does: enter what the server reports, and keep storage within its limits.

    ``options``: ``dirs``; ``high_watermark`` and ``low_watermark`` in percent of each file system; ``max_bytes`` of
    this storage; ``shared_max_bytes`` of all storage that the pattern ``shared_dirs`` names; ``interval_sec`` between
    looks at the file systems; ``reconcile_sec`` between comparisons with the folders. A limit may be None.
    """

    def __init__(self, options: dict):
        self.options = options
        self.index = PageIndex(options["dirs"])
        self.others: dict[str, PageIndex] = {}
        self._reconciling: tuple[PageIndex, Iterator[None]] | None = None
        self._reconcile_at = self._look_at = self._warn_at = 0.0
        self._cleaning: set[int] = set()
        self._skipped: set[str] = set()

    def record(self, events: list[list]) -> None:
        """Enter reports: ``["S", paths]`` changed, ``["U", keys]`` used, ``["M"]`` some reports were lost."""
        changed = [path for event in events if event[0] == "S" for path in event[1]]
        uses = [event[1] for event in events if event[0] == "U"]
        if any(event[0] == "M" for event in events):
            self.index.stale = True
        try:
            if changed or uses:
                self.index.record(changed, uses)
        except Exception as error:
            self.index.stale = True  # the folder still knows
            self._warn("cannot record pages", error)

    def step(self) -> bool:
        """Do one small piece of work; returns whether there is more to do at once."""
        now = time.monotonic()
        try:
            if now >= self._reconcile_at:
                self._reconcile_at = now + self.options["reconcile_sec"]
                self._skipped.clear()
                self.index.stale = True
            if self._reconciling is None:
                behind = [index for index in [self.index, *self.others.values()] if index.stale]
                self._reconciling = (behind[0], behind[0].reconcile()) if behind else None
            if self._reconciling is not None:
                if next(self._reconciling[1], self) is self:
                    self._reconciling = None
                return True
            return self._evict(now)
        except Exception as error:
            failed = self._reconciling[0] if self._reconciling else self.index
            self._reconciling = None
            if failed is not self.index:
                self._skip(failed, error)
                return True
            self._warn(f"cannot look after {failed.dirs[0]}", error)
            self._free_full_disk()
            return False

    def _evict(self, now: float) -> bool:
        limit = self.options["max_bytes"]
        if limit is not None and self.index.total()[1] > limit and self.index.evict(limit)[0]:
            return True
        shared_limit = self.options["shared_max_bytes"]
        if shared_limit is not None:
            if self._find_others():
                return True
            if evict_shared([self.index, *self.others.values()], shared_limit)[0]:
                return True
        if now >= self._look_at:
            self._look_at = now + self.options["interval_sec"]
            high = self.options["high_watermark"]
            self._cleaning |= {i for i, path in enumerate(self.index.dirs) if _used_percent(path) >= high}
        for disk in sorted(self._cleaning):
            above = _used_percent(self.index.dirs[disk]) >= self.options["low_watermark"]
            if above and self.index.evict(disk=disk if len(self.index.dirs) > 1 else None)[0]:
                return True
            self._cleaning.discard(disk)  # low enough, or nothing of ours is left there
        return False

    def _find_others(self) -> bool:
        """Look for other storage that shares the limit; returns whether some has to be read first."""
        mine = {os.path.realpath(path) for path in self.index.dirs}
        found = {os.path.abspath(path) for path in glob.glob(self.options["shared_dirs"]) if os.path.isdir(path)}
        found = {path for path in found - self._skipped if os.path.realpath(path) not in mine}
        for gone in self.others.keys() - found:
            self.others.pop(gone).close()
        for path in found - self.others.keys():
            self.others[path] = PageIndex([path])
        for index in list(self.others.values()):
            try:
                index.total()
            except Exception as error:
                self._skip(index, error)
        return any(index.stale for index in self.others.values())

    def _skip(self, other: PageIndex, error: Exception) -> None:
        """Leave other storage out until the next reconciliation: its pages cannot be counted."""
        self._warn(f"cannot count {other.dirs[0]}", error)
        self.others.pop(other.dirs[0]).close()
        self._skipped.add(other.dirs[0])

    def _free_full_disk(self) -> None:
        for base in self.index.dirs:
            if _used_percent(base) >= max(self.options["high_watermark"], 99.0):
                with suppress(OSError):
                    evict_without_index(base)

    def _warn(self, what: str, error: Exception) -> None:
        if time.monotonic() >= self._warn_at:
            logger.warning("%s: %s", what, error)
            self._warn_at = time.monotonic() + 60.0


def run(options: dict) -> None:
    """Look after the index until standard input ends, or the process that started this one: reports in lines of JSON."""
    logging.basicConfig(format="[%(asctime)s] HiCacheNixl page index: %(message)s", level=logging.INFO)
    os.nice(19)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends, and with it standard input
    loop, parent = IndexLoop(options), os.getppid()
    os.set_blocking(0, False)
    rest, busy, flush_at = b"", True, time.monotonic()
    events: list[list] = []
    while os.getppid() == parent:
        readable = select.select([0], [], [], 0.0 if busy else 1.0)[0]
        data = os.read(0, 1 << 20) if readable else None
        if data:
            *lines, rest = (rest + data).split(b"\n")
            events += map(json.loads, lines)
        if events and (data == b"" or time.monotonic() >= flush_at or len(events) >= 1000):
            loop.record(events)
            events, flush_at = [], time.monotonic() + 1.0
        if data == b"":
            break
        busy = loop.step()
    loop.index.close()


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _damaged(error: BaseException) -> bool:
    """Whether a database is not what it should be, and not just busy, full or unreadable.

    Damage shows as any kind of error: text that is no UTF-8, a number where a name belongs, a time that no file can have.
    """
    if isinstance(error, sqlite3.OperationalError):
        return any(word in str(error) for word in ("no such", "malformed", "already exists"))
    return isinstance(error, Exception) and not isinstance(error, OSError)


def _regular_files(folder: str) -> Iterator[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        if stat.S_ISLNK(os.lstat(folder).st_mode):
            return
        with os.scandir(folder) as entries:
            yield from (entry.name for entry in entries if entry.is_file(follow_symlinks=False))


def _unlinked(path: str) -> bool:
    """Delete a file; whether it is gone."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        logger.debug("Cannot delete %s: %s", path, error)
        return False
    return True


def _used_percent(path: str) -> float:
    try:
        found = os.statvfs(path)
    except OSError:
        return 0.0
    return 100.0 * (1 - found.f_bavail / found.f_blocks) if found.f_blocks else 0.0


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
