// Where __shared__ variables live, and how every block finds them filled with garbage.
//
// Static: `static thread_local`, so that all of them, templates included, lie in this library's own TLS block, whose
// range the loader knows. Build the library with nothing else in it that owns thread-local state (no pybind11), or
// without SIMT_POISON. Under AddressSanitizer they are plain statics instead: those get redzones, thread-locals do not.
// Dynamic: one exact heap allocation a block, so that AddressSanitizer sees the first byte past the end.
#pragma once

#include <link.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace simt {

constexpr unsigned char kPoison = 0xA5;
constexpr std::size_t kSharedBytesPerBlock = 101376;  // opt-in limit of compute capability 12.0

#if defined(SIMT_POISON) && !defined(__SANITIZE_ADDRESS__)
namespace detail {
inline thread_local char tls_anchor = 0;  // touched first: the loader allocates a library's TLS block lazily

inline int poison_own_tls(dl_phdr_info* info, std::size_t, void* anchor) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    auto* begin = static_cast<char*>(info->dlpi_tls_data);
    if (header.p_type != PT_TLS || begin == nullptr) continue;
    if (anchor < begin || anchor >= begin + header.p_memsz) continue;
    std::memset(begin, kPoison, header.p_memsz);
    return 1;
  }
  return 0;
}
}  // namespace detail

inline void poison_static_shared_memory() {
  volatile char* anchor = &detail::tls_anchor;
  *anchor = 1;
  dl_iterate_phdr(&detail::poison_own_tls, const_cast<char*>(anchor));
}
#else
inline void poison_static_shared_memory() {}
#endif

class DynamicSharedMemory {
 public:
  explicit DynamicSharedMemory(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    if (posix_memalign(&data_, 128, bytes) != 0) throw std::bad_alloc();
    current() = data_;
  }
  DynamicSharedMemory(const DynamicSharedMemory&) = delete;
  DynamicSharedMemory& operator=(const DynamicSharedMemory&) = delete;
  ~DynamicSharedMemory() {
    std::free(data_);
    current() = nullptr;
  }
  void poison() {
    if (data_ != nullptr) std::memset(data_, kPoison, bytes_);
  }
  static void*& current() {
    static void* data = nullptr;
    return data;
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

// What a kernel's `extern __shared__` array is on the host. nvcc must keep seeing the real declaration:
//   #if defined(__CUDACC__)
//   extern __shared__ float tile[];
//   #else
//   float* tile = static_cast<float*>(simt::dynamic_shared());
//   #endif
inline void* dynamic_shared() { return DynamicSharedMemory::current(); }

}  // namespace simt

#if defined(__SANITIZE_ADDRESS__)
#define SIMT_SHARED static
#else
#define SIMT_SHARED static thread_local
#endif
