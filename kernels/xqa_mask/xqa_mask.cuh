// SPDX-License-Identifier: Apache-2.0

// Packs the draft-block masks that XQA speculative decoding reads.
//
// A mask row is one query token: ceil(q_len / 32) little-endian 32-bit words, that is twice as many uint16. Bit j of
// row i is 1 when draft token i may attend draft token j of the same request; bits from the request's length on are 0.
// The KV prefix is always visible and has no bits. Rows are flat: a fixed-length batch has q_len rows a request, a
// ragged one has the rows that its cumulative lengths say. Rows that belong to no request are all zero.
//
// Every output word is computed by its own thread (or warp) from its own row, so nothing depends on launch order, no
// memory is needed besides the output, and every call can be captured in a CUDA graph.
#pragma once

#include <cstdint>

namespace xqa_mask {

constexpr int kBlockThreads = 128;
constexpr int kWordBits = 32;

__host__ __device__ constexpr int words_per_row(int q_len) {
  return (q_len + kWordBits - 1) / kWordBits;
}

// A word whose lowest `count` bits are set; any count, also negative or beyond 32.
__host__ __device__ constexpr uint32_t low_bits(int count) {
  return count <= 0 ? 0u : count >= kWordBits ? 0xffffffffu : (1u << count) - 1u;
}

static_assert(low_bits(-3) == 0u && low_bits(0) == 0u && low_bits(1) == 1u && low_bits(8) == 0xffu);
static_assert(low_bits(31) == 0x7fffffffu && low_bits(32) == 0xffffffffu && low_bits(99) == 0xffffffffu);
static_assert(words_per_row(1) == 1 && words_per_row(32) == 1 && words_per_row(33) == 2 && words_per_row(128) == 4);

// Which request a flat row belongs to, and where in it.
struct Row {
  int64_t first;  // flat index of the request's first row
  int index;      // row within the request
  int length;     // rows of the request, at most q_len
};

// The row of a batch, or index = -1 for a row beyond the last request.
// cu_seqlens is null for fixed lengths, else batch + 1 non-decreasing offsets.
__device__ __forceinline__ Row
find_row(int64_t row, const int32_t* __restrict__ cu_seqlens, int batch, int q_len) {
  if (cu_seqlens == nullptr) {
    const int64_t request = row / q_len;
    if (request >= batch) return {0, -1, 0};
    return {request * q_len, static_cast<int>(row - request * q_len), q_len};
  }
  // the last request that starts at or before this row; empty requests share their start with the next one
  int low = 0;
  int high = batch;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (cu_seqlens[middle + 1] <= row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == batch || cu_seqlens[low] > row || cu_seqlens[low] < 0) return {0, -1, 0};
  const int64_t first = cu_seqlens[low];
  const int64_t length = cu_seqlens[low + 1] - first;
  return {first, static_cast<int>(row - first), static_cast<int>(length < q_len ? length : q_len)};
}

}  // namespace xqa_mask

// Chain drafts. full = 0: token i sees drafts 0..i. full = 1: every token sees the whole draft block.
// One thread a word. mask [rows, words]
extern "C" __global__ void __launch_bounds__(xqa_mask::kBlockThreads) xqa_mask_chain(
    uint32_t* __restrict__ mask,
    const int32_t* __restrict__ cu_seqlens,
    int64_t rows,
    int batch,
    int q_len,
    int full) {
  using namespace xqa_mask;
  const int words = words_per_row(q_len);
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (slot >= rows * words) return;
  const Row row = find_row(slot / words, cu_seqlens, batch, q_len);
  const int first_bit = static_cast<int>(slot % words) * kWordBits;
  const int visible = row.index < 0 || row.index >= q_len ? 0 : full ? row.length : row.index + 1;
  mask[slot] = low_bits(visible - first_bit);
}

// Draft trees by parent. parents [rows]: index within the request of each token's parent, negative for a root.
// A token sees itself and its ancestors. A parent that is not earlier than its child ends the walk, so that whatever
// the indices are, the walk terminates and stays inside the request. One thread a word.
extern "C" __global__ void __launch_bounds__(xqa_mask::kBlockThreads) xqa_mask_tree(
    uint32_t* __restrict__ mask,
    const int32_t* __restrict__ cu_seqlens,
    const int32_t* __restrict__ parents,
    int64_t rows,
    int batch,
    int q_len) {
  using namespace xqa_mask;
  const int words = words_per_row(q_len);
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (slot >= rows * words) return;
  const Row row = find_row(slot / words, cu_seqlens, batch, q_len);
  const int word = static_cast<int>(slot % words);
  uint32_t bits = 0;
  int token = row.index < q_len ? row.index : -1;
  while (token >= 0) {
    if (token / kWordBits == word) bits |= 1u << (token % kWordBits);
    const int parent = parents[row.first + token];
    token = parent < token ? parent : -1;
  }
  mask[slot] = bits;
}

// Draft trees by ancestor matrix. visible [rows, q_len] bytes: nonzero when the row's token may see draft j.
// One warp a word: each lane reads one byte, a vote packs the word.
extern "C" __global__ void __launch_bounds__(xqa_mask::kBlockThreads) xqa_mask_matrix(
    uint32_t* __restrict__ mask,
    const int32_t* __restrict__ cu_seqlens,
    const uint8_t* __restrict__ visible,
    int64_t rows,
    int batch,
    int q_len) {
  using namespace xqa_mask;
  constexpr unsigned kAllLanes = 0xffffffffu;
  const int words = words_per_row(q_len);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * (kBlockThreads / 32) + threadIdx.x / 32;
  if (slot >= rows * words) return;  // the same for all lanes of a warp
  const int64_t flat = slot / words;
  const Row row = find_row(flat, cu_seqlens, batch, q_len);
  const int draft = static_cast<int>(slot % words) * kWordBits + lane;
  const bool seen = row.index >= 0 && row.index < q_len && draft < row.length && visible[flat * q_len + draft] != 0;
  const uint32_t bits = __ballot_sync(kAllLanes, seen);
  if (lane == 0) mask[slot] = bits;
}
