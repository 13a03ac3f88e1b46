// The variants for the CPU, to be run by name: all of variants.def, or the one whose tokens MROPE_ONLY holds.
#include <cstring>

#include "variant_names.h"

namespace {

using fused_qk_norm_mrope::Params;

template <typename Scalar, typename Table, int D, int R, int A, bool N, bool G, bool F>
void launch(const Params& p) {
  using namespace fused_qk_norm_mrope;
  if (p.num_tokens == 0) return;
  simt::launch(
      simt::with_schedule({grid_size(p, D, F), 1, 1}, {kThreads, 1, 1}),
      fused_qk_norm_mrope_kernel<Scalar, Table, D, R, A, N, G, F>,
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

extern "C" __attribute__((visibility("default"))) int mrope_run(const char* name, const Params* params) {
  return simt::guarded([&] {
    for (const Variant& variant : kVariants) {
      if (std::strcmp(variant.name, name) == 0) return variant.launch(*params);
    }
    throw std::invalid_argument(std::string("no variant ") + name);
  });
}
