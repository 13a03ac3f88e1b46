"""`sm120 ptx`: what it counts, and what it refuses."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from sm120.integration.cli import app
from sm120.integration.common.refusal import Refusal
from sm120.integration.measure.ptx_commands import read, table


def launch(kernel: str, **kinds: int) -> str:
    lanes = 16 * sum(kinds.values())
    counts = {"instructions": kinds, "lanes": lanes, "partial": 0, "global_sectors": 7, "shared_passes": 3}
    return json.dumps({"kernel": kernel, **counts}) + "\n"


def test_launches_of_a_kernel_add_up(tmp_path):
    tally = tmp_path / "launches.jsonl"
    tally.write_text(launch("one", mma=2, float=6) + launch("two", mov=1) + launch("one", float=2))
    rows = read(tally)
    one = rows["one"]
    assert (one.launches, one.instructions, one.products, one.sectors, one.passes) == (2, 10, 2, 14, 6)
    assert rows["two"].launches == 1
    made = table("kernel", rows)
    cells = [list(column.cells) for column in made.columns]
    assert cells[0] == ["one", "two"] and cells[3] == ["50%", "50%"] and cells[7][0] == "float 80%, mma 20%"


def test_nothing_ran_without_a_tally(tmp_path):
    assert read(tmp_path / "none") == {}


@pytest.mark.parametrize("name", ["qs", "_lib", "../kernels"])
def test_a_kernel_that_is_none_is_refused_with_the_names(name):
    refused = CliRunner().invoke(app, ["ptx", name]).exception
    assert isinstance(refused, Refusal)
    assert refused.code == "kernel-unknown" and "recover_ssm" in str(refused)
