"""Locks come from their inputs with every hash, say when they are stale, and a layer takes no other bytes."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from sm120.integration.build.lock import (
    RESOLVED,
    WITH_DEPENDENCIES,
    flavors,
    locked,
    make_lock,
    read_input,
    stale,
    without_plain_markers,
    without_wheel,
)
from sm120.integration.build.lock_commands import make_locks
from sm120.integration.build.runtime import files_that_came, site_packages
from sm120.integration.build.runtime_record import read_record
from sm120.integration.common.checkout import Checkout, find_checkout
from sm120.integration.common.refusal import Refusal
from sm120.integration.common.uv import uv, uv_reason

from ..mini_checkout import Mini, at, make_mini, make_wheel


@pytest.fixture(scope="session")
def locked_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mini checkout whose `none` flavor wants two packages, from an index in a folder."""
    home = tmp_path_factory.mktemp("locked")
    mini = make_mini(home)
    for name, version in (("gamma", "1.0"), ("gamma", "2.0"), ("delta", "1.0")):
        make_wheel(mini.releases, name, version, {f"{name}/__init__.py": f"VERSION = {version!r}\n"})
    index(mini)
    (mini.checkout.locks / "none.in").write_text(f"{WITH_DEPENDENCIES} delta==1.0\ngamma==1.0  # why\n")
    with pytest.MonkeyPatch.context() as patch:
        ask(mini, patch)
        make_locks(mini.checkout, ["none"])
    return home


