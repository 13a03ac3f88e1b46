"""A patched tree becomes a wheel that agrees with its own RECORD, the same bytes each time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zipfile

from ..mini_checkout import (
    HOOK,
    add_kernel,
    at,
    make_mini,
)


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
