"""What the tables of the storage tier count as a failure."""

from dataclasses import replace
from pathlib import Path

import pytest

from sm120.integration.build.installed_runtime import Runtime
from sm120.integration.common.refusal import Refusal
from sm120.integration.prove.persistence import end_to_end, faults
from sm120.integration.prove.persistence import storage_bench as bench


def good_lines() -> list[end_to_end.Line]:
    def line(step, device, host, storage):
        return end_to_end.Line(step, 0, 96, device, host, storage, True)

    return [
        line("cold", 0, 0, 0),
        line("device hit", 80, 0, 0),
        line("host hit", 0, 80, 0),
        line("storage hit after restart, three at once", 0, 0, 80),
        line("namespace B", 0, 0, 0),
        line("back in namespace A", 0, 0, 80),
        line("one bit flipped in every file", 0, 0, 0),
    ]


def test_end_to_end_failures():
    lines = good_lines()
    assert end_to_end.failures(lines) == [] and lines[3].recomputed == 16
    for number in range(len(lines)):
        broken = [*lines]
        broken[number] = replace(lines[number], equal=False)
        assert len(end_to_end.failures(broken)) == 1, "unequal tokens"
        broken[number] = replace(lines[number], device=0, host=0, storage=0 if lines[number].storage else 80)
        assert len(end_to_end.failures(broken)) == 1, "the wrong tier"


def test_fault_failures():
    row = faults.FaultRow(fault="truncation", checksum=True, tries=3, miss=3)
    assert faults.failures([row]) == []
    assert faults.failures([row.model_copy(update={"wrong": 1})])
    assert faults.failures([row.model_copy(update={"error": 1})])
    assert faults.failures([row.model_copy(update={"tries": 0})])
    flipped = faults.FaultRow(fault="bit-flip", checksum=False, tries=3, wrong=3)
    assert faults.failures([flipped]) == [], "without checksums nothing can tell"
    assert faults.failures([flipped.model_copy(update={"checksum": True})])


def test_no_damaged_manifest_is_taken_for_another(tmp_path):
    row = faults.manifest_faults(tmp_path)
    assert row.tries > 40 and row.wrong == row.error == 0
    assert row.miss > row.tries // 2 and row.miss + row.full == row.tries


def test_bench_rates_and_refusals(tmp_path, monkeypatch):
    timing = bench.Timing(page_bytes=10, variant="x", write=[1, 2, 4], read=[1, 1, 1], bytes=100, staging=0, peak=0)
    assert (timing.rate("write"), timing.rate("read")) == (50, 100)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    with pytest.raises(Refusal, match=r"\[bench-rounds\].*at least 3"):
        bench.run_bench(Runtime(tmp_path), tmp_path, rounds=1, processes=2)
    monkeypatch.setenv("PATH", str(Path("/nowhere")))
    with pytest.raises(Refusal, match=r"\[tool-missing\] fio is not installed"):
        bench.run_bench(Runtime(tmp_path), tmp_path)


def test_the_cost_of_a_step_is_its_time_over_the_time_without_it():
    timings = [
        bench.Timing(page_bytes=10, variant=name, write=[seconds] * 3, read=[1] * 3, bytes=100, staging=0, peak=0)
        for name, seconds in {
            "bounce": 2,
            "bounce, padded": 2.1,
            "bounce, in 4 parts": 2,
            "zero-copy": 1,
            "zero-copy, checksum": 1.5,
            "zero-copy, fsync": 10,
        }.items()
    ]
    rows = list(zip(*(column.cells for column in bench.costs(timings).columns), strict=True))
    assert rows == [
        ("10", "padding", "+5%", "+0%"),
        ("10", "splitting in 4", "+0%", "+0%"),
        ("10", "checksum", "+50%", "+0%"),
        ("10", "fsync", "+900%", "+0%"),
    ]


@pytest.mark.parametrize("set_to", [None, "elsewhere"])
def test_the_runtime_is_the_one_that_make_builds_unless_another_is_named(tmp_path, monkeypatch, set_to):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SM120_RUNTIME", raising=False)
    for name in ("build/runtime", "elsewhere"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python").touch()
    if set_to:
        monkeypatch.setenv("SM120_RUNTIME", set_to)
    assert Runtime.chosen().folder == tmp_path / (set_to or "build/runtime")
    assert Runtime.chosen(Path("elsewhere")).folder == tmp_path / "elsewhere"
