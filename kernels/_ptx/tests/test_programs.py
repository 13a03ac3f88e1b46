"""Small programs: divergence, barriers, asynchronous copies, atomics; and for each rule a program that breaks it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from one_instruction import counted, module, run

from sm120.kernels._ptx.executor import Executable, PtxFault, reads, updates, writes

X = np.arange(64, dtype=np.uint32)
SCHEDULES = pytest.mark.parametrize("schedule", ["forward", "reverse", "random"])
PLACE = "mov.u32 %r0, space; mad.lo.s32 %r1, %lane, 4, %r0;"
SWAP = f"{PLACE} st.shared.b32 [%r1], %a0; {{barrier}} xor.b32 %r2, %lane, 32; mad.lo.s32 %r2, %r2, 4, %r0; ld.shared.b32 %d0, [%r2];"


@SCHEDULES
def test_two_warps_exchange_through_shared_memory(schedule):
    (result,) = run(SWAP.format(barrier="bar.sync 0;"), [X], ["b32"], threads=64, shared=256, schedule=schedule)
    np.testing.assert_array_equal(result, X ^ 32)


@SCHEDULES
def test_a_dropped_barrier_is_a_race_or_a_read_too_early(schedule):
    with pytest.raises(PtxFault, match="with no barrier in between|was never written"):
        run(SWAP.format(barrier=""), [X], ["b32"], threads=64, shared=256, schedule=schedule)


def test_a_barrier_between_reading_and_writing_again_is_needed():
    again = SWAP.format(barrier="bar.sync 0;") + " {} st.shared.b32 [%r1], %d0;"
    run(again.format("bar.sync 0;"), [X], ["b32"], threads=64, shared=256)
    with pytest.raises(PtxFault, match="may still read it|with no barrier in between"):
        run(again.format(""), [X], ["b32"], threads=64, shared=256)


def test_warps_may_write_the_same_value_twice():
    body = "mov.u32 %r0, space; and.b32 %r1, %lane, 31; mad.lo.s32 %r1, %r1, 4, %r0; st.shared.b32 [%r1], {}; bar.sync 0; mov.b32 %d0, 0;"
    run(body.format("%r1"), [X], ["b32"], threads=64, shared=256)
    with pytest.raises(PtxFault, match="race: shared byte 0 was written by warp 0"):
        run(body.format("%a0"), [X], ["b32"], threads=64, shared=256)


COLLATZ = """mov.b32 %d0, 0; add.s32 %r1, %a0, 1;
AGAIN: setp.le.u32 %p1, %r1, 1; @%p1 bra DONE; add.s32 %d0, %d0, 1; and.b32 %r2, %r1, 1; setp.eq.s32 %p2, %r2, 0;
@%p2 bra EVEN; mad.lo.s32 %r1, %r1, 3, 1; bra AGAIN;
EVEN: shr.u32 %r1, %r1, 1; bra AGAIN;
DONE: {}"""


def steps(n: int) -> int:
    count = 0
    while n > 1:
        n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
    return count


def test_lanes_diverge_and_meet_again():
    (result,), counts = counted(COLLATZ.format(""), [X[:32]], ["b32"])
    np.testing.assert_array_equal(result, [steps(int(x) + 1) for x in X[:32]])
    assert counts.partial > 100 and counts.lanes < 32 * counts.warp_instructions
    # past the loop all lanes are together again
    (total,) = run(COLLATZ.format("redux.sync.add.s32 %d0, %d0, -1;"), [X[:32]], ["b32"])
    assert (total == sum(steps(int(x) + 1) for x in X[:32])).all()


def test_a_reduction_placed_before_the_loop_waits_for_the_other_lanes():
    """The early lanes stand at the lower address; they must wait there, not go on."""
    body = """setp.lt.u32 %p1, %lane, 8; @%p1 bra MEET; bra LATE;
