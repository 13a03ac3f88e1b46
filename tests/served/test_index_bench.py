"""`sm120 bench namespace` on a few hundred files: the script finds every page again, and the table has its lines."""

from __future__ import annotations

import pytest

from sm120.integration.build.installed_runtime import ScriptFailed
from sm120.integration.prove.persistence.index_bench import run_scale, scale_table


def test_two_small_folders_are_measured_and_removed(runtime, tmp_path):
    found = run_scale(runtime, tmp_path, (512, 1_024), timeout=300)
    assert [scale.files for scale in found] == [512, 1_024]
    assert all(scale.exists > 0 and scale.index_bytes > 0 for scale in found)
    assert list(tmp_path.iterdir()) == []
    assert list(scale_table(found).columns[0].cells) == ["512", "1,024"]


def test_a_script_that_dies_is_named(runtime, tmp_path):
    with pytest.raises(ScriptFailed, match="bench_index.py"):
        run_scale(runtime, tmp_path, (-1,), timeout=300)
