"""QSA's block top-k must stay exact when more blocks tie than its staging buffer holds.

The shipped CUDA source runs on the CPU: g++ compiles it against a few lines that model one thread block (a fiber per
thread, switched at barriers). This is a model of one block's semantics, not of the device.
"""

import ctypes
import subprocess
from pathlib import Path

import pytest
import sglang
import torch

TOPK = 512
SHIM = r"""
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ucontext.h>
#include <vector>

#define SGL_DEVICE inline
#define __shared__ static
#define __half _Float16
struct dim_x { unsigned x; };
static dim_x threadIdx;

static inline __half __float2half_rn(float x) { return static_cast<_Float16>(x); }
static inline uint16_t __half_as_ushort(__half h) { uint16_t b; std::memcpy(&b, &h, 2); return b; }
static inline uint32_t __float_as_uint(float x) { uint32_t b; std::memcpy(&b, &x, 4); return b; }
static inline int atomicAdd(int* p, int v) { int old = *p; *p += v; return old; }

constexpr int kThreads = 1024;
static ucontext_t scheduler, fibers[kThreads];
static bool done[kThreads];
static int current;
static std::vector<char> stacks(static_cast<size_t>(kThreads) << 15);
static inline void __syncthreads() {
  int self = current;
  swapcontext(&fibers[self], &scheduler);
  threadIdx.x = self;
}
"""
MAIN = r"""
}  // namespace fast_topk_detail
}  // namespace sglang

static const float* g_score; static int* g_out; static int g_start, g_length;
static void body() {
  using namespace sglang::fast_topk_detail;
  if (g_length <= 512) naive_topk<512>(g_out, g_length);
  else radix_select_topk<512>(g_score, g_out, g_start, g_length);
  done[current] = true;
}
extern "C" void block_topk(const float* score, int* out, int start, int length, int reverse) {
  g_score = score; g_out = out; g_start = start; g_length = length;
  std::fill(done, done + kThreads, false);
  for (int t = 0; t < kThreads; ++t) {
    getcontext(&fibers[t]);
    fibers[t].uc_stack.ss_sp = &stacks[static_cast<size_t>(t) << 15];
    fibers[t].uc_stack.ss_size = 1 << 15;
    fibers[t].uc_link = &scheduler;
    makecontext(&fibers[t], body, 0);
  }
  for (bool running = true; running;) {
    running = false;
    for (int i = 0; i < kThreads; ++i) {
      int t = reverse ? kThreads - 1 - i : i;
      if (done[t]) continue;
      running = true;
      current = t; threadIdx.x = t;
      swapcontext(&scheduler, &fibers[t]);
    }
  }
}
"""


@pytest.fixture(scope="module")
def block_topk(tmp_path_factory):
    """The shipped kernel body as a host function: (scores, row start, row length, thread order) -> indices."""
    source = (Path(sglang.__file__).parent / "kernels/jit/csrc/elementwise/fast_topk.cuh").read_text()
    lines = [line for line in source.splitlines() if not line.startswith("#include")]
    source = "\n".join(lines)
    head, entry, _ = source.partition("template <int kTopK, bool kUsePDL>\n__global__")
    assert entry, "the kernel's entry point moved"
    # Dynamic shared memory: the launch supplies it on the device, a global does here.
    open_namespace = "namespace fast_topk_detail {"
    head = head.replace(open_namespace, open_namespace + "\nextern int s_input_idx[][4096];", 1)
    head = head.replace("extern __shared__ int s_input_idx", "extern int s_input_idx")
    folder = tmp_path_factory.mktemp("fast_topk")
    (folder / "block.cpp").write_text(
        SHIM + head + MAIN + "\nnamespace sglang::fast_topk_detail { int s_input_idx[2][4096]; }\n"
    )
    built = subprocess.run(
        ["g++", "-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-o", folder / "block.so", folder / "block.cpp"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert built.returncode == 0, built.stderr
    library = ctypes.CDLL(folder / "block.so")

    def run(scores: torch.Tensor, start: int = 0, length: int | None = None, reverse: bool = False) -> list[int]:
        length = scores.numel() - start if length is None else length
        out = torch.full((TOPK,), -7, dtype=torch.int32)
        library.block_topk(
            ctypes.c_void_p(scores.data_ptr()), ctypes.c_void_p(out.data_ptr()), start, length, int(reverse)
        )
        return out.tolist()

    return run


def assert_exact(scores, picked, start, length):
    """Ties may be broken either way: the picked scores, as a multiset, must be the largest ones."""
    row = scores[start : start + length]
    assert len(set(picked)) == TOPK, f"{TOPK - len(set(picked))} blocks selected twice"
    assert min(picked) >= 0 and max(picked) < length
    got = row[torch.tensor(picked)].sort().values
    expected = torch.topk(row, TOPK).values.sort().values
    assert torch.equal(got, expected)


def distinct(length):
    return torch.randn(length, generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("length", [513, 2051, 4096, 8192])
def test_distinct_scores(block_topk, length):
    scores = distinct(length)
    assert_exact(scores, block_topk(scores), 0, length)


def test_short_rows_are_the_identity(block_topk):
    assert block_topk(distinct(300))[:302] == [*range(300), -1, -1]


@pytest.mark.parametrize("length", [4096, 4097, 5000, 16384, 131072])
def test_all_equal_scores(block_topk, length):
    scores = torch.full((length,), 0.75)
    assert_exact(scores, block_topk(scores), 0, length)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("winners_at", ["front", "back", "spread"])
def test_winners_beside_thousands_of_ties(block_topk, winners_at, reverse):
    """Half-precision cannot tell winners from the tied crowd, so all share the first pass's bin."""
    length = 20_000
    scores = torch.full((length,), 1.0)
    places = {
        "front": torch.arange(100),
        "back": torch.arange(length - 100, length),
        "spread": torch.arange(100) * 199 + 7,
    }[winners_at]
    scores[places] = 1.0 + torch.arange(1, 101) * 2.0**-22
    picked = block_topk(scores, reverse=reverse)
    assert_exact(scores, picked, 0, length)
    assert set(places.tolist()) <= set(picked)


def test_many_levels_inside_one_bin_and_a_row_offset(block_topk):
    length, start = 9000, 37
    scores = torch.full((start + length + 50,), float("nan"))
    generator = torch.Generator().manual_seed(3)
    scores[start : start + length] = 2.0 + torch.randint(0, 700, (length,), generator=generator) * 2.0**-21
    assert_exact(scores, block_topk(scores, start, length), start, length)


def test_negative_ties(block_topk):
    scores = torch.full((12_000,), -3.0)
    scores[11_000:11_050] = -2.9999998
    picked = block_topk(scores)
    assert_exact(scores, picked, 0, 12_000)
