"""The catalog holds what was published, and a comparison refuses what is not alike."""

import copy
import json

import pytest
from typer.testing import CliRunner

from sm120.integration.cli import app
from sm120.integration.common.refusal import Refusal
from sm120.integration.measure.compare import compare, lacking
from sm120.integration.measure.result import FOLDER, Result, load_result, published, schema_text

PUBLISHED = {
    "others-27b-stock": {74.06},
    "others-27b-dflash2": {108.75, 390.23, 6163.07, 1618.31, 1194496},
    "others-27b-24-slots": {108.93, 375.81, 1118784},
    "others-flash-next": {10103.7, 7872.15, 171.09, 427.54, 824384},
    "others-flash-next-full": {745600},
    "others-27b-restores": {14.64, 775168},
    "others-flash-next-adaptive": {218.63, 489.35, 17235.9, 8839.75, 1067072},
    "others-flash-next-components": {468.0, 232.0, 248.0, 307.0},
    "others-flash-next-lossless": {203.0},
    "others-flash-next-360w": {206.0, 800.0, 1170.0},
    "others-flash-next-plain": {166.4, 413.9},
}


def result(**changes) -> Result:
    whole = {
        "schema": "sm120-result-1",
        "id": "a",
        "source": "measured here",
        "date": "2026-11-29",
        "conditions": {
            "device": "D", "power_limit_w": 450.0, "model": "M", "weights": "NVFP4", "speculation": "NEXTN",
            "runtime": "r", "profile": "p", "sampling": "greedy",
        },
        "measurements": [
            {"kind": "decode per stream", "value": 100.0, "unit": "tok/s", "concurrency": 1, "context_tokens": 1000,
             "new_tokens": 48},
            {"kind": "cold prefill", "value": 5000.0, "unit": "tok/s", "context_tokens": 65536},
        ],
    }  # fmt: skip
    whole = copy.deepcopy(whole)
    for key, value in changes.items():
        *path, last = key.split("__")
        at = whole
        for part in path:
            at = at[int(part)] if part.isdigit() else at[part]
        at[last] = value
    return Result.model_validate_json(json.dumps(whole), strict=True)


def test_the_published_numbers_are_in_and_marked():
    assert set(published()) == set(PUBLISHED)
    for name, values in PUBLISHED.items():
        found = load_result(FOLDER / "published" / f"{name}.json")
        assert found.source == "reported by others"
        assert values <= {one.value for one in found.measurements}
        # What a number depends on is there, or said to be unknown.
        assert found.conditions.device and found.conditions.model and found.conditions.note
        for one in found.measurements:
            assert one.context_tokens or one.note, (name, one)
    restores = [
        one
        for name in ("others-27b-restores", "others-flash-next")
        for one in load_result(FOLDER / "published" / f"{name}.json").measurements
        if one.kind == "storage restore"
    ]
    assert [(one.context_tokens, one.restored_tokens) for one in restores] == [(518534, 518528), (489879, 489856)]


def test_the_schema_file_is_that_of_the_classes():
    assert (FOLDER / "result.schema.json").read_text() == schema_text()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"measurements__0__unit": "s"}, "must be 'tok/s'"),
        ({"measurements__0__value": None}, "exactly one of value and refused"),
        ({"measurements__0__refused": "no"}, "exactly one of value and refused"),
        ({"measurements__0__value": -1.0}, "must not be negative"),
        ({"measurements__0__kind": "speed"}, "kind"),
        ({"measurements__0__outcome": "refused"}, "outcome is 'refused' beside a value"),
        ({"measurements__0__context_band": [4, 4]}, "first below its end"),
        ({"measurements__0__overlap": "some"}, "overlap"),
        ({"source": "known"}, "source"),
        ({"conditions__fan": "loud"}, "Extra inputs"),
        ({"schema": "sm120-result-2"}, "schema"),
    ],
)
def test_a_result_of_another_shape_is_refused(tmp_path, change, says):
    with pytest.raises(ValueError, match=says):
        result(**change)


def test_a_bad_file_is_named(tmp_path):
    path = tmp_path / "r.json"
    path.write_text("{}")
    with pytest.raises(Refusal, match=r"result-schema.*r\.json"):
        load_result(path)
    with pytest.raises(Refusal, match="others-27b-stock"):
        load_result(tmp_path / "none.json")


def test_alike_is_subtracted():
    lines = compare(result(), result(measurements__0__value=110.0, measurements__1__context_tokens=65000))
    assert [line.change for line in lines] == [pytest.approx(0.1), 0.0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"conditions__device": "E"}, "device: D / E"),
        ({"conditions__power_limit_w": 600.0}, "power_limit_w: 450.0 / 600.0"),
        ({"conditions__power_limit_w": None}, "power_limit_w: second does not say"),
        ({"conditions__weights": "FP8"}, "weights"),
        ({"conditions__sampling": "temperature 0.6"}, "sampling"),
        ({"source": "reported by others"}, "source"),
        ({"measurements__0__concurrency": 4}, "concurrency 1 / 4"),
        ({"measurements__0__new_tokens": 512}, "new_tokens 48 / 512"),
        ({"measurements__0__context_tokens": 2000}, "context 1,000 / 2,000"),
        ({"measurements__0__context_tokens": None}, "context 1000 / None"),
        ({"measurements__0__effort": "high"}, "effort None / high"),
        ({"measurements__0__trace": "harbour 1"}, "trace None / harbour 1"),
        ({"measurements__0__context_band": [0, 1024]}, "context_band None / (0, 1024)"),
        ({"measurements__0__overlap": "alone"}, "overlap None / alone"),
        ({"measurements__0__kind": "decode makespan"}, "only on one side"),
        ({"measurements__0__value": None, "measurements__0__refused": "no report"}, "not measured: no report"),
    ],
)
def test_unlike_is_refused_with_the_reason(change, says):
    for line in (compare(result(), result(**change))[0], compare(result(**change), result())[0]):
        assert line.change is None
    assert says in compare(result(), result(**change))[0].refused