MEET: redux.sync.add.s32 %d0, %a0, -1; bra END;
LATE: add.s32 %r1, %a0, 1; bra MEET;
END:"""
    (result,) = run(body, [X[:32]], ["b32"])
    assert (result == 496).all()


def test_a_shuffle_whose_mask_names_absent_lanes():
    for mask, said in (("0xffff", "not in its own mask"), ("-1", "which have exited|which the guard leaves out")):
        body = f"setp.lt.u32 %p1, %lane, 16; @%p1 shfl.sync.bfly.b32 %d0, %a0, 1, 31, {mask};"
        if mask == "-1":
            with pytest.raises(PtxFault, match=said):
                run(body, [X[:32]], ["b32"])
    with pytest.raises(PtxFault, match="is not in its own mask 0xffff"):
        run("shfl.sync.bfly.b32 %d0, %a0, 1, 31, 0xffff;", [X[:32]], ["b32"])
    with pytest.raises(PtxFault, match="lanes 16-31, which have exited"):
        run("setp.ge.u32 %p1, %lane, 16; @%p1 exit; shfl.sync.bfly.b32 %d0, %a0, 1, 31, -1;", [X[:32]], ["b32"])


def test_a_barrier_that_not_all_reach():
    body = "mov.b32 %d0, 0; setp.lt.u32 %p1, %lane, 32; @%p1 bra WAIT; bra SPIN;\nSPIN: bar.sync 1, 64; bra END;\nWAIT: bar.sync 0, 64;\nEND:"
    with pytest.raises(PtxFault, match="nobody can go on; warp 0, all lanes waits at the barrier of line"):
        run(body, [X], ["b32"], threads=64)


def test_threads_that_have_exited_are_not_waited_for():
    (result,) = run("mov.b32 %d0, 7; setp.ge.u32 %p1, %lane, 32; @%p1 exit; bar.sync 0;", [X], ["b32"], threads=64)
    assert (result[:32] == 7).all()


# ---- asynchronous copies ----

COPY = f"{PLACE} cvta.to.global.u64 %w0, %at; cp.async.ca.shared.global [%r1], [%w0], 4; {{wait}} ld.shared.b32 %d0, [%r1];"


@SCHEDULES
def test_a_copy_arrives_when_it_is_waited_for(schedule):
    # %at still holds the address of this lane's input
    for wait in ("cp.async.commit_group; cp.async.wait_group 0;", "cp.async.wait_all;"):
        (result,) = run(COPY.format(wait=wait), [X[:32]], ["b32"], shared=128, schedule=schedule)
        np.testing.assert_array_equal(result, X[:32])


@pytest.mark.parametrize(
    "wait", ["", "cp.async.commit_group;", "cp.async.commit_group; cp.async.wait_group 1;", "cp.async.wait_group 0;"]
)
def test_a_stage_that_is_read_too_early(wait):
    with pytest.raises(PtxFault, match="belongs to a cp.async of warp 0 that nobody has waited for"):
        run(COPY.format(wait=wait), [X[:32]], ["b32"], shared=128)


def test_a_short_source_is_filled_with_zeros():
    body = f"{PLACE} and.b32 %r2, %lane, 1; shl.b32 %r2, %r2, 2; cp.async.ca.shared.global [%r1], [%at], 4, %r2; cp.async.wait_all; ld.shared.b32 %d0, [%r1];"
    (result,) = run(body, [X[:32] + 1], ["b32"], shared=128)
    np.testing.assert_array_equal(result, np.where(X[:32] % 2, X[:32] + 1, 0))


PIPELINE = f"""{PLACE} add.s32 %r3, %r0, 256; cvt.u64.u32 %w1, %r3; cvta.shared.u64 %w1, %w1;
setp.eq.s32 %p1, %lane, 0; @%p1 mbarrier.init.b64 [%w1], 32; bar.sync 0;
setp.ge.u32 %p2, %lane, 32; @%p2 bra CONSUME;
cp.async.ca.shared.global [%r1], [%at], 4; {{signal}} mov.b32 %d0, 0; bra END;
CONSUME: mov.b32 %r4, {{parity}};
POLL: mbarrier.try_wait.parity.acquire.cta.b64 %p3, [%w1], %r4, -1; @!%p3 bra POLL;
xor.b32 %r2, %lane, 32; mad.lo.s32 %r2, %r2, 4, %r0; ld.shared.b32 %d0, [%r2];
END:"""
ARRIVE = "cp.async.mbarrier.arrive.noinc.shared.b64 [%r3];"


@SCHEDULES
def test_a_consumer_waits_for_copies_at_an_mbarrier(schedule):
    (result,) = run(PIPELINE.format(signal=ARRIVE, parity=0), [X], ["b32"], threads=64, shared=512, schedule=schedule)
    np.testing.assert_array_equal(result[32:], X[:32])


def test_an_arrival_that_does_not_wait_for_the_copy():
    plain = "mbarrier.arrive.release.cta.b64 %w2, [%w1];"
    with pytest.raises(PtxFault, match="that nobody has waited for"):
        run(PIPELINE.format(signal=plain, parity=0), [X], ["b32"], threads=64, shared=512)


def test_the_wrong_parity_reads_too_early_and_a_missing_arrival_never_ends():
    with pytest.raises(PtxFault, match="nobody has waited for|never written"):
        run(PIPELINE.format(signal=ARRIVE, parity=1), [X], ["b32"], threads=64, shared=512, schedule="reverse")
    with pytest.raises(PtxFault, match="nobody can go on"):
        run(PIPELINE.format(signal="cp.async.wait_all;", parity=0), [X], ["b32"], threads=64, shared=512)


# ---- global memory ----


def copy_kernel(width: str = "b32", offset: int = 0) -> Executable:
    return Executable(
        module("mov.b32 %d0, %a0;", ["b32"], ["b32"]).replace(
            "ld.global.b32 %a0, [%at]", f"ld.global.b32 %a0, [%at+{offset}]"
        )
    )


def test_one_element_past_the_end_and_one_byte_off():
    x, y = torch.arange(32, dtype=torch.int32), torch.empty(32, dtype=torch.int32)
    copy_kernel().launch((1,), 32, [reads(x), writes(y)])
    assert torch.equal(x, y)
    with pytest.raises(
        PtxFault, match=r"lane.*4 bytes at 0x\w+ is in no tensor of the launch, 128 bytes into tensor \d of 128"
    ):
        copy_kernel(offset=4).launch((1,), 32, [reads(x), writes(y)])
    with pytest.raises(PtxFault, match="is no multiple of 4"):
        copy_kernel(offset=2).launch((1,), 32, [reads(x), writes(y)])


def test_what_lies_between_the_rows_of_a_tensor_is_not_read():
    rows = torch.arange(80, dtype=torch.int32).reshape(2, 40)[:, :31]  # a row ends one element early
    y = torch.empty(32, dtype=torch.int32)
    with pytest.raises(
        PtxFault, match="byte 124 of tensor 0 lies between its rows|byte 124 of tensor 1 lies between its rows"
    ):
        copy_kernel().launch((1,), 32, [reads(rows), writes(y)])


def test_an_output_is_not_read_before_it_is_written_and_an_input_not_written():
    x, y = torch.arange(32, dtype=torch.int32), torch.empty(32, dtype=torch.int32)
    with pytest.raises(PtxFault, match="is read and was never written"):
        copy_kernel().launch((1,), 32, [writes(x), writes(y)])
    with pytest.raises(PtxFault, match="is an input and is written"):
        copy_kernel().launch((1,), 32, [reads(x), reads(y)])


def test_blocks_that_write_one_place():
    x, y = torch.arange(32, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    copy_kernel().launch((2,), 32, [reads(x), updates(y)])  # the same values
    different = Executable(module("mov.u32 %r1, %ctaid.x; add.s32 %d0, %a0, %r1;", ["b32"], ["b32"]))
    with pytest.raises(PtxFault, match=r"block \(1, 0, 0\).*race: byte 0 of tensor \d was written by block 0"):
        different.launch((2,), 32, [reads(x), updates(y)])


# The last of the blocks to increase a counter sums what the others left: it may read that only with acq_rel.
LAST_BLOCK = """mov.u32 %r1, %ctaid.x; mul.lo.s32 %r2, %r1, 32; mad.wide.u32 %w0, %r2, 4, %at;
add.s32 %r3, %r1, 1; st.global.b32 [%w0+256], %r3; bar.sync 0; mov.b32 %d0, 0;
setp.ne.s32 %p1, %lane, 0; @%p1 bra END;
ld.param.u64 %w1, [p0]; atom.{order}.gpu.global.inc.u32 %r4, [%w1+4096], 2; setp.ne.s32 %p2, %r4, 2; @%p2 bra END;
ld.global.b32 %r5, [%at+256]; ld.global.b32 %r6, [%at+384]; ld.global.b32 %r7, [%at+512]; add.s32 %r5, %r5, %r6; add.s32 %r5, %r5, %r7; st.global.b32 [%w1+6144], %r5;
END:"""


@pytest.mark.parametrize("order", ["acq_rel", "relaxed"])
def test_a_counter_orders_blocks_only_when_it_releases(order):
    space = torch.zeros(2048, dtype=torch.int32)
    y = torch.zeros(32, dtype=torch.int32)
    executable = Executable(module(LAST_BLOCK.format(order=order), ["b32"], ["b32"]))
    if order == "acq_rel":
        executable.launch((3,), 32, [updates(space), updates(y)])
        assert space[6144 // 4] == 1 + 2 + 3
    else:
        with pytest.raises(PtxFault, match="race: byte 256 of tensor .* was written by block 0"):
            executable.launch((3,), 32, [updates(space), updates(y)])


def test_traffic_is_counted():
    x = np.arange(32, dtype=np.uint32)
    for stride, passes in ((4, 1), (8, 2), (128, 32)):
        body = f"mov.u32 %r0, space; mad.lo.s32 %r1, %lane, {stride}, %r0; st.shared.b32 [%r1], %a0; mov.b32 %d0, 0;"
        assert counted(body, [x], ["b32"], shared=4096)[1].shared_passes == passes
    assert counted("mov.b32 %d0, %a0;", [x], ["b32"])[1].global_sectors in (8, 9, 10)  # two tensors of 128 bytes
