// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sgl_kernel/tensor.h>

#include <sgl_kernel/utils.cuh>

#include "xqa_mask.cuh"

#include <cstdint>

namespace sglang {

constexpr int64_t kMaxXqaDraftLen = 128;

// Fills mask with the causal draft-block masks of a batch whose requests draft different numbers of tokens.
//   mask        [rows, 2 * ceil(q_len / 32)] uint16, contiguous
//   cu_seqlens  [batch + 1] int32 offsets of the requests' rows
//   q_len       1..128, the largest number of draft tokens of a request
inline void xqa_mask_fill(tvm::ffi::TensorView mask, tvm::ffi::TensorView cu_seqlens, int64_t q_len) {
  using namespace host;

  RuntimeCheck(q_len >= 1 && q_len <= kMaxXqaDraftLen, "q_len: got ", q_len, ", needs 1..", kMaxXqaDraftLen);
  auto rows = SymbolicSize{"rows"};
  auto entries = SymbolicSize{"batch + 1"};
  auto device = SymbolicDevice{};
  const int64_t words = xqa_mask::words_per_row(static_cast<int>(q_len));
  TensorMatcher({rows, 2 * words}).with_dtype<uint16_t>().with_device<kDLCUDA>(device).verify(mask);
  TensorMatcher({entries}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(cu_seqlens);
  RuntimeCheck(
      reinterpret_cast<uintptr_t>(mask.data_ptr()) % sizeof(uint32_t) == 0, "mask: needs alignment to 4 bytes");
  RuntimeCheck(entries.unwrap() >= 1, "cu_seqlens: got no entries, needs batch + 1");

  const int64_t slots = rows.unwrap() * words;
  if (slots == 0) return;
  const int64_t blocks = (slots + xqa_mask::kBlockThreads - 1) / xqa_mask::kBlockThreads;
  RuntimeCheck(blocks <= 0x7fffffff, "mask: got ", rows.unwrap(), " rows, too many for one launch");

  LaunchKernel(dim3(static_cast<unsigned>(blocks)), dim3(xqa_mask::kBlockThreads), device.unwrap())(
      xqa_mask_ragged,
      static_cast<uint32_t*>(mask.data_ptr()),
      static_cast<const int32_t*>(cu_seqlens.data_ptr()),
      rows.unwrap(),
      static_cast<int>(entries.unwrap() - 1),
      static_cast<int>(q_len));
}

}  // namespace sglang
