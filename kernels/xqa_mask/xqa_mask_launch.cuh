// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sgl_kernel/tensor.h>

#include <sgl_kernel/utils.cuh>

#include <tvm/ffi/optional.h>

#include "xqa_mask.cuh"

#include <cstdint>

namespace sglang {

constexpr int64_t kMaxXqaDraftLen = 128;

// Fills mask with the causal (full = false) or bidirectional (full = true) draft-block mask of a batch.
//   mask        [rows, 2 * ceil(q_len / 32)] uint16, contiguous
//   q_len       1..128 draft tokens a request, or the largest number of them
//   cu_seqlens  [batch + 1] int32 for ragged draft lengths, or none for batch requests of q_len rows each
inline void xqa_mask_fill(
    tvm::ffi::TensorView mask, tvm::ffi::Optional<tvm::ffi::TensorView> cu_seqlens, int64_t q_len, bool full) {
  using namespace host;

  RuntimeCheck(q_len >= 1 && q_len <= kMaxXqaDraftLen, "q_len: got ", q_len, ", needs 1..", kMaxXqaDraftLen);
  auto rows = SymbolicSize{"rows"};
  auto device = SymbolicDevice{};
  const int64_t words = xqa_mask::words_per_row(static_cast<int>(q_len));
  TensorMatcher({rows, 2 * words}).with_dtype<uint16_t>().with_device<kDLCUDA>(device).verify(mask);
  RuntimeCheck(
      reinterpret_cast<uintptr_t>(mask.data_ptr()) % sizeof(uint32_t) == 0, "mask: needs alignment to 4 bytes");

  const int32_t* offsets = nullptr;
  int64_t batch = rows.unwrap() / q_len;
  if (cu_seqlens.has_value()) {
    auto entries = SymbolicSize{"batch + 1"};
    TensorMatcher({entries}).with_dtype<int32_t>().with_device<kDLCUDA>(device).verify(cu_seqlens.value());
    RuntimeCheck(entries.unwrap() >= 1, "cu_seqlens: got no entries, needs batch + 1");
    offsets = static_cast<const int32_t*>(cu_seqlens.value().data_ptr());
    batch = entries.unwrap() - 1;
  } else {
    RuntimeCheck(
        rows.unwrap() % q_len == 0, "mask: got ", rows.unwrap(), " rows, needs a multiple of q_len = ", q_len);
  }
  const int64_t slots = rows.unwrap() * words;
  if (slots == 0) return;
  const int64_t blocks = (slots + xqa_mask::kBlockThreads - 1) / xqa_mask::kBlockThreads;
  RuntimeCheck(blocks <= 0x7fffffff, "mask: got ", rows.unwrap(), " rows, too many for one launch");

  LaunchKernel(dim3(static_cast<unsigned>(blocks)), dim3(xqa_mask::kBlockThreads), device.unwrap())(
      xqa_mask_chain,
      static_cast<uint32_t*>(mask.data_ptr()),
      offsets,
      rows.unwrap(),
      static_cast<int>(batch),
      static_cast<int>(q_len),
      static_cast<int>(full));
}

}  // namespace sglang
