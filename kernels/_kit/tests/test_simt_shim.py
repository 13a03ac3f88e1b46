"""The SIMT shim itself: right kernels agree with numpy under every schedule, and every broken rule is caught."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from sm120.kernels._kit import host_library, sanitizers

EXAMPLES = Path(__file__).parent / "simt_examples.cpp"
SCHEDULES = sorted(host_library.SCHEDULES)


@functools.cache
def examples() -> host_library.HostLibrary:
    return host_library.build(EXAMPLES)


def ints(count: int = 64) -> np.ndarray:
    return np.arange(count, dtype=np.int32)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_block_sum_through_shared_memory_is_exact(schedule: str) -> None:
    x = np.arange(5 * 64, dtype=np.float32)
    y = np.full((5, 2), np.nan, np.float32)
    examples().call("run_block_sum", x, y, 5, 1, schedule=schedule, seed=3)
    assert (y == x.reshape(5, 64).sum(1)[:, None]).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_missing_barrier_gives_a_wrong_sum_in_every_schedule(schedule: str) -> None:
    x = np.ones(5 * 64, dtype=np.float32)  # the same in every block, so that stale shared memory would look right
    y = np.full((5, 2), np.nan, np.float32)
    examples().call("run_block_sum", x, y, 5, 0, schedule=schedule, seed=3)
    assert (np.abs(y - 64.0) > 1.0).any(1).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_warp_sum_by_shuffles_is_exact(schedule: str) -> None:
    x = np.arange(32, dtype=np.float32)
    y = np.full(32, np.nan, np.float32)
    examples().call("run_warp_sum", x, y, schedule=schedule)
    assert (y == 496.0).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_collectives_agree_with_their_definition(schedule: str) -> None:
    y = np.zeros((64, 10), np.uint32)
    examples().call("run_collectives", y, schedule=schedule, seed=1)
    lane = np.arange(64) % 32
    expected = [
        np.full(64, sum(1 << i for i in range(0, 32, 3))),
        np.full(64, 496),
        np.full(64, 0),
        np.maximum(lane - 1, 0),
        np.where(lane % 8 + 3 < 8, lane + 3, lane),
        lane ^ 5,
        lane // 8 * 8 + 1,
        sum(1 << i for i in range(0, 32, 4)) << (lane % 4),
        np.where(lane < 8, 0xFF, 0xAAAAAA00),
        np.full(64, 2),
    ]
    assert (y == np.stack(expected, 1).astype(np.uint32)).all()


@pytest.mark.parametrize(
    ("function", "arguments", "says"),
    [
        ("run_half_warp_shuffle", 2, "divergent collective.*has left the kernel"),
        ("run_shuffle_outside_mask", 2, "reads lane 20, which is outside the mask"),
        ("run_not_in_own_mask", 1, "not in its own mask.*lane 0"),
        ("run_mask_names_exited_lane", 1, "lane 3 has left the kernel"),
        ("run_mask_names_absent_lane", 1, "names lane 24, which the block does not have"),
        ("run_disagreeing_masks", 1, "disagree on the mask"),
        ("run_different_calls", 1, "divergent collective"),
        ("run_divergent_barrier", 1, "divergent barrier.*has left the kernel"),
        ("run_two_barriers", 1, "divergent barrier"),
        ("run_barrier_against_shuffle", 1, "divergent collective.*__syncthreads"),
        ("run_trapping", 0, "__trap in block .0,0,0. warp 0 lane 5"),
    ],
)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_broken_rule_is_a_fault_that_names_the_lanes(function, arguments, says, schedule) -> None:
    with pytest.raises(host_library.SimtFault, match=says):
        examples().call(function, *[ints() for _ in range(arguments)], schedule=schedule, seed=5)


def test_a_fault_leaves_the_library_usable() -> None:
    with pytest.raises(host_library.SimtFault):
        examples().call("run_divergent_barrier", ints())
    test_a_warp_sum_by_shuffles_is_exact("forward")


@pytest.mark.parametrize(
    ("grid_y", "threads", "shared", "says"),
    [(1, 1025, 0, "1..1024 threads"), (65536, 1, 0, "65535 in y"), (0, 1, 0, "grid"), (1, 1, 101377, "101376 bytes")],
)
def test_a_launch_no_sm120_device_accepts_is_refused(grid_y, threads, shared, says) -> None:
    with pytest.raises(host_library.SimtFault, match=says):
        examples().call("run_impossible", grid_y, threads, shared)


@functools.cache
def sanitized_examples() -> Path:
    return host_library.compile_library(EXAMPLES, sanitize=True)


SANITIZED = """
import sys, numpy as np
from pathlib import Path
from sm120.kernels._kit import host_library
library = host_library.HostLibrary(Path(sys.argv[1]))
for schedule in host_library.SCHEDULES:
    library.call(sys.argv[2], np.zeros(32, np.int32), int(sys.argv[3]), schedule=schedule)
    try:
        library.call("run_divergent_barrier", np.zeros(64, np.int32), schedule=schedule)
    except host_library.SimtFault:
        pass
print("no finding")
"""


@pytest.mark.parametrize(
    ("function", "inside", "outside"),
    [("run_shared_index", 31, 32), ("run_dynamic_index", 31, 32), ("run_global_index", 0, 1)],
)
def test_the_sanitizers_stop_at_the_first_access_out_of_bounds(function, inside, outside) -> None:
    good = sanitizers.run_python(["-c", SANITIZED, str(sanitized_examples()), function, str(inside)], timeout=120)
    assert good.returncode == 0 and "no finding" in good.stdout, good.stderr
    bad = sanitizers.run_python(["-c", SANITIZED, str(sanitized_examples()), function, str(outside)], timeout=120)
    assert bad.returncode != 0 and any(finding in bad.stderr for finding in sanitizers.FINDINGS), bad.stderr


def test_a_mutation_must_match_exactly_once(tmp_path: Path) -> None:
    (tmp_path / "k.cuh").write_text("a b a")
    with pytest.raises(ValueError, match=r"'a' occurs 2 times in k\.cuh, needs 1"):
        host_library.Mutation("twice", "k.cuh", "a", "c").apply(tmp_path)


def test_a_source_that_does_not_compile_reports_the_compiler(tmp_path: Path) -> None:
    broken = tmp_path / "broken.cpp"
    broken.write_text("int f() { return __activemask(); }")
    with pytest.raises(RuntimeError, match="__activemask"):
        host_library.build(broken)


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="needs one of"):
        examples().call("run_trapping", schedule="backwards")
