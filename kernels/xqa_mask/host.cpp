// Python binding of the host build. Takes addresses, so that it needs no tensor library; op.py has checked them.
#include <pybind11/pybind11.h>

#include <stdexcept>

#include "host_api.cpp"

namespace {

template <class T>
T* pointer(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

void check(int failed) {
  if (failed != 0) throw std::runtime_error(simt_last_fault());
}

}  // namespace

PYBIND11_MODULE(_host, module) {
  module.doc() = "XQA mask packing on the CPU, from the same source as the device kernels.";
  module.def("chain", [](std::uintptr_t mask, std::uintptr_t cu_seqlens, long long rows, long long batch,
                         long long q_len, bool full) {
    check(xqa_mask_chain_host(pointer<uint32_t>(mask), pointer<const int32_t>(cu_seqlens), rows, batch, q_len, full));
  });
  module.def("tree", [](std::uintptr_t mask, std::uintptr_t cu_seqlens, std::uintptr_t parents, long long rows,
                        long long batch, long long q_len) {
    check(xqa_mask_tree_host(pointer<uint32_t>(mask), pointer<const int32_t>(cu_seqlens),
                             pointer<const int32_t>(parents), rows, batch, q_len));
  });
  module.def("matrix", [](std::uintptr_t mask, std::uintptr_t cu_seqlens, std::uintptr_t visible, long long rows,
                          long long batch, long long q_len) {
    check(xqa_mask_matrix_host(pointer<uint32_t>(mask), pointer<const int32_t>(cu_seqlens),
                               pointer<const uint8_t>(visible), rows, batch, q_len));
  });
}
