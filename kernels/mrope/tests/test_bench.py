"""The bench runs as it stands, on the simulated device where there is no other."""

import pytest

from sm120.kernels.mrope import bench


@pytest.mark.gpu
def test_every_token_count_gets_its_times() -> None:
    rows = bench.measure([1, 3], heads=(2, 1))
    assert [row["tokens"] for row in rows] == [1, 3]
    assert all(0 < row["us_min"] <= row["us_median"] <= row["us_max"] for row in rows)
