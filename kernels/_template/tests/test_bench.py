"""The bench runs as it stands, on the simulated device where there is no other."""

import pytest

from sm120.kernels._template import bench


@pytest.mark.gpu
def test_every_shape_gets_its_times() -> None:
    rows = bench.measure([(2, 8), (1, 70)])
    assert [(row["rows"], row["columns"]) for row in rows] == [(2, 8), (1, 70)]
    assert all(0 < row["us_min"] <= row["us_median"] <= row["us_max"] for row in rows)
