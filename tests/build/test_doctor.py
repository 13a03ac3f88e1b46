"""Doctor tells what an installed runtime really contains by the hash of every file."""

from __future__ import annotations

import json

from sm120.integration.build.doctor import diagnose
from sm120.integration.build.runtime import site_packages

from ..mini_checkout import (
    PRISTINE,
)


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


def test_doctor_without_a_runtime_or_gpu_is_no_error(mini):
    result = mini.sm120("doctor", "--json", PATH="/usr/bin:/bin")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert any("make runtime" in line for line in found["missing"])
    assert any("exactly 12.0" in line for line in found["missing"])
