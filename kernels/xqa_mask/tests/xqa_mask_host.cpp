// The kernel on the CPU, through the SIMT shim, as a plain C function.
#include "xqa_mask.cuh"

extern "C" __attribute__((visibility("default"))) int xqa_mask_ragged_host(
    uint32_t* mask, const int32_t* cu_seqlens, long long rows, long long batch, long long q_len) {
  return simt::guarded([&] {
    const long long slots = rows * xqa_mask::words_per_row(static_cast<int>(q_len));
    if (slots == 0) return;
    const auto blocks = static_cast<unsigned>((slots + xqa_mask::kBlockThreads - 1) / xqa_mask::kBlockThreads);
    simt::launch(simt::with_schedule({blocks, 1, 1}, {xqa_mask::kBlockThreads, 1, 1}), xqa_mask_ragged, mask, cu_seqlens,
                 rows, static_cast<int>(batch), static_cast<int>(q_len));
  });
}
