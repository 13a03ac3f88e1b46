"""The simulated device does what a device does with right tests, and refuses what a device refuses in wrong ones."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from sm120.kernels._kit.poison import guarded
from sm120.kernels._kit.simulated_device import DEVICE, DeviceTensor

pytestmark = [pytest.mark.interpreter, pytest.mark.usefixtures("simulated_device")]


@triton.jit
def _double(source, result, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(result + at, 2 * tl.load(source + at, mask=at < count), mask=at < count)


def double(source: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    _double[(triton.cdiv(source.numel(), 4),)](source=source, result=result, count=source.numel(), BLOCK=4)
    return result


MADE = {
    "cuda": lambda: torch.ones(5).cuda(),
    "to": lambda: torch.ones(5).to("cuda"),
    "to_device_and_dtype": lambda: torch.ones(5).to(DEVICE, torch.float16),
    "factory": lambda: torch.zeros(5, device="cuda"),
    "like": lambda: torch.zeros_like(torch.ones(5).cuda()),
    "arithmetic": lambda: torch.ones(5).cuda() * 2 + 1,
    "scalar_of_the_cpu": lambda: torch.ones(5).cuda() * torch.tensor(2.0),
    "view": lambda: torch.ones(5, 2).cuda()[:, 1],
    "base_of_a_view": lambda: torch.ones(5, 2).cuda()[1:]._base,
    "cpu_index": lambda: torch.ones(5).cuda()[torch.tensor([1, 2])],
    "generator": lambda: torch.randn(5, device="cuda", generator=torch.Generator("cuda").manual_seed(0)),
    "to_another_tensor": lambda: torch.ones(5).to(torch.ones(1).cuda()),
    "stack": lambda: torch.stack([torch.ones(5).cuda()] * 2),
    "split": lambda: torch.ones(5).cuda().split(2)[0],
    "triton": lambda: double(torch.ones(5).cuda(), torch.empty(5, device="cuda")),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_it_is_on_the_device(make) -> None:
    made = make()
    assert isinstance(made, DeviceTensor) and made.device == DEVICE and made.is_cuda and not made.is_cpu


LEFT = {
    "cpu": lambda: torch.ones(5).cuda().cpu(),
    "to": lambda: torch.ones(5).cuda().to("cpu"),
    "factory": lambda: torch.ones(5, device="cpu"),
    "list": lambda: torch.tensor(torch.ones(5).cuda().tolist()),
    "like_elsewhere": lambda: torch.ones_like(torch.ones(5).cuda(), device="cpu"),
}


@pytest.mark.parametrize("make", LEFT.values(), ids=LEFT)
def test_it_is_on_the_cpu(make) -> None:
    made = make()
    assert type(made) is torch.Tensor and made.device.type == "cpu" and made.tolist() == [1] * 5


REFUSED = {
    "comparison": (lambda d, c: d != c, "same device.*cuda:0 and cpu"),
    "comparison_the_other_way": (lambda d, c: c == d, "same device"),
    "equal": (lambda d, c: torch.equal(d, c), "same device"),
    "where": (lambda d, c: torch.where(d > 0, c, d), "same device"),
    "stack": (lambda d, c: torch.stack([d, c]), "same device"),
    "in_place": (lambda d, c: d.add_(c), "same device"),
    "matmul": (lambda d, c: d @ c, "same device"),
    "index_of_a_cpu_tensor": (lambda d, c: c[d.long()], "same device"),
    "values_of_an_index": (lambda d, c: d.__setitem__(torch.tensor([0, 1, 2, 3, 4]), c), "same device"),
    "numpy": (lambda d, c: d.numpy(), "can't convert cuda:0"),
    "generator": (lambda d, c: torch.randn(5, device="cuda", generator=torch.Generator()), "generator"),
    "second_device": (lambda d, c: torch.zeros(5, device="cuda:1"), "invalid device ordinal"),
    "triton_source": (lambda d, c: double(c, d), "is a CPU tensor"),
    "triton_result": (lambda d, c: double(d, c), "is a CPU tensor"),
    "replay_of_nothing": (lambda d, c: torch.cuda.CUDAGraph().replay(), "not captured"),
}


@pytest.mark.parametrize(("act", "says"), REFUSED.values(), ids=REFUSED)
def test_what_a_device_refuses_is_refused(act, says: str) -> None:
    with pytest.raises((RuntimeError, TypeError, ValueError), match=says):
        act(torch.ones(5).cuda(), torch.ones(5))


def test_copies_cross_and_memory_is_not_shared() -> None:
    here = torch.arange(4.0)
    there = here.cuda()
    here.fill_(9)
    assert there.tolist() == [0, 1, 2, 3]
    there[1:3] = here[1:3]
    back = there.cpu()
    there.zero_()
    assert back.tolist() == [0, 9, 9, 3] and there.copy_(here) is there and there.cuda() is there


def test_a_write_beside_the_output_is_seen() -> None:
    with pytest.raises(AssertionError, match="bytes written past"), guarded((5,), torch.float32, "cuda") as out:
        torch.as_strided(out, (6,), (1,), out.storage_offset())[5] = 1.0


@pytest.mark.parametrize("form", ["torch", "triton"])
def test_a_graph_replays_on_the_same_memory(form: str) -> None:
    source, result = torch.ones(5, device="cuda"), torch.empty(5, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fresh = source * 2 if form == "torch" else double(source, result)
    for value in (3.0, 4.0):
        source.fill_(value)
        graph.replay()
        assert fresh.tolist() == [2 * value] * 5


WAITS = {
    "item": lambda x: x.sum().item(),
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "branch": lambda x: bool(x.any()),
    "synchronize": lambda x: torch.cuda.synchronize(),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_nothing_waits_for_the_device_during_a_capture(wait) -> None:
    x = torch.ones(5, device="cuda")
    wait(x)
    refused = pytest.raises(RuntimeError, match="not permitted when stream is capturing")
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        wait(x)
    wait(x)  # the capture is over


def test_events_measure_time() -> None:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with pytest.raises(ValueError, match="must be recorded"):
        begin.elapsed_time(end)
    begin.record()
    end.record()
    assert begin.elapsed_time(end) >= 0


def test_it_ends(request: pytest.FixtureRequest) -> None:
    from sm120.kernels._kit import simulated_device

    with simulated_device.simulated_device():
        pass
    assert torch.zeros(2, device="cuda").is_cuda, "an inner block ends the outer one"
