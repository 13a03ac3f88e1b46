"""The bench runs as it stands, on the simulated device where there is no other."""

import pytest

from sm120.kernels.recover_ssm import bench


@pytest.mark.gpu
def test_every_row_gets_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "HEADS", {"H": 1, "HV": 2, "K": 64, "V": 64})
    rows = bench.measure([1])
    assert len(rows) == 4
    assert all(0 < row["us_min"] <= row["us_median"] <= row["us_max"] for row in rows)
