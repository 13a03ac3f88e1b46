// The names of CUDA's device language, as far as our kernels use them. Anything missing here fails to compile.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if __has_include(<vector_types.h>)
#include <vector_functions.h>
#include <vector_types.h>
#else
struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
#endif

// NVIDIA's headers, where present, have given these their host meaning (nothing); here they mean what a kernel means.
#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __shared__ SIMT_SHARED
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__

namespace simt {
inline uint3 as_uint3(const Extent& extent) { return uint3{extent.x, extent.y, extent.z}; }
inline dim3 as_dim3(const Extent& extent) { return dim3(extent.x, extent.y, extent.z); }
}  // namespace simt

#define threadIdx (::simt::as_uint3(::simt::Scheduler::instance().thread_index()))
#define blockIdx (::simt::as_uint3(::simt::Scheduler::instance().block_index()))
#define blockDim (::simt::as_dim3(::simt::Scheduler::instance().block_extent()))
#define gridDim (::simt::as_dim3(::simt::Scheduler::instance().grid_extent()))
constexpr int warpSize = 32;

// Every collective takes its caller's source line as a hidden last argument: faults name it.
#define SIMT_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

// --- barriers

inline void __syncthreads(SIMT_SITE) {
  simt::Scheduler::instance().wait_at_barrier("__syncthreads", false, {file, line});
}
inline int __syncthreads_count(int predicate, SIMT_SITE) {
  return simt::Scheduler::instance().wait_at_barrier("__syncthreads_count", predicate != 0, {file, line});
}
inline int __syncthreads_or(int predicate, SIMT_SITE) {
  return simt::Scheduler::instance().wait_at_barrier("__syncthreads_or", predicate != 0, {file, line}) != 0;
}
inline int __syncthreads_and(int predicate, SIMT_SITE) {
  return simt::Scheduler::instance().wait_at_barrier("__syncthreads_and", predicate == 0, {file, line}) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, SIMT_SITE) {
  simt::rendezvous<int>("__syncwarp", mask, 0, +[](const simt::Warp&, unsigned) { return 0; }, {file, line});
}

// --- votes and reductions

