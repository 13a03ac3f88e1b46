// Spells out the tokens of variants.def as types and flags of the kernel.
#pragma once

#include "fused_qk_norm_mrope.cuh"

namespace fused_qk_norm_mrope {

using scalar_bf16 = __nv_bfloat16;
using scalar_fp16 = __half;
template <typename Scalar>
using table_f32 = float;
template <typename Scalar>
using table_same = Scalar;
constexpr bool pairing_neox = true, pairing_gptj = false;

}  // namespace fused_qk_norm_mrope

#define MROPE_NAME(scalar, table, d, r, axes, pairing) mrope_##scalar##_##table##_d##d##_r##r##_a##axes##_##pairing
#define MROPE_ARGUMENTS(scalar, table, d, r, axes, pairing)                                                    \
  ::fused_qk_norm_mrope::scalar_##scalar, ::fused_qk_norm_mrope::table_##table<::fused_qk_norm_mrope::scalar_##scalar>, \
      d, r, axes, ::fused_qk_norm_mrope::pairing_##pairing
