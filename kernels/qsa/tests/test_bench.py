"""The bench runs as it stands, on the simulated device where there is no other."""

import pytest

from sm120.kernels.qsa import bench


@pytest.mark.gpu
def test_every_row_gets_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ROWS", 1)
    monkeypatch.setattr(bench, "SELECTED", 131)
    rows = bench.measure(slots=640, context=160)
    assert len(rows) == 2
    assert all(0 < row["us_min"] <= row["us_median"] <= row["us_max"] for row in rows)
