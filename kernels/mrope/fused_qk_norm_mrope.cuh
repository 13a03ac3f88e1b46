// Fused per-head RMSNorm and rotary embedding for one- and three-axis positions (mRoPE), in place.
//
// No framework header is needed: the launcher fills Params and checks it. A head is carried by head_dim / 16 lanes, so
// that each lane holds sixteen elements as two 16-byte chunks. With NeoX pairing a rotating lane holds both halves of
// its pairs, so the rotation needs no shuffle and every cos/sin is made once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace fused_qk_norm_mrope {

constexpr uint32_t kThreads = 128;
constexpr uint32_t kFullWarp = 0xffffffffu;
constexpr int kChunk = 8;  // elements in 16 bytes

struct Params {
  void* qkv;              // [num_tokens, >= (num_q_heads + 2 * num_kv_heads) * head_dim]; Q and K heads are rewritten
  const void* q_weight;   // [head_dim]
  const void* k_weight;   // [head_dim]
  const void* positions;  // [num_tokens], or three such rows
  const void* table;      // cos then sin [position_limit, rotary_dim]
  uint8_t axes[32];       // axis of each pair, two bits a pair, four pairs a byte, pair 0 lowest
  int64_t qkv_stride;     // elements between tokens
  int64_t position_stride;  // elements between the three rows; 0 where they share one
  // 1 to 2^31; positions must be below it. A head whose token breaks this reads row 0 of the table and becomes NaN.
  int64_t position_limit;
  uint32_t num_tokens;
  uint32_t num_q_heads;
  uint32_t num_kv_heads;
  uint32_t positions_are_int64;
  float eps;
};

// Written out rather than left to the compiler, so that every variant, on every target, rounds at the same places.
__device__ __forceinline__ float multiply_add(float x, float y, float z) {
  return ::fmaf(x, y, z);
}

__device__ __forceinline__ float reciprocal_root(float x) {
#ifdef __CUDA_ARCH__
  return rsqrtf(x);
#else
  return 1.0f / ::sqrtf(x);
#endif
}

__device__ __forceinline__ float2 widen(__nv_bfloat162 pair) {
  return __bfloat1622float2(pair);
}
__device__ __forceinline__ float2 widen(__half2 pair) {
  return __half22float2(pair);
}
__device__ __forceinline__ void narrow(float low, float high, __nv_bfloat162& pair) {
  pair = __floats2bfloat162_rn(low, high);
}
__device__ __forceinline__ void narrow(float low, float high, __half2& pair) {
  pair = __floats2half2_rn(low, high);
}

template <typename Scalar>
using PairOf = std::conditional_t<std::is_same_v<Scalar, __half>, __half2, __nv_bfloat162>;

template <typename Scalar>
struct alignas(16) Chunk {
  PairOf<Scalar> pair[kChunk / 2];
};

// One 16- or 8-byte access, whatever the members of T are.
template <typename T>
__device__ __forceinline__ T load_vector(const void* address) {
  using Raw = std::conditional_t<sizeof(T) == 16, uint4, uint2>;
  static_assert(sizeof(T) == sizeof(Raw), "a vector is 16 or 8 bytes");
  const Raw raw = *static_cast<const Raw*>(address);
  T value;
  memcpy(static_cast<void*>(&value), &raw, sizeof(T));
  return value;
}

template <typename T>
__device__ __forceinline__ void store_vector(void* address, const T& value) {
  using Raw = std::conditional_t<sizeof(T) == 16, uint4, uint2>;
  static_assert(sizeof(T) == sizeof(Raw), "a vector is 16 or 8 bytes");
  Raw raw;
  memcpy(&raw, static_cast<const void*>(&value), sizeof(T));
  *static_cast<Raw*>(address) = raw;
}

template <typename Scalar>
__device__ __forceinline__ void widen_chunk(const Chunk<Scalar>& chunk, float (&value)[kChunk]) {
#pragma unroll
  for (int i = 0; i < kChunk / 2; ++i) {
    const float2 two = widen(chunk.pair[i]);
    value[2 * i] = two.x;
    value[2 * i + 1] = two.y;
  }
}

template <typename Scalar>
__device__ __forceinline__ Chunk<Scalar> narrow_chunk(const float (&value)[kChunk]) {
  Chunk<Scalar> chunk;
#pragma unroll
  for (int i = 0; i < kChunk / 2; ++i) {
    narrow(value[2 * i], value[2 * i + 1], chunk.pair[i]);
  }
  return chunk;
}

