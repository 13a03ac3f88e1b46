// The variants of variants.def for the device, each under its name.
#include "variant_names.h"

#define VARIANT(...)                                                                                              \
  template __global__ void ::fused_qk_norm_mrope::fused_qk_norm_mrope_kernel<MROPE_ARGUMENTS(__VA_ARGS__)>(       \
      const __grid_constant__ ::fused_qk_norm_mrope::Params);
#include "variants.def"
