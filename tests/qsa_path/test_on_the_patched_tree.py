"""The QSA path of the patched release against the float64 reference; the checks run in a process that imports it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm120.integration.checkout import find_checkout
from sm120.integration.identity import load_recipe
from sm120.integration.runtime import pristine_of, site_packages
from sm120.integration.tree import patched_tree

HERE = Path(__file__).parent
CHECKOUT = find_checkout(HERE)


@pytest.mark.slow
def test_qsa_path_equals_its_reference():
    recipe = load_recipe(CHECKOUT, "sglang")
    tree = patched_tree(
        pristine_of(CHECKOUT, recipe), recipe.series, recipe.overlay, CHECKOUT.build / "trees" / recipe.name
    )
    environment = dict(
        os.environ,
        PYTHONPATH=os.pathsep.join(map(str, [tree, site_packages(CHECKOUT.runtime), CHECKOUT.proof])),
        PYTHONDONTWRITEBYTECODE="1",
        SGLANG_USE_CPU_ENGINE="0",
        TRITON_INTERPRET="1",
        HF_HUB_OFFLINE="1",
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "check_qsa_path.py"]
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
