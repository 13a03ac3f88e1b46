"""The shipped kernel against the reference, on a device or on the simulated one, and wrong twins of it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from sm120.kernels._kit import mutated_module
from sm120.kernels._kit.closeness import assert_close
from sm120.kernels._template import reference, triton_scale_rows

pytestmark = pytest.mark.gpu
TOLERANCE = {torch.float32: 1e-7, torch.float16: 4e-4, torch.bfloat16: 3e-3}  # one rounding at the store


def check(rows: int, columns: int, dtype: torch.dtype, kernels: ModuleType = triton_scale_rows) -> None:
    """Rows of a wider matrix, whose other columns are NaN."""
    generator = torch.Generator().manual_seed(rows * 10_000 + columns)
    wide = torch.full((rows, columns + 3), float("nan"), dtype=dtype)
    wide[:, :columns] = torch.randn(rows, columns, generator=generator).to(dtype)
    factors = torch.randn(rows, generator=generator)
    expected = reference.scale_rows(wide[:, :columns], factors)
    got = kernels.scale_rows(wide.cuda()[:, :columns], factors.cuda())
    assert_close("out", expected, got.cpu(), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 63), (2, 65), (1, 2051), (0, 4), (4, 0)], ids=str)
def test_every_element(rows: int, columns: int, dtype: torch.dtype) -> None:
    check(rows, columns, dtype)


REFUSED = {
    "a vector": (torch.ones(4), torch.ones(4), r"x: got torch.float32 of shape \(4,\)"),
    "integers": (torch.ones(2, 4).int(), torch.ones(2), "x: got torch.int32"),
    "half factors": (torch.ones(2, 4), torch.ones(2).half(), "factors: got torch.float16"),
    "a factor a column": (torch.ones(2, 4), torch.ones(4), r"factors: got torch.float32 of shape \(4,\), needs"),
}


@pytest.mark.parametrize(("x", "factors", "says"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_argument_is_refused(x: torch.Tensor, factors: torch.Tensor, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        triton_scale_rows.scale_rows(x.cuda(), factors.cuda())


def test_strided_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="x: strides are"):
        triton_scale_rows.scale_rows(torch.ones(2, 8).cuda()[:, ::2], torch.ones(2).cuda())


def test_factors_of_another_device_are_refused() -> None:
    with pytest.raises(ValueError, match="factors: is on cpu, needs cuda:0"):
        triton_scale_rows.scale_rows(torch.ones(2, 4).cuda(), torch.ones(2))


WRONG = {
    "factor_of_another_row": ("tl.load(factors + row)", "tl.load(factors)"),
    "rows_taken_as_packed": ("row * stride_row + column", "row * columns + column"),
    "last_block_lost": ("inside = column < columns", "inside = column < columns // BLOCK * BLOCK"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_twin_is_rejected(name: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check(2, 1500, torch.float32, mutated_module.load(Path(triton_scale_rows.__file__), tmp_path, WRONG[name]))
