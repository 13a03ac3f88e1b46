"""Probes and in-runtime tests say the same on a machine with a card: no GPU is visible to them."""

from pathlib import Path

from sm120.integration.common.checkout import Checkout
from sm120.integration.series import probes


def test_no_gpu_is_visible(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(probes, "link_test_layer", lambda checkout: tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    environment = probes.tree_environment(Checkout(tmp_path), tmp_path / "tree")
    assert environment["CUDA_VISIBLE_DEVICES"] == "" and environment["TRITON_INTERPRET"] == "1"
