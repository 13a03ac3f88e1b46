"""The patched model file of SGLang on the CPU: fused and unfused give the same logits for a text and image stream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sm120.kernels
from sm120.kernels._kit import upstream

WORKER = Path(__file__).with_name("patched_model_worker.py")
OP = Path("kernels/ops/attention/fused_qk_norm_mrope.py")


def why_no_patched_sglang() -> str | None:
    root = upstream.package_root("sglang")
    if root is None:
        return "no sglang package, and SM120_SGLANG does not name an unpacked wheel"
    return None if (root / OP).is_file() else f"{root} is not patched: it has no {OP}"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    reason = why_no_patched_sglang()
    if reason is not None:
        pytest.skip(reason)
    rendezvous = tmp_path_factory.mktemp("model") / "rendezvous"
    here = Path(sm120.kernels.__path__[0])
    paths = [upstream.package_root("sglang").parent, here.parent / "integration" / "prove" / "cpu_layer"]
    path = os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")])
    # The worker's tensors are on the CPU; SGLang would take a GPU where it sees one.
    environment = os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(WORKER), str(rendezvous)], env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_layer_called_the_kernel(report: dict[str, float]) -> None:
    assert report["calls"] == 3


def test_fused_and_unfused_logits_are_the_same(report: dict[str, float]) -> None:
    """Both are the float32 model's logits up to bfloat16 rounding, of which the fused path has less."""
    assert report["fused_error"] <= report["unfused_error"] < 0.05
    assert report["fused_against_unfused"] <= report["fused_error"] + report["unfused_error"]
    assert report["same_argmax"] >= 23 / 24


def test_the_comparison_would_see_positions_of_one_axis_only(report: dict[str, float]) -> None:
    assert report["temporal_only_against_unfused"] > 4 * report["fused_against_unfused"]
