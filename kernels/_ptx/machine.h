// What executes: warps of 32 lanes with a register file, one decoded instruction, and the faults they can raise.
#pragma once
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace ptx {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using i8 = int8_t;
using i16 = int16_t;
using i32 = int32_t;
using i64 = int64_t;

constexpr int LANES = 32;
constexpr int OPERANDS = 16;
// A lane's .shared address 0 is not in the block's window: the driver keeps the first KiB, and a null is then noticed.
constexpr u64 SHARED_BEGIN = 1024;
constexpr u64 GENERIC_SHARED = u64(1) << 56;

struct Machine;
struct Warp;
struct Instruction;

// What a handler says about the way on.
enum class Next { following, elsewhere, wait };
using Handler = Next (*)(Machine&, Warp&, const Instruction&);

// A decoded instruction. Operands are byte offsets into a warp's register file; immediates lie there too.
struct Instruction {
  i32 handler;
  i32 guard;         // predicate's offset, or -1
  i32 guard_negated;
  i32 line;          // in the PTX text
  i32 count;         // operands used
  i32 operand[OPERANDS];
  i32 width[OPERANDS];  // bytes of each operand's register
  i64 immediate;        // displacement of an address, target of a branch
  i32 bytes;            // of one element that is moved
  i32 elements;         // of a vector
  i32 is_signed;
  i32 flags;
};

struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A copy that cp.async began; its bytes arrive when it is waited for, at the latest.
struct Copy {
  u64 source, target;
  i32 bytes, from_source, lane;
  i64 group, serial;
};

// cp.async.mbarrier.arrive.noinc: arrives once the lane's copies so far have landed.
struct Arrival {
  u64 barrier;
  i32 lane, at;  // at: the instruction
  i64 serial;    // the warp's first copy that it does not follow
};

struct Warp {
  int index = 0;           // in the block
  char* registers = nullptr;
  u32 alive = 0;           // lanes that have not exited
  u32 waiting = 0;         // lanes stopped at a barrier of the block
  u32 held = 0;            // lanes at a .sync instruction, for others of its mask
  i32 pc[LANES] = {};
  i32 barrier[LANES] = {};
  alignas(64) i32 mask[LANES] = {};     // -1 for every lane of the group that runs
  alignas(64) i32 guarded[LANES] = {};  // the same, after the instruction's guard
  const i32* effective = mask;
  u32 bits = 0, active = 0;               // both as bits
  i32 at = 0;                             // where `bits` is
  i32 others = 0;                         // the lowest instruction at which another lane stands
  bool yielded = false;
  u64 random = 0;
  std::vector<u32> clock;  // what this warp knows of every warp of its block
  std::vector<Copy> copies;
  std::vector<Arrival> arrivals;
  i64 committed[LANES] = {};  // groups
  i64 issued = 0;             // copies

  template <class T> T* lanes(i32 offset) { return reinterpret_cast<T*>(registers + offset); }
};

[[noreturn]] void fault(Machine&, Warp&, const Instruction&, const std::string& what);

inline u32 bits_of(const i32* lanes) {
  u32 bits = 0;
  for (int l = 0; l < LANES; ++l) bits |= (lanes[l] ? 1u : 0u) << l;
  return bits;
}

inline void lanes_of(u32 bits, i32* lanes) {
  for (int l = 0; l < LANES; ++l) lanes[l] = -i32(bits >> l & 1);
}

// The lowest lane that executes; its value of an operand that all lanes share.
inline int first(u32 bits) { return std::countr_zero(bits); }

template <class F> inline void each_lane(u32 bits, F f) {
  for (; bits; bits &= bits - 1) f(std::countr_zero(bits));
}

}  // namespace ptx
