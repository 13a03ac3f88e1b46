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
template <typename Scalar>
using table_phase = PhaseStep;
constexpr bool pairing_neox = true, pairing_gptj = false;
constexpr bool weights_gemma = true, weights_plain = false;
constexpr bool store_fp8 = true, store_none = false;

}  // namespace fused_qk_norm_mrope

#define MROPE_NAME(scalar, table, d, r, axes, pairing, weights, store) \
  mrope_##scalar##_##table##_d##d##_r##r##_a##axes##_##pairing##_##weights##_##store
#define MROPE_ARGUMENTS(scalar, table, d, r, axes, pairing, weights, store)                                        \
  ::fused_qk_norm_mrope::scalar_##scalar, ::fused_qk_norm_mrope::table_##table<::fused_qk_norm_mrope::scalar_##scalar>, \
      d, r, axes, ::fused_qk_norm_mrope::pairing_##pairing, ::fused_qk_norm_mrope::weights_##weights,              \
      ::fused_qk_norm_mrope::store_##store
