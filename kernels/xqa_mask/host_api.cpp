// The kernels on the CPU, through the SIMT shim: plain C functions for tests, and what host.cpp binds for Python.
#include "xqa_mask.cuh"

namespace {

simt::Launch cover(long long slots, int slots_per_block) {
  return simt::with_schedule({static_cast<unsigned>((slots + slots_per_block - 1) / slots_per_block), 1, 1},
                             {xqa_mask::kBlockThreads, 1, 1});
}

long long words(long long rows, long long q_len) { return rows * xqa_mask::words_per_row(static_cast<int>(q_len)); }

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default"))) int

EXPORT xqa_mask_chain_host(uint32_t* mask, const int32_t* cu_seqlens, long long rows, long long batch, long long q_len,
                           long long full) {
  return simt::guarded([&] {
    if (rows == 0) return;
    simt::launch(cover(words(rows, q_len), xqa_mask::kBlockThreads), xqa_mask_chain, mask, cu_seqlens, rows,
                 static_cast<int>(batch), static_cast<int>(q_len), static_cast<int>(full));
  });
}

EXPORT xqa_mask_tree_host(uint32_t* mask, const int32_t* cu_seqlens, const int32_t* parents, long long rows,
                          long long batch, long long q_len) {
  return simt::guarded([&] {
    if (rows == 0) return;
    simt::launch(cover(words(rows, q_len), xqa_mask::kBlockThreads), xqa_mask_tree, mask, cu_seqlens, parents, rows,
                 static_cast<int>(batch), static_cast<int>(q_len));
  });
}

EXPORT xqa_mask_matrix_host(uint32_t* mask, const int32_t* cu_seqlens, const uint8_t* visible, long long rows,
                            long long batch, long long q_len) {
  return simt::guarded([&] {
    if (rows == 0) return;
    simt::launch(cover(words(rows, q_len), xqa_mask::kBlockThreads / 32), xqa_mask_matrix, mask, cu_seqlens, visible,
                 rows, static_cast<int>(batch), static_cast<int>(q_len));
  });
}