@pytest.fixture
def locking(locked_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mini:
    """A copy of it, with its index for pip and uv."""
    shutil.copytree(locked_once, tmp_path, dirs_exist_ok=True)
    mini = at(tmp_path)
    ask(mini, monkeypatch)
    return mini


def ask(mini: Mini, patch: pytest.MonkeyPatch) -> None:
    mini.environment.update(PIP_NO_INDEX="0", PIP_INDEX_URL=(mini.releases / "simple").as_uri())
    mini.environment.update(PIP_EXTRA_INDEX_URL="", UV_CACHE_DIR=str(mini.releases / "uv"))
    for name, value in mini.environment.items():
        patch.setenv(name, value)
    patch.setattr("sm120.integration.common.uv.configured", lambda: {"index-url": mini.environment["PIP_INDEX_URL"]})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An input of a checkout that has nothing else."""
    path = Checkout(tmp_path).locks / "none.in"
    path.parent.mkdir(parents=True)
    return path


def index(mini: Mini, hashes: bool = True) -> None:
    """Write the index of all wheels of `mini`."""
    for name in ("alpha", "gamma", "delta"):
        page = mini.releases / "simple" / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("")
        for wheel in sorted(mini.releases.glob(f"{name}-*.whl")):
            end = f"#sha256={hashlib.sha256(wheel.read_bytes()).hexdigest()}" if hashes else ""
            page.write_text(page.read_text() + f'<a href="../../{wheel.name}{end}">{wheel.name}</a>\n')


def lock_of(mini: Mini) -> Path:
    return mini.checkout.locks / "none.txt"


@pytest.mark.parametrize("flavor", flavors(find_checkout()))
def test_the_locks_of_this_checkout_are_current(flavor: str) -> None:
    checkout = find_checkout()
    assert stale(checkout, flavor) == []
    text = (checkout.locks / f"{flavor}.txt").read_text()
    blocks = [block for block in text.partition("\n\n")[2].replace(" \\\n", " ").splitlines() if block]
    assert len(blocks) == len(locked(text)) > 80
    assert all(" --hash=sha256:" in block.replace("    ", " ") for block in blocks)


def test_a_lock_has_the_hash_of_every_file(locking: Mini) -> None:
    text = lock_of(locking).read_text()
    wheel = locking.releases / "gamma-1.0-py3-none-any.whl"
    assert f"gamma==1.0 \\\n    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}" in text
    assert f"{WITH_DEPENDENCIES} delta==1.0" in text and "delta" not in locked(text)
    assert make_lock(locking.checkout, "none") == text, "made again, it is the same"


def test_a_stale_lock_is_seen_without_an_index(locking: Mini) -> None:
    assert stale(locking.checkout, "none") == []
    source, lock = locking.checkout.locks / "none.in", lock_of(locking)
    before = source.read_text()
    source.write_text(before.replace("gamma==1.0", "gamma==2.0"))
    assert stale(locking.checkout, "none") == ["gamma is 1.0, none.in has 2.0"]
    source.write_text(before.replace("delta==1.0", "delta==2.0"))
    assert stale(locking.checkout, "none") == ["made from another none.in, other pins or for other Pythons"]
    source.write_text(before + "# a remark\n")
    assert stale(locking.checkout, "none") == []
    lock.write_text(lock.read_text().replace("--hash=sha256:", "--hash=sha256:0", 1))
    assert stale(locking.checkout, "none") == ["edited after it was made"]
    lock.unlink()
    assert stale(locking.checkout, "none") == ["there is no lock"]


def test_moved_pins_make_a_resolved_lock_stale(locking: Mini) -> None:
    source = locking.checkout.locks / "none.in"
    source.write_text(f"{RESOLVED}\ngamma==1.0\n")
    make_locks(locking.checkout, ["none"])
    assert list(locked(lock_of(locking).read_text())) == ["gamma"], "the pinned release itself is not in it"
    assert stale(locking.checkout, "none") == []
    locking.release(version="1.1")
    assert stale(locking.checkout, "none") == ["made from another none.in, other pins or for other Pythons"]


def test_the_command_checks_and_says_what_changed(locking: Mini) -> None:
    assert locking.sm120("lock", "--check").returncode == 0
    source = locking.checkout.locks / "none.in"
    source.write_text("gamma==2.0\n")
    assert locking.sm120("lock", "--check").returncode == 1
    made = locking.sm120("lock", "none")
    assert made.returncode == 0 and "gamma: 1.0 → 2.0" in made.stdout, made.stderr


@pytest.mark.parametrize(
    "line", ["gamma", "gamma>=1.0", "gamma==1.*", "gamma==1.0,==1.0", "gamma @ file:///x", "gamma=="]
)
def test_an_input_has_exact_versions_only(source: Path, tmp_path: Path, line: str) -> None:
    source.write_text(f"# first\n{line}\n")
    with pytest.raises(Refusal, match=r"\[lock-input\].*none\.in:2: not one exact version"):
        read_input(Checkout(tmp_path), "none")


def test_a_name_is_there_once(source: Path, tmp_path: Path) -> None:
    source.write_text("gamma==1.0\nGamma==2.0\n")
    with pytest.raises(Refusal, match=r"\[lock-input\].*:2: gamma is there twice"):
        read_input(Checkout(tmp_path), "none")
    with pytest.raises(Refusal, match=r"\[lock-input\].*no input for 'other'; there are: none"):
        read_input(Checkout(tmp_path), "other")


def test_what_cannot_be_resolved_leaves_the_old_lock(locking: Mini) -> None:
    before = lock_of(locking).read_text()
    (locking.checkout.locks / "none.in").write_text("gamma==3.0\n")
    with pytest.raises(Refusal, match=r"\[lock-resolver\] none: .*gamma==3\.0"):
        make_locks(locking.checkout, ["none"])
    assert lock_of(locking).read_text() == before


def test_an_index_without_hashes_makes_no_lock(locking: Mini, tmp_path: Path) -> None:
    index(locking, hashes=False)
    with pytest.raises(Refusal, match=r"\[lock-resolver\] none: the index names no sha256 for gamma"):
        make_lock(locking.checkout, "none")


def test_the_layer_takes_what_the_lock_has_and_records_the_rest(locking: Mini) -> None:
    result = locking.build()
    assert result.returncode == 0, result.stderr
    record = read_record(locking.checkout.runtime)
    layer = locking.checkout.build / "deps" / record.deps
    assert (site_packages(layer) / "gamma/__init__.py").read_text() == "VERSION = '1.0'\n"
    wheel = locking.releases / "delta-1.0-py3-none-any.whl"
    assert record.unhashed == {wheel.name: hashlib.sha256(wheel.read_bytes()).hexdigest()}


def test_other_bytes_are_refused(locking: Mini) -> None:
    shutil.rmtree(locking.releases / ".gamma-1.0")
    make_wheel(locking.releases, "gamma", "1.0", {"gamma/__init__.py": "VERSION = 'other'\n"})
    index(locking)
    result = locking.build()
    assert result.returncode == 2 and "[lock-hash]" in result.stderr and "gamma==1.0 has sha256" in result.stderr
    assert not locking.checkout.runtime.exists()


def test_what_came_without_a_hash_does_not_stand_in_for_a_locked_file(locking: Mini) -> None:
    """pip takes an installed package of the right version for the locked one, and checks nothing."""
    text = lock_of(locking).read_text()
    lock_of(locking).write_text(text.replace(f"{WITH_DEPENDENCIES} delta==1.0", f"{WITH_DEPENDENCIES} gamma==1.0"))
    assert locking.build().returncode == 0, "the same bytes"
    shutil.rmtree(locking.checkout.build)
    shutil.rmtree(locking.releases / ".gamma-1.0")
    make_wheel(locking.releases, "gamma", "1.0", {"gamma/__init__.py": "VERSION = 'other'\n"})
    index(locking)
    result = locking.build()
    assert result.returncode == 2 and "[lock-hash]" in result.stderr, result.stderr


def test_a_line_without_a_hash_is_refused(locking: Mini) -> None:
    lock_of(locking).write_text("gamma==1.0\n")
    result = locking.build()
    assert result.returncode == 2 and "[lock-hash]" in result.stderr and "has no hash" in result.stderr


def test_no_file_is_refused_by_name(locking: Mini) -> None:
    (locking.releases / "gamma-1.0-py3-none-any.whl").unlink()
    index(locking)
    result = locking.build()
    assert result.returncode == 2 and "[lock-unavailable]" in result.stderr and "gamma==1.0" in result.stderr


def test_a_python_that_no_lock_serves_is_refused(locking: Mini, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sm120.integration.build.runtime.PYTHONS", ("3.1", "3.2"))
    result = locking.build()
    assert result.returncode == 2 and "[lock-python]" in result.stderr and "served: 3.1, 3.2" in result.stderr


def test_uv_that_is_not_there_is_refused(locking: Mini, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sm120.integration.common.uv.sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr("sm120.integration.common.uv.shutil.which", lambda name: None)
    with pytest.raises(Refusal, match=r"\[uv-missing\]"):
        make_lock(locking.checkout, "none")


def test_a_marker_that_says_nothing_goes() -> None:
    everywhere = "python_full_version < '3.14' and sys_platform == 'linux'"
    body = f"a==1 ; {everywhere} \\\n    --hash=x\nb==2 ; platform_machine == 'aarch64' \\\nc==3 ; python_version < '3.13' \\\n"
    assert without_plain_markers(body) == body.replace(f" ; {everywhere}", "")


def test_a_package_without_a_wheel_is_named_with_where() -> None:
    def package(*tags: str, marker: str = "") -> dict:
        wheels = [{"url": f"https://example.org/a-1-{tag}.whl"} for tag in tags]
        return {"name": "a", "version": "1", "marker": marker, "wheels": wheels}

    assert (
        list(without_wheel([package("py3-none-any"), package("cp39-abi3-manylinux_2_31_x86_64", marker="x86_64")]))
        == []
    )
    (line,) = without_wheel([package(*(f"cp31{n}-cp31{n}-manylinux_2_17_x86_64" for n in (1, 2)), marker="x86_64")])
    assert line == "a 1 (Python 3.13 on x86_64)"
    (line,) = without_wheel([package()])
    assert line.count("Python") == 6


def test_what_came_is_recorded_unless_the_lock_has_it(tmp_path: Path) -> None:
    def one(name: str, sha256: str | None) -> dict:
        hashes = {"sha256": sha256} if sha256 else {}
        download = {"url": f"https://example.org/{name}-1%2Bcpu.whl", "archive_info": {"hashes": hashes}}
        return {"metadata": {"name": name}, "download_info": download}

    report = tmp_path / "report.json"
    report.write_text(json.dumps({"install": [one("torch", "ab"), one("sympy", "cd"), one("odd", None)]}))
    assert files_that_came(report, but={"sympy"}) == {"torch-1+cpu.whl": "ab", "odd-1+cpu.whl": "unknown"}


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({}, []),
        (
            {"index-url": "https://a/simple", "find-links": "/w", "extra-index-url": "/x"},
            ["--default-index=https://a/simple"],
        ),
        ({"no-index": "true", "find-links": "/w /v"}, ["--no-index", "--find-links=/w", "--find-links=/v"]),
    ],
)
def test_uv_asks_the_index_that_pip_asks(settings, asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "uv"
    program.write_text('#!/bin/sh\necho "$SSL_CERT_FILE"\nfor each; do echo "$each"; done\n')
    program.chmod(0o755)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setattr("sm120.integration.common.uv.sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr("sm120.integration.common.uv.configured", lambda: settings | {"cert": "/c.pem"})
    assert uv("x", doing="trying", folder=tmp_path).stdout.splitlines() == ["/c.pem", "x", *asked]


def test_uv_is_quoted_on_one_line() -> None:
    class Said:
        stderr = "error: No solution\n  cause: because\n\nhint: try\n"
        stdout = ""

    assert uv_reason(Said()) == "No solution cause: because"  # type: ignore[arg-type]
