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
from pathlib import Path

import pytest

from sm120.integration.build.doctor import diagnose
from sm120.integration.build.identity import load_recipe
from sm120.integration.build.runtime import build_runtime, link_test_layer, site_packages
from sm120.integration.common.refusal import Refusal
from sm120.integration.upstream.releases import Release, release_tree

from ..mini_checkout import (
    HOOK,
    PRISTINE,
    add_kernel,
    make_wheel,
    runtime_state,
)


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


def test_the_command_line_prints_the_refusal_and_exits_with_2(mini):
    (mini.folder / "series").write_text("ghost.patch\n")
    result = mini.sm120("runtime", "--flavor", "none")
    assert result.returncode == 2
    assert result.stderr.startswith("error: [patch-missing] ") and "series:1:" in result.stderr


def test_unknown_flavor_is_refused(built):
    result = built.sm120("runtime", "--flavor", "rocm")
    assert result.returncode == 2 and "[runtime-flavor]" in result.stderr and "none" in result.stderr


def test_folder_in_the_way_of_the_runtime_is_left_alone(mini, refuses):
    mini.checkout.runtime.mkdir(parents=True)
    (mini.checkout.runtime / "mine.txt").write_text("precious")
    result = mini.build()
    assert result.returncode == 2 and "[runtime-in-the-way]" in result.stderr
    assert (mini.checkout.runtime / "mine.txt").read_text() == "precious"