inline unsigned __ballot_sync(unsigned mask, int predicate, SIMT_SITE) {
  return simt::rendezvous<unsigned>(
      "__ballot_sync", mask, predicate,
      +[](const simt::Warp& warp, unsigned) {
        unsigned bits = 0;
        for (unsigned lane = 0; lane < simt::kWarp; ++lane)
          if (warp.has(lane) && warp.given<int>(lane) != 0) bits |= 1u << lane;
        return bits;
      },
      {file, line});
}
inline int __any_sync(unsigned mask, int predicate, SIMT_SITE) {
  return __ballot_sync(mask, predicate, file, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, SIMT_SITE) {
  return __ballot_sync(mask, predicate, file, line) == mask;
}

namespace simt {
template <class T, class Op>
T reduce(const char* operation, unsigned mask, T value, Site site) {
  return rendezvous<T>(
      operation, mask, value,
      +[](const Warp& warp, unsigned) {
        T result{};
        bool first = true;
        for (unsigned lane = 0; lane < kWarp; ++lane) {
          if (!warp.has(lane)) continue;
          result = first ? warp.given<T>(lane) : Op{}(result, warp.given<T>(lane));
          first = false;
        }
        return result;
      },
      site);
}
struct Add { template <class T> T operator()(T a, T b) const { return a + b; } };
struct Min { template <class T> T operator()(T a, T b) const { return b < a ? b : a; } };
struct Max { template <class T> T operator()(T a, T b) const { return a < b ? b : a; } };
struct And { template <class T> T operator()(T a, T b) const { return a & b; } };
struct Or { template <class T> T operator()(T a, T b) const { return a | b; } };
struct Xor { template <class T> T operator()(T a, T b) const { return a ^ b; } };
}  // namespace simt

#define SIMT_REDUCE(name, Op, T)                                        \
  inline T name(unsigned mask, T value, SIMT_SITE) {                    \
    return simt::reduce<T, simt::Op>(#name, mask, value, {file, line}); \
  }
SIMT_REDUCE(__reduce_add_sync, Add, unsigned)
SIMT_REDUCE(__reduce_min_sync, Min, unsigned)
SIMT_REDUCE(__reduce_max_sync, Max, unsigned)
SIMT_REDUCE(__reduce_and_sync, And, unsigned)
SIMT_REDUCE(__reduce_or_sync, Or, unsigned)
SIMT_REDUCE(__reduce_xor_sync, Xor, unsigned)
SIMT_REDUCE(__reduce_min_sync, Min, int)
SIMT_REDUCE(__reduce_max_sync, Max, int)
#undef SIMT_REDUCE
inline int __reduce_add_sync(unsigned mask, int value, SIMT_SITE) {
  return static_cast<int>(__reduce_add_sync(mask, static_cast<unsigned>(value), file, line));
}

template <class T>
unsigned __match_any_sync(unsigned mask, T value, SIMT_SITE) {
  return simt::rendezvous<unsigned>(
      "__match_any_sync", mask, value,
      +[](const simt::Warp& warp, unsigned lane) {
        unsigned bits = 0;
        for (unsigned other = 0; other < simt::kWarp; ++other)
          if (warp.has(other) && warp.given<T>(other) == warp.given<T>(lane)) bits |= 1u << other;
        return bits;
      },
      {file, line});
}

// --- shuffles

namespace simt {
template <class T>
struct Shuffle {
  T value;
  int operand;
  int width;
};

// `source` names the lane to read from; a lane outside the segment keeps its own value, one outside the mask is a fault.
template <class T, class Source>
T shuffle(const char* operation, unsigned mask, T value, int operand, int width, Site site) {
  static_assert(std::is_trivially_copyable<T>::value, "shuffled values are copied bit by bit");
  if (width <= 0 || width > 32 || (width & (width - 1)) != 0)
    Scheduler::instance().trap(std::string(operation) + " width " + std::to_string(width) +
                               " is not a power of two in 1..32");
  return rendezvous<T>(
      operation, mask, Shuffle<T>{value, operand, width},
      +[](const Warp& warp, unsigned lane) {
        const auto& mine = warp.given<Shuffle<T>>(lane);
        const int begin = static_cast<int>(lane) & ~(mine.width - 1);
        const int source = Source{}(static_cast<int>(lane), begin, mine.operand, mine.width);
        if (!warp.has(static_cast<unsigned>(source)))
          throw Fault("a shuffle reads lane " + std::to_string(source) + ", which is outside the mask");
        return warp.given<Shuffle<T>>(static_cast<unsigned>(source)).value;
      },
      site);
}
struct FromIndex {
  int operator()(int, int begin, int index, int width) const { return begin + (index & (width - 1)); }
};
struct FromBelow {
  int operator()(int lane, int begin, int delta, int) const { return lane - delta < begin ? lane : lane - delta; }
};
struct FromAbove {
  int operator()(int lane, int begin, int delta, int width) const {
    return lane + delta >= begin + width ? lane : lane + delta;
  }
};
struct FromXor {
  int operator()(int lane, int begin, int bits, int width) const {
    return (lane ^ bits) >= begin + width ? lane : lane ^ bits;
  }
};
}  // namespace simt

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize, SIMT_SITE) {
  return simt::shuffle<T, simt::FromIndex>("__shfl_sync", mask, value, source, width, {file, line});
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize, SIMT_SITE) {
  return simt::shuffle<T, simt::FromBelow>("__shfl_up_sync", mask, value, static_cast<int>(delta), width, {file, line});
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize, SIMT_SITE) {
  return simt::shuffle<T, simt::FromAbove>("__shfl_down_sync", mask, value, static_cast<int>(delta), width, {file, line});
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = warpSize, SIMT_SITE) {
  return simt::shuffle<T, simt::FromXor>("__shfl_xor_sync", mask, value, bits, width, {file, line});
}
#undef SIMT_SITE

// --- atomics: fibers are not preempted, so plain code is atomic

template <class T> T atomicAdd(T* p, T v) { const T old = *p; *p = old + v; return old; }
template <class T> T atomicSub(T* p, T v) { const T old = *p; *p = old - v; return old; }
template <class T> T atomicMin(T* p, T v) { const T old = *p; *p = v < old ? v : old; return old; }
template <class T> T atomicMax(T* p, T v) { const T old = *p; *p = old < v ? v : old; return old; }
template <class T> T atomicAnd(T* p, T v) { const T old = *p; *p = old & v; return old; }
template <class T> T atomicOr(T* p, T v) { const T old = *p; *p = old | v; return old; }
template <class T> T atomicXor(T* p, T v) { const T old = *p; *p = old ^ v; return old; }
template <class T> T atomicExch(T* p, T v) { const T old = *p; *p = v; return old; }
template <class T> T atomicCAS(T* p, T expected, T v) { const T old = *p; if (old == expected) *p = v; return old; }
inline void __threadfence() {}
inline void __threadfence_block() {}

// --- integer and bit functions

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(v)); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline unsigned __brev(unsigned v) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (v >> bit & 1u) << (31 - bit);
  return reversed;
}
template <class T> T __ldg(const T* p) { return *p; }
#define SIMT_MIN_MAX(T)                               \
  inline T min(T a, T b) { return b < a ? b : a; }    \
  inline T max(T a, T b) { return a < b ? b : a; }
SIMT_MIN_MAX(int)
SIMT_MIN_MAX(unsigned)
SIMT_MIN_MAX(long)
SIMT_MIN_MAX(unsigned long)
SIMT_MIN_MAX(long long)
SIMT_MIN_MAX(unsigned long long)
SIMT_MIN_MAX(float)
SIMT_MIN_MAX(double)
#undef SIMT_MIN_MAX

// --- floating point: exact libm where the device has an approximation, so compare with a tolerance

inline float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
inline float __expf(float v) { return std::exp(v); }
inline float __logf(float v) { return std::log(v); }
inline float __sinf(float v) { return std::sin(v); }
inline float __cosf(float v) { return std::cos(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float v) { return 1.0f / v; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
template <class To, class From>
To simt_bit_cast(From v) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To to;
  std::memcpy(&to, &v, sizeof to);
  return to;
}
inline unsigned __float_as_uint(float v) { return simt_bit_cast<unsigned>(v); }
inline int __float_as_int(float v) { return simt_bit_cast<int>(v); }
inline float __uint_as_float(unsigned v) { return simt_bit_cast<float>(v); }
inline float __int_as_float(int v) { return simt_bit_cast<float>(v); }

inline void __trap() { simt::Scheduler::instance().trap("__trap"); }
