// SPDX-License-Identifier: Apache-2.0

// Packs the causal draft-block masks of a batch whose requests draft different numbers of tokens, for XQA.
//
// A mask row is one query token: ceil(q_len / 32) little-endian 32-bit words, that is twice as many uint16. Bit j of
// row i is 1 when draft token i may attend draft token j of the same request: itself and the earlier ones. The KV
// prefix is always visible and has no bits. Rows are flat: a request has the rows that the cumulative lengths say, and
// rows that belong to no request are all zero.
//
// Every output word is computed by its own thread from its own row, so nothing depends on launch order, no memory is
// needed besides the output, and every call can be captured in a CUDA graph.
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

// The place of a flat row within its request, or -1 for a row beyond the last request.
// cu_seqlens holds batch + 1 non-decreasing offsets. Whatever it holds, nothing outside of it is read.
__device__ __forceinline__ int64_t row_in_request(int64_t row, const int32_t* __restrict__ cu_seqlens, int batch) {
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
  if (low == batch || cu_seqlens[low] > row || cu_seqlens[low] < 0) return -1;
  return row - cu_seqlens[low];
}

}  // namespace xqa_mask

// One thread a word. mask [rows, words], cu_seqlens [batch + 1]; a row past q_len of its request is zero.
extern "C" __global__ void __launch_bounds__(xqa_mask::kBlockThreads) xqa_mask_ragged(
    uint32_t* __restrict__ mask, const int32_t* __restrict__ cu_seqlens, int64_t rows, int batch, int q_len) {
  using namespace xqa_mask;
  const int words = words_per_row(q_len);
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (slot >= rows * words) return;
  const int64_t index = row_in_request(slot / words, cu_seqlens, batch);
  const int first_bit = static_cast<int>(slot % words) * kWordBits;
  const int visible = index < q_len ? static_cast<int>(index) + 1 : 0;
  mask[slot] = low_bits(visible - first_bit);
}