def test_what_is_compared_may_differ_when_it_is_named():
    other = result(conditions__runtime="s", conditions__speculation=None)
    assert compare(result(), other)[0].change is None
    assert compare(result(), other, accept=("runtime",))[0].change is None
    assert compare(result(), other, accept=("runtime", "speculation"))[0].change == 0


def test_what_is_there_twice_is_paired_with_neither():
    one = load_result(FOLDER / "published" / "others-flash-next-full.json")
    other = one.model_copy(deep=True)
    other.conditions.runtime = "another"
    other.measurements *= 2
    accept = ("runtime", "power_limit_w", "sampling")
    assert compare(one, one, accept=accept)[0].change == 0
    for a, b in ((one, other), (other, one)):
        for line in compare(a, b, accept=accept):
            assert line.change is None and line.refused == "2 of this kind and request on one side"


def test_a_restore_and_a_cold_prefill_never_meet(tmp_path):
    restore = {
        "kind": "storage restore",
        "value": 14.64,
        "unit": "s",
        "context_tokens": 65536,
        "restored_tokens": 65536,
    }
    lines = compare(result(), result(measurements=[restore]))
    assert all(line.change is None for line in lines)
    fewer = result(measurements=[{**restore, "restored_tokens": 60000}])
    assert "restored tokens" in compare(result(measurements=[restore]), fewer)[0].refused


def test_the_commands(tmp_path):
    run = CliRunner(env={"COLUMNS": "220"}).invoke
    done = run(app, ["results", "--folder", str(tmp_path)])
    assert done.exit_code == 0 and done.output.count("reported by others") >= 11 and "10,103.70" in done.output
    done = run(app, ["compare", "others-27b-stock", "others-27b-dflash2"])
    assert done.exit_code == 1 and "stock vLLM" in done.output
    accepted = ["runtime", "speculation", "power_limit_w", "sampling"]
    words = [word for name in accepted for word in ("--accept", name)]
    # Accepting every condition does not make prompts of unknown length alike.
    done = run(app, ["compare", "others-27b-stock", "others-27b-dflash2", *words])
    assert "context 65,536 / 63,906 tokens" in done.output and "new_tokens None / 1024" in done.output
    assert done.exit_code == 0 and "-29.0%" in done.output and done.output.count("%") == 1
    faster = load_result(FOLDER / "published" / "others-27b-dflash2.json").model_copy(deep=True)
    faster.id, faster.conditions.runtime = "faster", "another"
    for one in faster.measurements:
        one.value *= 1.25
    (tmp_path / "faster.json").write_text(faster.as_json())
    done = run(app, ["compare", "others-27b-dflash2", str(tmp_path / "faster.json"), *words])
    assert done.exit_code == 0 and done.output.count("+25.0%") == len(faster.measurements)
    assert "compare-accept" in str(run(app, ["compare", "a", "b", "--accept", "mood"]).exception)


def test_published_results_are_drawn_where_there_is_something_to_draw(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    done = CliRunner().invoke(app, ["results", "--folder", str(tmp_path), "--plots", str(tmp_path / "plots")])
    assert done.exit_code == 0, done.exception
    drawn = {
        path.parent.name: sorted(one.stem for one in path.parent.iterdir()) for path in tmp_path.glob("plots/*/*.png")
    }
    assert drawn["others-27b-dflash2"] == ["decode", "prefill"] and drawn["others-27b-stock"] == ["decode", "prefill"]
    assert "others-27b-restores" not in drawn  # a restore alone is beside nothing


def test_published_results_are_unlike_each_other_in_named_ways():
    flash = [load_result(FOLDER / "published" / f"{name}.json") for name in PUBLISHED if "flash" in name]
    recent = [one for one in flash if one.id.startswith("others-flash-next-")]
    for index, first in enumerate(recent):
        for second in recent[index + 1 :]:
            assert lacking(first, second), (first.id, second.id)
            assert all(line.change is None for line in compare(first, second) if line.kind != "token pool")


def test_the_accept_line_that_is_printed_lets_the_comparison_through():
    run = CliRunner(env={"COLUMNS": "80"}).invoke
    done = run(app, ["compare", "others-flash-next", "others-flash-next-adaptive"])
    line = next(line for line in done.output.splitlines() if "sm120 compare" in line)
    assert done.exit_code == 1
    again = run(app, line.split("sm120 ")[1].split())
    assert again.exit_code == 0 and "sm120 compare" not in again.output and "+70.6%" in again.output
    # No condition helps where nothing was asked alike.
    assert "sm120 compare" not in run(app, ["compare", "others-flash-next", "others-flash-next-360w"]).output


def test_a_token_pool_does_not_depend_on_sampling_or_power():
    pools = [result(measurements=[{"kind": "token pool", "value": v, "unit": "tokens"}]) for v in (100.0, 110.0)]
    pools[1].conditions.sampling = pools[1].conditions.power_limit_w = None
    (line,) = compare(*pools)
    assert line.change == pytest.approx(0.1) and line.refused is None
    pools[1].conditions.runtime = "other"
    assert "runtime" in compare(*pools)[0].refused