template <int kAxes>
struct Positions {
  uint32_t row[kAxes];
};

// Reads the token's positions; false when one of them is outside [0, position_limit), which is then replaced by 0.
template <int kAxes>
__device__ __forceinline__ bool load_positions(const Params& p, uint32_t token, Positions<kAxes>& positions) {
  bool inside = true;
#pragma unroll
  for (int axis = 0; axis < kAxes; ++axis) {
    const int64_t index = axis * p.position_stride + token;
    int64_t position = p.positions_are_int64 ? static_cast<const int64_t*>(p.positions)[index]
                                             : static_cast<const int32_t*>(p.positions)[index];
    if (static_cast<uint64_t>(position) >= static_cast<uint64_t>(p.position_limit)) {
      inside = false;
      position = 0;
    }
    positions.row[axis] = static_cast<uint32_t>(position);
  }
  return inside;
}

template <int kAxes>
__device__ __forceinline__ uint32_t position_of(const Positions<kAxes>& positions, uint32_t axis) {
  if constexpr (kAxes == 1) {
    return positions.row[0];
  } else {
    const uint32_t spatial = axis & 2 ? positions.row[2] : positions.row[1];
    return axis ? spatial : positions.row[0];
  }
}

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(__half x) {
  return __half2float(x);
}

// cos and sin of four consecutive pairs, the first of which is a multiple of four.
template <typename Table, int kRotaryDim, int kAxes>
__device__ __forceinline__ void
quad_cos_sin(const Params& p, const Positions<kAxes>& positions, uint32_t first, float (&cos)[4], float (&sin)[4]) {
  uint32_t axes = 0;
  if constexpr (kAxes == 3) {
    axes = p.axes[first / 4];
  }
  const auto* cache = static_cast<const Table*>(p.table) + first;
  constexpr int kPairs = kRotaryDim / 2;
  if constexpr (kAxes == 1) {
    struct Quad {
      Table value[4];
    };
    const Table* row = cache + static_cast<int64_t>(positions.row[0]) * kRotaryDim;
    const Quad c = load_vector<Quad>(row);
    const Quad s = load_vector<Quad>(row + kPairs);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      cos[i] = to_float(c.value[i]);
      sin[i] = to_float(s.value[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Table* row = cache + static_cast<int64_t>(position_of(positions, (axes >> (2 * i)) & 3)) * kRotaryDim;
      cos[i] = to_float(row[i]);
      sin[i] = to_float(row[kPairs + i]);
    }
  }
}

__device__ __forceinline__ void rotate(float& first, float& second, float cos, float sin) {
  const float a = first;
  const float b = second;
  first = multiply_add(a, cos, -(b * sin));
  second = multiply_add(b, cos, a * sin);
}

template <typename Scalar>
__device__ __forceinline__ void normalize(float (&value)[kChunk], const Scalar* weight, float scale) {
  const Chunk<Scalar> packed = load_vector<Chunk<Scalar>>(weight);
#pragma unroll
  for (int i = 0; i < kChunk / 2; ++i) {
    const float2 w = widen(packed.pair[i]);
    value[2 * i] *= scale * w.x;
    value[2 * i + 1] *= scale * w.y;
  }
}

// Blocks that an SM of compute capability 12.0 shall hold at once. Twelve are all of its 48 warps and leave 40 registers
// a thread. With one axis that would spill; the compiler is left its own choice there, which nine bound to 56.
template <int kAxes>
constexpr uint32_t kResidentBlocks = kAxes == 3 ? 12 : 9;

// One head a lane group. Scalar: __nv_bfloat16 or __half, of qkv and the weights. Table: float or Scalar, of the cos/sin
// cache. kRotaryDim: leading dims of a head that turn. kAxes: 1 or 3.
template <typename Scalar, typename Table, int kHeadDim, int kRotaryDim, int kAxes, bool kNeox>
__global__ void __launch_bounds__(kThreads, kResidentBlocks<kAxes>)
    fused_qk_norm_mrope_kernel(const __grid_constant__ Params p) {
  static_assert(kHeadDim == 64 || kHeadDim == 128 || kHeadDim == 256, "head_dim must be 64, 128 or 256");
  static_assert(kRotaryDim > 0 && kRotaryDim <= kHeadDim, "rotary_dim must be in 1 .. head_dim");
  static_assert(kRotaryDim % (kNeox ? 16 : 8) == 0, "rotary_dim must fill whole 16-byte chunks");
  static_assert(kAxes == 1 || kAxes == 3, "positions have one axis or three");
  constexpr uint32_t kLanes = kHeadDim / (2 * kChunk);

  const uint32_t lane = threadIdx.x % kLanes;
  const uint32_t item = blockIdx.x * (kThreads / kLanes) + threadIdx.x / kLanes;
  const uint32_t heads = p.num_q_heads + p.num_kv_heads;
  const uint32_t token = item / heads;
  const uint32_t head = item % heads;
  const bool live = token < p.num_tokens;
  const bool is_q = head < p.num_q_heads;

  // Where this lane's two chunks sit in the head. NeoX: the lanes that rotate hold both halves of their pairs and come
  // first, the others share what is left.
  constexpr uint32_t kRotating = kNeox ? kRotaryDim / (2 * kChunk) : kLanes;
  const bool rotating = lane < kRotating;
  const uint32_t first = kChunk * (lane + (rotating ? 0 : kRotating));
  const uint32_t second = first + kChunk * (rotating ? kRotating : kLanes - kRotating);
  const bool first_rotates = kNeox ? rotating : first < kRotaryDim;
  const bool second_rotates = kNeox ? rotating : second < kRotaryDim;

  Chunk<Scalar> packed_a = {};
  Chunk<Scalar> packed_b = {};
  Scalar* row = static_cast<Scalar*>(p.qkv) + token * p.qkv_stride + static_cast<int64_t>(head) * kHeadDim;
  Positions<kAxes> positions = {};
  float sum = 0.0f;
  if (live) {
    packed_a = load_vector<Chunk<Scalar>>(row + first);
    packed_b = load_vector<Chunk<Scalar>>(row + second);
    if (!load_positions(p, token, positions)) sum = NAN;
  }
  float a[kChunk], b[kChunk];
  widen_chunk(packed_a, a);
  widen_chunk(packed_b, b);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    sum = multiply_add(a[i], a[i], sum);
    sum = multiply_add(b[i], b[i], sum);
  }
  // Every lane of the warp takes part, also one past the last head.
#pragma unroll
  for (uint32_t distance = kLanes / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kFullWarp, sum, distance);
  }
  if (!live) return;

  const float scale = reciprocal_root(multiply_add(sum, 1.0f / kHeadDim, p.eps));
  const Scalar* weight = static_cast<const Scalar*>(is_q ? p.q_weight : p.k_weight);
  normalize(a, weight + first, scale);
  normalize(b, weight + second, scale);

  float cos[4], sin[4];
  if constexpr (kNeox) {
    if (first_rotates) {
#pragma unroll
      for (int quad = 0; quad < 2; ++quad) {
        quad_cos_sin<Table, kRotaryDim>(p, positions, first + 4 * quad, cos, sin);
#pragma unroll
        for (int i = 0; i < 4; ++i) rotate(a[4 * quad + i], b[4 * quad + i], cos[i], sin[i]);
      }
    }
  } else {
    if (first_rotates) {
      quad_cos_sin<Table, kRotaryDim>(p, positions, first / 2, cos, sin);
#pragma unroll
      for (int i = 0; i < 4; ++i) rotate(a[2 * i], a[2 * i + 1], cos[i], sin[i]);
    }
    if (second_rotates) {
      quad_cos_sin<Table, kRotaryDim>(p, positions, second / 2, cos, sin);
#pragma unroll
      for (int i = 0; i < 4; ++i) rotate(b[2 * i], b[2 * i + 1], cos[i], sin[i]);
    }
  }
  store_vector(row + first, narrow_chunk<Scalar>(a));
  store_vector(row + second, narrow_chunk<Scalar>(b));
}

// Blocks of kThreads that cover every head of every token.
inline uint32_t grid_size(const Params& p, int head_dim) {
  const uint64_t heads = p.num_q_heads + static_cast<uint64_t>(p.num_kv_heads);
  const uint64_t heads_per_block = kThreads / (head_dim / (2 * kChunk));
  return static_cast<uint32_t>((p.num_tokens * heads + heads_per_block - 1) / heads_per_block);
}

}  // namespace fused_qk_norm_mrope
