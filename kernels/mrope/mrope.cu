// The variants of variants.def under names that a loader can ask for, with the parameters as plain arguments.
#include "variant_names.h"

#define VARIANT(...)                                                                                               \
  extern "C" __global__ void __launch_bounds__(::fused_qk_norm_mrope::kThreads, RESIDENT(__VA_ARGS__))              \
      MROPE_NAME(__VA_ARGS__)(const __grid_constant__ ::fused_qk_norm_mrope::Params p) {                            \
    ::fused_qk_norm_mrope::normalize_and_rotate<MROPE_ARGUMENTS(__VA_ARGS__)>(p);                                   \
  }
#define RESIDENT(scalar, table, d, r, axes, pairing, weights, store)                                               \
  ::fused_qk_norm_mrope::kResidentBlocks<::fused_qk_norm_mrope::table_##table<::fused_qk_norm_mrope::scalar_##scalar>, \
                                         axes, ::fused_qk_norm_mrope::store_##store>
#include "variants.def"
