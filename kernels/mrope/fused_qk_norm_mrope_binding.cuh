#include <sgl_kernel/tensor.h>
#include <sgl_kernel/utils.h>

#include <sgl_kernel/utils.cuh>

#include "fused_qk_norm_mrope.cuh"
#include <dlpack/dlpack.h>
#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <cstring>
#include <limits>

namespace sglang {

/// \brief Fused per-head QK RMSNorm + (m)RoPE, in place over `qkv`.
///
/// `positions` is [num_tokens] or [3, num_tokens] (temporal, height, width), int32 or int64; the three rows may have any
/// stride, so a slice of a CUDA graph buffer and an expanded row both work. `axes_*` name the axis of every rotary pair,
/// two bits a pair, and are only read for three rows. `cos_sin_cache` is float or DType.
template <typename DType, int64_t kHeadDim, int64_t kRotaryDim, bool kIsNeox>
struct FusedQKNormMropeKernel {
  static_assert(std::is_same_v<DType, bf16_t> || std::is_same_v<DType, fp16_t>);

  template <typename Table, int kAxes>
  static constexpr auto kernel =
      ::fused_qk_norm_mrope::fused_qk_norm_mrope_kernel<DType, Table, kHeadDim, kRotaryDim, kAxes, kIsNeox>;

  static void
  run(const tvm::ffi::TensorView qkv,
      const tvm::ffi::TensorView q_weight,
      const tvm::ffi::TensorView k_weight,
      const tvm::ffi::TensorView positions,
      const tvm::ffi::TensorView cos_sin_cache,
      int64_t axes_0,
      int64_t axes_1,
      int64_t axes_2,
      int64_t axes_3,
      int64_t num_heads_q,
      int64_t num_heads_k,
      double eps) {
    using namespace host;

    RuntimeCheck(
        num_heads_q > 0 && num_heads_k > 0, "num_heads_q and num_heads_k must be positive, got ", num_heads_q, ", ", num_heads_k);
    RuntimeCheck(is_type<DType>(qkv.dtype()), "qkv has dtype ", qkv.dtype(), ", the kernel was compiled for another");
    RuntimeCheck(
        qkv.ndim() == 2 && qkv.size(1) == (num_heads_q + 2 * num_heads_k) * kHeadDim,
        "qkv must be [num_tokens, (num_heads_q + 2 * num_heads_k) * head_dim]");
    RuntimeCheck(qkv.stride(1) == 1, "qkv must have unit column stride, got ", qkv.stride(1));
    RuntimeCheck(
        qkv.stride(0) % 8 == 0 && is_aligned(qkv), "qkv rows must start at 16-byte boundaries, row stride is ", qkv.stride(0));
    const int64_t num_tokens = qkv.size(0);
    RuntimeCheck(
        num_tokens * (num_heads_q + num_heads_k) <= std::numeric_limits<int32_t>::max(),
        "num_tokens * heads overflows int32: ",
        num_tokens);
    check_weight(q_weight, "q_weight");
    check_weight(k_weight, "k_weight");

    const bool three = positions.ndim() == 2;
    RuntimeCheck(
        (three && positions.size(0) == 3 && positions.size(1) == num_tokens) ||
            (positions.ndim() == 1 && positions.size(0) == num_tokens),
        "positions must be [num_tokens] or [3, num_tokens], num_tokens = ",
        num_tokens);
    const int64_t column_stride = positions.stride(three ? 1 : 0);
    RuntimeCheck(num_tokens <= 1 || column_stride == 1, "positions must have unit column stride, got ", column_stride);
    const bool is_int64 = is_type<int64_t>(positions.dtype());
    RuntimeCheck(
        is_int64 || is_type<int32_t>(positions.dtype()), "positions must be int32 or int64, got ", positions.dtype());

    const bool float_cache = is_type<float>(cos_sin_cache.dtype());
    RuntimeCheck(
        float_cache || is_type<DType>(cos_sin_cache.dtype()),
        "cos_sin_cache must be float32 or of qkv's dtype, got ",
        cos_sin_cache.dtype());
    RuntimeCheck(
        cos_sin_cache.ndim() == 2 && cos_sin_cache.size(1) == kRotaryDim && cos_sin_cache.is_contiguous() &&
            is_aligned(cos_sin_cache),
        "cos_sin_cache must be a contiguous, 16-byte aligned [max_position, rotary_dim]");
    RuntimeCheck(
        cos_sin_cache.size(0) <= std::numeric_limits<int32_t>::max(),
        "cos_sin_cache has more rows than an int32 position can name");
    // A token whose position is outside the cache comes out as NaN, but the kernel reads row 0 for it.
    RuntimeCheck(
        num_tokens == 0 || cos_sin_cache.size(0) > 0, "cos_sin_cache has no rows, num_tokens = ", num_tokens);

    const DLDevice device = qkv.device();
    RuntimeCheck(device.device_type == kDLCUDA, "qkv must be a CUDA tensor");
    check_device(q_weight, device, "q_weight");
    check_device(k_weight, device, "k_weight");
    check_device(positions, device, "positions");
    check_device(cos_sin_cache, device, "cos_sin_cache");
    if (num_tokens == 0) return;

    auto params = ::fused_qk_norm_mrope::Params{};
    params.qkv = qkv.data_ptr();
    params.q_weight = q_weight.data_ptr();
    params.k_weight = k_weight.data_ptr();
    params.positions = positions.data_ptr();
    params.table = cos_sin_cache.data_ptr();
    const int64_t axes[4] = {axes_0, axes_1, axes_2, axes_3};
    static_assert(sizeof(axes) == sizeof(params.axes));
    std::memcpy(params.axes, axes, sizeof(axes));
    params.qkv_stride = qkv.stride(0);
    params.position_stride = three ? positions.stride(0) : 0;
    params.position_limit = cos_sin_cache.size(0);
    params.num_tokens = static_cast<uint32_t>(num_tokens);
    params.num_q_heads = static_cast<uint32_t>(num_heads_q);
    params.num_kv_heads = static_cast<uint32_t>(num_heads_k);
    params.positions_are_int64 = is_int64;
    params.eps = static_cast<float>(eps);

    const uint32_t grid = ::fused_qk_norm_mrope::grid_size(params, kHeadDim);
    LaunchKernel launch(grid, ::fused_qk_norm_mrope::kThreads, device);
    if (float_cache) {
      three ? launch(kernel<float, 3>, params) : launch(kernel<float, 1>, params);
    } else {
      three ? launch(kernel<DType, 3>, params) : launch(kernel<DType, 1>, params);
    }
  }

 private:
  static bool is_aligned(const tvm::ffi::TensorView tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 16 == 0;
  }

  static void check_weight(const tvm::ffi::TensorView weight, const char* name) {
    host::RuntimeCheck(
        host::is_type<DType>(weight.dtype()), name, " has dtype ", weight.dtype(), ", it must be that of qkv");
    host::RuntimeCheck(
        weight.ndim() == 1 && weight.size(0) == kHeadDim && weight.is_contiguous() && is_aligned(weight),
        name,
        " must be a contiguous, 16-byte aligned [head_dim]");
  }

  static void check_device(const tvm::ffi::TensorView tensor, DLDevice device, const char* name) {
    host::RuntimeCheck(
        tensor.device().device_type == device.device_type && tensor.device().device_id == device.device_id,
        name,
        " must be on the device of qkv");
  }
};

}  // namespace sglang
