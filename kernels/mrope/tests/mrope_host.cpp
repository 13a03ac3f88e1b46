// The variants for the CPU, to be run by name: all of variants.def, or the one whose tokens MROPE_ONLY holds.
#include <cstring>

#include "variant_names.h"

namespace {

using fused_qk_norm_mrope::Params;

template <typename Scalar, typename Table, int D, int R, int A, bool N>
void launch(const Params& p) {
  using namespace fused_qk_norm_mrope;
  if (p.num_tokens == 0) return;
  simt::launch(
      simt::with_schedule({grid_size(p, D), 1, 1}, {kThreads, 1, 1}),
      fused_qk_norm_mrope_kernel<Scalar, Table, D, R, A, N>,
      p);
}

struct Variant {
  const char* name;
  void (*launch)(const Params&);
};

#define TEXT(name) TEXT_OF(name)
#define TEXT_OF(name) #name
#define VARIANT(...) {TEXT(MROPE_NAME(__VA_ARGS__)), launch<MROPE_ARGUMENTS(__VA_ARGS__)>},
const Variant kVariants[] = {
#ifdef MROPE_ONLY
#define ONE_VARIANT(...) VARIANT(__VA_ARGS__)
    ONE_VARIANT(MROPE_ONLY)
#else
#include "variants.def"
#endif
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* mrope_variant(long long index) {
  return index < static_cast<long long>(std::size(kVariants)) ? kVariants[index].name : nullptr;
}

// The arguments of SGLang's launcher, whose strides and extents come in `sizes`: row stride of qkv, stride between the rows
// of positions (0 for one row), rows of the table, tokens, query heads, key heads, whether positions are int64.
extern "C" __attribute__((visibility("default"))) int mrope_run(
    const char* name, void* qkv, const void* q_weight, const void* k_weight, const void* positions, const void* table,
    const uint8_t* axes, const int64_t* sizes, const float* eps) {
  return simt::guarded([&] {
    Params p = {};
    p.qkv = qkv;
    p.q_weight = q_weight;
    p.k_weight = k_weight;
    p.positions = positions;
    p.table = table;
    std::memcpy(p.axes, axes, sizeof(p.axes));
    p.qkv_stride = sizes[0];
    p.position_stride = sizes[1];
    p.position_limit = sizes[2];
    p.num_tokens = static_cast<uint32_t>(sizes[3]);
    p.num_q_heads = static_cast<uint32_t>(sizes[4]);
    p.num_kv_heads = static_cast<uint32_t>(sizes[5]);
    p.positions_are_int64 = static_cast<uint32_t>(sizes[6]);
    p.eps = *eps;
    for (const Variant& variant : kVariants) {
      if (std::strcmp(variant.name, name) == 0) return variant.launch(p);
    }
    throw std::invalid_argument(std::string("no variant ") + name);
  });
}
