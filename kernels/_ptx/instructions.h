// Every instruction that is known, by its name. Titles are sections of the PTX ISA 9.x, chapter "Instruction Set".
// A name is the opcode without what changes no result here: cache operators, scopes, `.aligned`, `.uni` (encode.py).
#pragma once
#include "arithmetic.h"
#include "machine.h"
#include "memory.h"

namespace ptx {

struct Entry {
  const char* name;
  Handler handler;
};

#define HANDLER [](Machine & m [[maybe_unused]], Warp & w, const Instruction& i) -> Next
#define UNARY(D, A, E) HANDLER { return unary<D, A>(w, i, [](A a) { return D(E); }); }
#define BINARY(D, A, E) HANDLER { return binary<D, A>(w, i, [](A a, A b) { return D(E); }); }
#define TERNARY(D, A, C, E) HANDLER { return ternary<D, A, C>(w, i, [](A a, A b, C c) { return D(E); }); }

// ---- Parallel Synchronization: bar ----------------------------------------------------------------------------------

// Lets the threads of a barrier go on when all have come: the number it was given, or every thread that has not exited.
static void complete(Machine& m, Warp& w, const Instruction& i, int id) {
  const auto found = m.barriers.find(id);
  if (found == m.barriers.end()) return;
  BlockBarrier& b = found->second;
  int needed = b.threads;
  if (needed == 0)
    for (const Warp& other : m.warps) needed += std::popcount(other.alive);
  if (b.arrived > needed) fault(m, w, i, "barrier " + std::to_string(id) + " of " + std::to_string(needed) + " threads is reached by " + std::to_string(b.arrived));
  if (b.arrived < needed) return;
  meet(b.clock, m.exited);
  for (const auto& [index, lanes] : b.parties) {
    m.warps[index].waiting &= ~lanes;
    meet(m.warps[index].clock, b.clock);
  }
  for (const auto& [index, lanes] : b.parties) m.warps[index].clock[index] = b.clock[index] + 1;
  m.barriers.erase(found);
  ++m.events;
}

// bar.sync a {, threads}: lanes that arrive stop; the last one lets all of them go on.
static Next bar_sync(Machine& m, Warp& w, const Instruction& i) {
  const int id = int(w.lanes<u32>(i.operand[0])[first(w.active)]);
  BlockBarrier& b = m.barriers[id];
  if (b.clock.empty()) b.clock.resize(w.clock.size());
  b.threads = i.count > 1 ? int(w.lanes<u32>(i.operand[1])[first(w.active)]) : 0;
  each_lane(w.bits, [&](int l) { w.pc[l] = w.at + 1; });
  w.waiting |= w.active;
  each_lane(w.active, [&](int l) { w.barrier[l] = i.line; });
  b.arrived += std::popcount(w.active);
  b.parties.push_back({w.index, w.active});
  meet(b.clock, w.clock);
  w.bits = 0;
  complete(m, w, i, id);
  return Next::elsewhere;
}

// ---- Control Flow Instructions: bra, ret, exit ---------------------------------------------------------------------

static Next bra(Machine&, Warp& w, const Instruction& i) {
  const u32 rest = w.bits & ~w.active;
  if (rest == 0) {
    w.at = i32(i.immediate);
    return Next::elsewhere;
  }
  each_lane(rest, [&](int l) { w.pc[l] = w.at + 1; });
  each_lane(w.active, [&](int l) { w.pc[l] = i32(i.immediate); });
  w.bits = 0;
  return Next::elsewhere;
}

static Next leave(Machine& m, Warp& w, const Instruction& i) {
  w.alive &= ~w.active;
  each_lane(w.bits & ~w.active, [&](int l) { w.pc[l] = w.at + 1; });
  w.bits = 0;
  ++m.events;
  if (m.launch->land_at_exit) land_some(m, w, i, [&](const Copy& copy) { return !(w.alive >> copy.lane & 1); });
  meet(m.exited, w.clock);
  for (int id = 0; id < 16; ++id) complete(m, w, i, id);
  return Next::elsewhere;
}

// ---- Parallel Synchronization: who takes part in a .sync instruction ------------------------------------------------

// True when every lane's mask is here; else those that are here stay, for the others. Groups of lanes may name masks of
// their own in one instruction; the lanes of a group name the same one.
static bool together(Machine& m, Warp& w, const Instruction& i, i32 mask_operand, bool exited_count = false) {
  const u32* masks = w.lanes<u32>(mask_operand);
  u32 missing = 0;
  each_lane(w.active, [&](int l) {
    if (!(masks[l] >> l & 1)) fault(m, w, i, "lane " + std::to_string(l) + " is not in its own mask " + hexadecimal(masks[l]));
    each_lane(masks[l] & w.active, [&](int other) {
      if (masks[other] != masks[l]) fault(m, w, i, "lanes " + std::to_string(l) + " and " + std::to_string(other) + " name different masks of each other");
    });
    missing |= masks[l] & ~w.active;
  });
  if (exited_count) missing &= w.alive;
  if (!missing) return true;
  if (missing & ~w.alive) fault(m, w, i, "the mask names " + lane_list(missing & ~w.alive) + ", which have exited");
  if (missing & w.bits) fault(m, w, i, "the mask names " + lane_list(missing & w.bits) + ", which the guard leaves out");
  u32 here = w.bits;
  each_lane(w.bits, [&](int l) { w.pc[l] = w.at; });
  each_lane(w.held, [&](int l) { here |= u32(w.pc[l] == w.at) << l; });
  // Lanes that were held here go on with these; alone, these are held.
  if (here != w.bits) w.held &= ~here; else w.held |= here;
  w.bits = 0;
  return false;
}

// shfl.sync: mode 0 idx, 1 up, 2 down, 3 bfly. Operands: d, [p], a, b, c, membermask.
template <int MODE> static Next shfl(Machine& m, Warp& w, const Instruction& i) {
  const int k = i.count - 4;  // 1, or 2 with a predicate
  if (!together(m, w, i, i.operand[k + 3])) return Next::elsewhere;
  const u32 *a = w.lanes<u32>(i.operand[k]), *b = w.lanes<u32>(i.operand[k + 1]), *c = w.lanes<u32>(i.operand[k + 2]);
  u32 from[LANES];
  i32 inside[LANES];
  each_lane(w.active, [&](int lane) {
    const int value = b[lane] & 31, clamp = c[lane] & 31, segment = c[lane] >> 8 & 31;
    const int greatest = (lane & segment) | (clamp & ~segment), least = lane & segment;
    int j = 0;
    bool p = false;
    if (MODE == 0) j = least | (value & ~segment), p = j <= greatest;
    if (MODE == 1) j = lane - value, p = j >= greatest;
    if (MODE == 2) j = lane + value, p = j <= greatest;
    if (MODE == 3) j = lane ^ value, p = j <= greatest;
    if (!p) j = lane;
    if (!(w.lanes<u32>(i.operand[k + 3])[lane] >> j & 1)) fault(m, w, i, "lane " + std::to_string(lane) + " reads lane " + std::to_string(j) + ", which does not take part");
    from[lane] = a[j];
    inside[lane] = -i32(p);
  });
  u32* d = w.lanes<u32>(i.operand[0]);
  each_lane(w.active, [&](int l) { d[l] = from[l]; });
  if (k == 2) {
    i32* p = w.lanes<i32>(i.operand[1]);
    each_lane(w.active, [&](int l) { p[l] = inside[l]; });
  }
  return Next::following;
}

// vote.sync.ballot: d, predicate, membermask.
static Next ballot(Machine& m, Warp& w, const Instruction& i) {
  if (!together(m, w, i, i.operand[2])) return Next::elsewhere;
  const u32 yes = bits_of(w.lanes<i32>(i.operand[1])), *masks = w.lanes<u32>(i.operand[2]);
  u32* d = w.lanes<u32>(i.operand[0]);
  each_lane(w.active, [&](int l) { d[l] = yes & masks[l]; });
  return Next::following;
}
// vote.sync.any and .all: p, predicate, membermask.
template <bool ALL> static Next vote(Machine& m, Warp& w, const Instruction& i) {
  if (!together(m, w, i, i.operand[2])) return Next::elsewhere;
  const u32 yes = bits_of(w.lanes<i32>(i.operand[1])), *masks = w.lanes<u32>(i.operand[2]);
  i32* d = w.lanes<i32>(i.operand[0]);
  each_lane(w.active, [&](int l) { d[l] = -i32(ALL ? (yes & masks[l]) == masks[l] : (yes & masks[l]) != 0); });
  return Next::following;
}
// redux.sync: d, a, membermask.
template <class T, class F> static Next redux(Machine& m, Warp& w, const Instruction& i, F f) {
  if (!together(m, w, i, i.operand[2])) return Next::elsewhere;
  const T* a = w.lanes<T>(i.operand[1]);
  const u32* masks = w.lanes<u32>(i.operand[2]);
  T results[LANES];
  each_lane(w.active, [&](int l) {
    results[l] = a[first(masks[l])];
    each_lane(masks[l] & (masks[l] - 1), [&](int other) { results[l] = f(results[l], a[other]); });
  });
  T* d = w.lanes<T>(i.operand[0]);
  each_lane(w.active, [&](int l) { d[l] = results[l]; });
  return Next::following;
}
static Next bar_warp(Machine& m, Warp& w, const Instruction& i) {
  return together(m, w, i, i.operand[0], true) ? Next::following : Next::elsewhere;
}

// ---- Parallel Synchronization: mbarrier -----------------------------------------------------------------------------

static u64 address_of(Warp& w, const Instruction& i, int operand, int lane) {
  const i32 offset = i.operand[operand];
  return (i.width[operand] == 8 ? w.lanes<u64>(offset)[lane] : u64(w.lanes<u32>(offset)[lane])) + u64(i.immediate);
}

static Next mbarrier_init(Machine& m, Warp& w, const Instruction& i) {
  each_lane(w.active, [&](int l) {
    const u64 offset = shared_offset(m, w, i, address_of(w, i, 0, l), 8);
    SharedBarrier b;
    b.expected = b.pending = i32(w.lanes<u32>(i.operand[1])[l]);
    b.clock = b.completed = w.clock;
    m.memory.barriers[offset] = b;
  });
  return Next::following;
}
// mbarrier.arrive state, [address]: the state is opaque and nothing here waits for one.
static Next mbarrier_arrive(Machine& m, Warp& w, const Instruction& i) {
  each_lane(w.active, [&](int l) {
    arrive(m, w, i, address_of(w, i, 1, l), i.count > 2 ? i32(w.lanes<u32>(i.operand[2])[l]) : 1);
    w.lanes<u64>(i.operand[0])[l] = 0;
  });
  ++w.clock[w.index];
  return Next::following;
}
// mbarrier.test_wait.parity and try_wait.parity done, [address], parity.
static Next mbarrier_wait(Machine& m, Warp& w, const Instruction& i) {
  if (m.launch->schedule == 2 && draw(m) % 4 == 0) fire(m, w, 1);
  i32* done = w.lanes<i32>(i.operand[0]);
  each_lane(w.active, [&](int l) {
    const auto found = m.memory.barriers.find(shared_offset(m, w, i, address_of(w, i, 1, l), 8));
    if (found == m.memory.barriers.end()) fault(m, w, i, "an mbarrier that was never initialised");
    // The phase of the given parity is complete when the running one has the other parity.
    const bool complete = (found->second.phase & 1) != i64(w.lanes<u32>(i.operand[2])[l] & 1);
    if (complete) meet(w.clock, found->second.completed); else w.yielded = true;
    done[l] = -i32(complete);
  });
  return Next::following;
}

// ---- Data Movement: ld, st, atom ------------------------------------------------------------------------------------

enum Space : i32 { in_global, in_shared, in_parameters, generic };

static char* locate(Machine& m, Warp& w, const Instruction& i, int operand, int lane, int bytes, Access access, const char* data = nullptr) {
  const u64 address = address_of(w, i, operand, lane);
  if (i.flags == in_shared || (i.flags == generic && address >= GENERIC_SHARED)) return shared(m, w, i, address, bytes, access, data);
  if (i.flags != in_parameters) return global(m, w, i, address, bytes, access, data);
  if (address % bytes || address + bytes > u64(m.launch->parameter_bytes)) fault(m, w, i, "parameter bytes " + std::to_string(address) + " to " + std::to_string(address + bytes) + " of " + std::to_string(m.launch->parameter_bytes));
  return const_cast<char*>(m.launch->parameters) + address;
}

static u64 read_element(const char* from, int bytes, bool is_signed) {
  u64 value = 0;
  std::memcpy(&value, from, bytes);
  if (is_signed && bytes < 8 && value >> (8 * bytes - 1)) value |= ~u64(0) << (8 * bytes);
  return value;
}
static void write_register(Warp& w, const Instruction& i, int operand, int lane, u64 value) {
  std::memcpy(w.registers + i.operand[operand] + lane * i.width[operand], &value, i.width[operand]);
}
static u64 read_register(Warp& w, const Instruction& i, int operand, int lane) {
  u64 value = 0;
  std::memcpy(&value, w.registers + i.operand[operand] + lane * i.width[operand], i.width[operand]);
  return value;
}

// What an access costs: sectors of 32 bytes in global memory, passes over 32 banks of 4 bytes in shared memory.
static void count_traffic(Machine& m, Warp& w, const Instruction& i, int operand, int bytes) {
  if (i.flags == in_parameters) return;
  i64& traffic = m.launch->traffic[w.at];
  u64 words[LANES * 4];
  int count = 0;
  const int step = i.flags == in_shared ? 4 : 32;
  const int lanes_a_pass = i.flags == in_shared && bytes > 4 ? 128 / bytes : LANES;
  for (int begin = 0; begin < LANES; begin += lanes_a_pass) {
    count = 0;
    const u32 group = lanes_a_pass == LANES ? ~0u : ((1u << lanes_a_pass) - 1) << begin;
    each_lane(w.active & group, [&](int l) {
      const u64 address = address_of(w, i, operand, l);
      for (u64 word = address / step; word <= (address + bytes - 1) / step; ++word) words[count++] = word;
    });
    std::sort(words, words + count);
    count = int(std::unique(words, words + count) - words);
    if (i.flags != in_shared) traffic += count;
    else {
      int banks[32] = {}, most = 0;
      for (int k = 0; k < count; ++k) most = std::max(most, ++banks[words[k] % 32]);
      traffic += most;
    }
  }
}

// ld d..., [address]
static Next load(Machine& m, Warp& w, const Instruction& i) {
  const int bytes = i.bytes * i.elements, address = i.elements;
  count_traffic(m, w, i, address, bytes);
  each_lane(w.active, [&](int l) {
    const char* from = locate(m, w, i, address, l, bytes, Access::read);
    u64 values[8];
    for (int e = 0; e < i.elements; ++e) values[e] = read_element(from + e * i.bytes, i.bytes, i.is_signed);
    for (int e = 0; e < i.elements; ++e) write_register(w, i, e, l, values[e]);
  });
  return Next::following;
}
// st [address], a...
static Next store(Machine& m, Warp& w, const Instruction& i) {
  const int bytes = i.bytes * i.elements;
  count_traffic(m, w, i, 0, bytes);
  each_lane(w.active, [&](int l) {
    char data[64];
    for (int e = 0; e < i.elements; ++e) {
      const u64 value = read_register(w, i, 1 + e, l);
      std::memcpy(data + e * i.bytes, &value, i.bytes);
    }
    std::memcpy(locate(m, w, i, 0, l, bytes, Access::write, data), data, bytes);
  });
  ++m.events;
  return Next::following;
}
// atom d, [address], b: add or inc of 32 bits. acq_rel on global memory orders blocks.
template <class F> static Next atomic_update(Machine& m, Warp& w, const Instruction& i, F f) {
  each_lane(w.active, [&](int l) {
    char* at = locate(m, w, i, 1, l, 4, Access::atomic);
    u32 old;
    std::memcpy(&old, at, 4);
    const u32 now = f(old, w.lanes<u32>(i.operand[2])[l]);
    std::memcpy(at, &now, 4);
    w.lanes<u32>(i.operand[0])[l] = old;
    if (!i.is_signed) return;  // .acq_rel
    auto& made = m.memory.released_at[u64(at)];
    for (const auto& [block, times] : made) m.memory.acquired[block] = std::max(m.memory.acquired[block], times);
    made[m.block_number] = ++m.memory.released;
    for (const auto& [block, times] : m.memory.acquired) made[block] = std::max(made[block], times);
  });
  ++m.events;
  return Next::following;
}

// ---- Data Movement: cp.async ----------------------------------------------------------------------------------------

// cp.async [shared], [global], bytes {, bytes of the source}
static Next copy_async(Machine& m, Warp& w, const Instruction& i) {
  i64& traffic = m.launch->traffic[w.at];
  each_lane(w.active, [&](int l) {
    const i64 displacement = i.immediate;
    const u64 target = (i.width[0] == 8 ? w.lanes<u64>(i.operand[0])[l] : u64(w.lanes<u32>(i.operand[0])[l])) + u64(displacement);
    const u64 source = w.lanes<u64>(i.operand[1])[l] + u64(i64(i.elements));
    const i32 from_source = i.count > 2 ? i32(w.lanes<u32>(i.operand[2])[l]) : i.bytes;
    if (from_source < 0 || from_source > i.bytes) fault(m, w, i, "a source of " + std::to_string(from_source) + " bytes for a copy of " + std::to_string(i.bytes));
    if (source % i.bytes) fault(m, w, i, "address " + hexadecimal(source) + " is no multiple of " + std::to_string(i.bytes));
    for (int b = 0; b < from_source; b += 4) global(m, w, i, source + b, std::min(4, from_source - b), Access::read);
    const u64 offset = shared_offset(m, w, i, target, i.bytes);
    for (u64 g = offset / m.memory.shared_granule; g <= (offset + i.bytes - 1) / m.memory.shared_granule; ++g) {
      shared(m, w, i, target + (g * m.memory.shared_granule - offset), 1, Access::write);
      m.memory.shared_records[g].in_flight = 1;
    }
    w.copies.push_back({source, target, i.bytes, from_source, l, w.committed[l], w.issued++});
    traffic += (i.bytes + 31) / 32;
  });
  return Next::following;
}
static Next commit_group(Machine&, Warp& w, const Instruction&) {
  each_lane(w.active, [&](int l) { ++w.committed[l]; });
  return Next::following;
}
static Next wait_group(Machine& m, Warp& w, const Instruction& i) {
  const i64 left = w.lanes<u32>(i.operand[0])[first(w.active)];
  const u32 active = w.active;
  land_some(m, w, i, [&](const Copy& copy) { return (active >> copy.lane & 1) && copy.group < w.committed[copy.lane] - left; });
  return Next::following;
}
static Next wait_all(Machine& m, Warp& w, const Instruction& i) {
  const u32 active = w.active;
  land_some(m, w, i, [&](const Copy& copy) { return active >> copy.lane & 1; });
  return Next::following;
}
static Next arrive_after_copies(Machine& m, Warp& w, const Instruction& i) {
  each_lane(w.active, [&](int l) { w.arrivals.push_back({address_of(w, i, 0, l), l, w.at, w.issued}); });
  if (m.launch->schedule == 0) fire(m, w, ~size_t(0));
  return Next::following;
}

// ---- Warp Level Matrix Instructions: ldmatrix, stmatrix, mma --------------------------------------------------------

template <bool TRANSPOSED> static Next load_matrices(Machine& m, Warp& w, const Instruction& i) {
  if (w.active != ~0u) fault(m, w, i, "ldmatrix needs all lanes");
  const int matrices = i.count - 1;
  u16 rows[4][8][8];
  i64& traffic = m.launch->traffic[w.at];
  traffic += matrices;
  for (int x = 0; x < matrices; ++x)
    for (int r = 0; r < 8; ++r) std::memcpy(rows[x][r], shared(m, w, i, address_of(w, i, matrices, x * 8 + r), 16, Access::read), 16);
  for (int x = 0; x < matrices; ++x) {
    u32* d = w.lanes<u32>(i.operand[x]);
    for (int l = 0; l < LANES; ++l) {
      const int r = l / 4, c = l % 4 * 2;
      const u16 low = TRANSPOSED ? rows[x][c][r] : rows[x][r][c], high = TRANSPOSED ? rows[x][c + 1][r] : rows[x][r][c + 1];
      d[l] = low | u32(high) << 16;
    }
  }
  return Next::following;
}
template <bool TRANSPOSED> static Next store_matrices(Machine& m, Warp& w, const Instruction& i) {
  if (w.active != ~0u) fault(m, w, i, "stmatrix needs all lanes");
  const int matrices = i.count - 1;
  m.launch->traffic[w.at] += matrices;
  for (int x = 0; x < matrices; ++x) {
    u16 rows[8][8];
    const u32* a = w.lanes<u32>(i.operand[1 + x]);
    for (int l = 0; l < LANES; ++l)
      for (int h = 0; h < 2; ++h) (TRANSPOSED ? rows[l % 4 * 2 + h][l / 4] : rows[l / 4][l % 4 * 2 + h]) = u16(a[l] >> 16 * h);
    for (int r = 0; r < 8; ++r) std::memcpy(shared(m, w, i, address_of(w, i, 0, x * 8 + r), 16, Access::write, reinterpret_cast<const char*>(rows[r])), rows[r], 16);
  }
  ++m.events;
  return Next::following;
}

// mma.m16n8k16 (16-bit A, B) and m16n8k32 (8-bit A, B), row.col, f32 accumulators. Products are exact; how the tensor
// core sums them is not specified, so `tensor_order` chooses: results must not depend on it beyond their stated error.
template <int K, class F> static Next mma(Machine& m, Warp& w, const Instruction& i, F element) {
  if (w.active != ~0u) fault(m, w, i, "mma needs all lanes");
  constexpr int BITS = K == 16 ? 16 : 8, EACH = 32 / BITS;
  float A[16][K], B[8][K];
  for (int l = 0; l < LANES; ++l) {
    const int g = l / 4, t = l % 4;
    for (int r = 0; r < 4; ++r) {
      const u32 bits = w.lanes<u32>(i.operand[4 + r])[l];
      for (int e = 0; e < EACH; ++e) A[g + r % 2 * 8][t * EACH + e + r / 2 * (K / 2)] = element(bits >> BITS * e);
    }
    for (int r = 0; r < 2; ++r) {
      const u32 bits = w.lanes<u32>(i.operand[8 + r])[l];
      for (int e = 0; e < EACH; ++e) B[g][t * EACH + e + r * (K / 2)] = element(bits >> BITS * e);
    }
  }
  float D[16][8];
  for (int l = 0; l < LANES; ++l)
    for (int r = 0; r < 4; ++r) D[l / 4 + r / 2 * 8][l % 4 * 2 + r % 2] = w.lanes<float>(i.operand[10 + r])[l];
  const int order = m.launch->tensor_order;
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      const float *a = A[row], *b = B[column];
      if (order == 1) {
        float sum = D[row][column];
        for (int k = 0; k < K; ++k) sum = std::fma(a[k], b[k], sum);
        D[row][column] = canonical(sum);
        continue;
      }
      double sum = D[row][column];
      for (int k = 0; k < K; ++k) {
        if (order == 2 && k == K / 2) sum = double(float(sum));
        sum += double(a[k]) * double(b[k]);
      }
      float rounded = float(sum);
      if (order == 2 && std::fabs(double(rounded)) > std::fabs(sum)) rounded = std::nextafterf(rounded, 0.0f);
      D[row][column] = canonical(rounded);
    }
  for (int l = 0; l < LANES; ++l)
    for (int r = 0; r < 4; ++r) w.lanes<float>(i.operand[r])[l] = D[l / 4 + r / 2 * 8][l % 4 * 2 + r % 2];
  return Next::following;
}

// ---- Data Movement: mov of vectors ----------------------------------------------------------------------------------

static Next pack(Machine&, Warp& w, const Instruction& i) {
  each_lane(w.active, [&](int l) {
    u64 value = 0;
    for (int e = i.count - 2; e >= 0; --e) value = value << (8 * i.width[1]) | read_register(w, i, 1 + e, l);
    write_register(w, i, 0, l, value);
  });
  return Next::following;
}
static Next unpack(Machine&, Warp& w, const Instruction& i) {
  const int last = i.count - 1;
  each_lane(w.active, [&](int l) {
    u64 value = read_register(w, i, last, l);
    for (int e = 0; e < last; ++e, value >>= 8 * i.width[0]) write_register(w, i, e, l, value);
  });
  return Next::following;
}

// ---- Integer and Floating-Point Arithmetic --------------------------------------------------------------------------

template <class T> static T clamped_shift_left(T a, u32 b) { return b >= 8 * sizeof(T) ? T(0) : T(a << b); }
template <class T> static T clamped_shift_right(T a, u32 b) {
  const u32 most = 8 * sizeof(T) - 1;
  return b > most ? (std::is_signed_v<T> && a < 0 ? T(-1) : T(0)) : T(a >> b);
}
template <class T> static T bit_field(T a, u32 position, u32 length) {
  constexpr u32 BITS = 8 * sizeof(T);
  position &= 255, length &= 255;
  if (length == 0) return 0;
  T result = 0;
  const T sign = T(std::is_signed_v<T> ? a >> std::min(position + length - 1, BITS - 1) & 1 : 0);
  for (u32 b = 0; b < BITS; ++b) {
    const T bit = b < length && position + b < BITS ? T(a >> (position + b) & 1) : sign;
    result = T(result | T(std::make_unsigned_t<T>(bit) << b));
  }
  return result;
}
template <class T, bool REMAINDER> static Next divide(Machine& m, Warp& w, const Instruction& i) {
  const T* b = w.lanes<T>(i.operand[2]);
  return each<T, T>(w, i, [&](T a, int l) {
    if (b[l] == 0) fault(m, w, i, "division by zero");
    if (std::is_signed_v<T> && b[l] == T(-1)) return REMAINDER ? T(0) : T(0 - std::make_unsigned_t<T>(a));
    return REMAINDER ? T(a % b[l]) : T(a / b[l]);
  });
}
static float rounded_down(float a, float b, float c) {
  // The product of two floats is exact in double; adding may round, and the remainder says which way.
  const double product = double(a) * double(b), sum = product + double(c);
  const double error = (product - (sum - (sum - product))) + (double(c) - (sum - product));
  float result = float(sum);
  if (double(result) > sum || (double(result) == sum && error < 0)) result = std::nextafterf(result, -INFINITY);
  return canonical(result);
}
static float smaller(float a, float b) { return a != a ? (b != b ? as_float(0x7fffffff) : b) : b != b ? a : (a < b || (a == b && std::signbit(a))) ? a : b; }
static float greater(float a, float b) { return a != a ? (b != b ? as_float(0x7fffffff) : b) : b != b ? a : (a > b || (a == b && !std::signbit(a))) ? a : b; }

#define INTEGERS(NAME, E) {NAME ".b16", BINARY(u16, u16, E)}, {NAME ".b32", BINARY(u32, u32, E)}, {NAME ".b64", BINARY(u64, u64, E)}
#define SHIFT(NAME, T, F) {NAME, HANDLER { return ternary<T, T, u32>(w, with_count(i), [](T a, T, u32 c) { return F(a, c); }); }}
// A shift's count is a 32-bit operand whatever it shifts: as the third operand of `ternary`.
static Instruction with_count(const Instruction& i) {
  Instruction copy = i;
  copy.operand[3] = i.operand[2];
  copy.operand[2] = i.operand[1];
  return copy;
}
#define COMPARE(TYPE, T)                                                                              \
  {"setp.eq." TYPE, BINARY(i32, T, -(a == b))}, {"setp.ne." TYPE, BINARY(i32, T, -(a != b))},        \
  {"setp.lt." TYPE, BINARY(i32, T, -(a < b))}, {"setp.le." TYPE, BINARY(i32, T, -(a <= b))},         \
  {"setp.gt." TYPE, BINARY(i32, T, -(a > b))}, {"setp.ge." TYPE, BINARY(i32, T, -(a >= b))}
#define SELECT(NAME, T)                                                                               \
  {NAME, HANDLER { return ternary<T, T, i32>(w, i, [](T a, T b, i32 p) { return p ? a : b; }); }}
#define APPROXIMATE(NAME, E, BOUND, IN, OUT)                                                          \
  {NAME, HANDLER { return each<float, float>(w, i, [&](float a, int) { a = IN(a); return OUT(approximate(m, E, BOUND)); }); }}
#define SAME(x) (x)
#define PAIRS(NAME, E) {NAME, HANDLER {                                                               \
    const Pair *a = w.lanes<Pair>(i.operand[1]), *b = w.lanes<Pair>(i.operand[2]), *c = w.lanes<Pair>(i.operand[i.count - 1]); \
    const auto f = [](float a, float b, float c [[maybe_unused]]) { return canonical(E); };            \
    return write<Pair>(w, i, [=](int l) { return Pair{f(a[l].x, b[l].x, c[l].x), f(a[l].y, b[l].y, c[l].y)}; }); }}

#define MIXED(TYPE, FROM)                                                                             \
  {"add.rn.f32." TYPE, HANDLER { return mixed<FROM>(w, i, [](float a, float, float c) { return a + c; }, 2); }}, \
  {"sub.rn.f32." TYPE, HANDLER { return mixed<FROM>(w, i, [](float a, float, float c) { return a - c; }, 2); }}, \
  {"fma.rn.f32." TYPE, HANDLER { return mixed<FROM>(w, i, [](float a, float b, float c) { return std::fma(a, b, c); }, 3); }}
template <float (*FROM)(u16), class F> static Next mixed(Warp& w, const Instruction& i, F f, int last) {
  const u16 *a = w.lanes<u16>(i.operand[1]), *b = w.lanes<u16>(i.operand[last - 1]);
  const float* c = w.lanes<float>(i.operand[last]);
  return write<float>(w, i, [=](int l) { return canonical(f(FROM(a[l]), FROM(b[l]), c[l])); });
}

static const Entry ENTRIES[] = {
    // Integer Arithmetic Instructions; add, sub and mul.lo do not ask for a sign
    INTEGERS("add", a + b), INTEGERS("sub", a - b), INTEGERS("mul.lo", u64(a) * b),
    INTEGERS("and", a & b), INTEGERS("or", a | b), INTEGERS("xor", a ^ b),
    {"mad.lo.b16", TERNARY(u16, u16, u16, u32(a) * b + c)}, {"mad.lo.b32", TERNARY(u32, u32, u32, a * b + c)},
    {"mad.lo.b64", TERNARY(u64, u64, u64, a * b + c)},
    {"mul.hi.u16", BINARY(u16, u16, u32(a) * b >> 16)}, {"mul.hi.u32", BINARY(u32, u32, u64(a) * b >> 32)},
    {"mul.hi.s32", BINARY(i32, i32, i64(a) * b >> 32)},
    {"mul.wide.u16", BINARY(u32, u16, u32(a) * b)}, {"mul.wide.s16", BINARY(i32, i16, i32(a) * b)},
    {"mul.wide.u32", BINARY(u64, u32, u64(a) * b)}, {"mul.wide.s32", BINARY(i64, i32, i64(a) * b)},
    {"mad.wide.u32", TERNARY(u64, u32, u64, u64(a) * b + c)}, {"mad.wide.s32", TERNARY(u64, i32, u64, u64(i64(a) * b) + c)},
    {"div.u16", divide<u16, false>}, {"div.u32", divide<u32, false>}, {"div.s32", divide<i32, false>},
    {"div.u64", divide<u64, false>}, {"div.s64", divide<i64, false>}, {"rem.u16", divide<u16, true>},
    {"rem.u32", divide<u32, true>}, {"rem.s32", divide<i32, true>}, {"rem.u64", divide<u64, true>},
    {"rem.s64", divide<i64, true>},
    {"min.s32", BINARY(i32, i32, std::min(a, b))}, {"max.s32", BINARY(i32, i32, std::max(a, b))},
    {"min.u32", BINARY(u32, u32, std::min(a, b))}, {"max.u32", BINARY(u32, u32, std::max(a, b))},
    {"min.s64", BINARY(i64, i64, std::min(a, b))}, {"max.s64", BINARY(i64, i64, std::max(a, b))},
    {"min.u64", BINARY(u64, u64, std::min(a, b))}, {"max.u64", BINARY(u64, u64, std::max(a, b))},
    {"neg.s32", UNARY(u32, u32, 0 - a)}, {"neg.s64", UNARY(u64, u64, 0 - a)},
    {"abs.s32", UNARY(u32, i32, a < 0 ? 0 - u32(a) : u32(a))},
    {"popc.b32", UNARY(u32, u32, std::popcount(a))}, {"clz.b32", UNARY(u32, u32, std::countl_zero(a))},
    {"bfe.u32", HANDLER { const u32 *p = w.lanes<u32>(i.operand[2]), *n = w.lanes<u32>(i.operand[3]);
       return each<u32, u32>(w, i, [=](u32 a, int l) { return bit_field<u32>(a, p[l], n[l]); }); }},
    {"bfe.s32", HANDLER { const u32 *p = w.lanes<u32>(i.operand[2]), *n = w.lanes<u32>(i.operand[3]);
       return each<i32, i32>(w, i, [=](i32 a, int l) { return bit_field<i32>(a, p[l], n[l]); }); }},

    // Logic and Shift Instructions
    {"not.b16", UNARY(u16, u16, ~a)}, {"not.b32", UNARY(u32, u32, ~a)}, {"not.b64", UNARY(u64, u64, ~a)},
    {"not.pred", UNARY(i32, i32, ~a)}, {"and.pred", BINARY(i32, i32, a & b)}, {"or.pred", BINARY(i32, i32, a | b)},
    {"xor.pred", BINARY(i32, i32, a ^ b)},
    SHIFT("shl.b16", u16, clamped_shift_left), SHIFT("shl.b32", u32, clamped_shift_left), SHIFT("shl.b64", u64, clamped_shift_left),
    SHIFT("shr.u16", u16, clamped_shift_right), SHIFT("shr.s16", i16, clamped_shift_right), SHIFT("shr.u32", u32, clamped_shift_right),
    SHIFT("shr.s32", i32, clamped_shift_right), SHIFT("shr.u64", u64, clamped_shift_right), SHIFT("shr.s64", i64, clamped_shift_right),

    // Comparison and Selection Instructions
    COMPARE("u16", u16), COMPARE("s16", i16), COMPARE("u32", u32), COMPARE("s32", i32), COMPARE("u64", u64),
    COMPARE("s64", i64), COMPARE("f32", float),
    {"setp.equ.f32", BINARY(i32, float, -!(a < b || a > b))}, {"setp.neu.f32", BINARY(i32, float, -!(a == b))},
    {"setp.ltu.f32", BINARY(i32, float, -!(a >= b))}, {"setp.leu.f32", BINARY(i32, float, -!(a > b))},
    {"setp.gtu.f32", BINARY(i32, float, -!(a <= b))}, {"setp.geu.f32", BINARY(i32, float, -!(a < b))},
    {"setp.num.f32", BINARY(i32, float, -(a == a && b == b))}, {"setp.nan.f32", BINARY(i32, float, -(a != a || b != b))},
    SELECT("selp.b16", u16), SELECT("selp.b32", u32), SELECT("selp.b64", u64),

    // Floating-Point Instructions. ptxas may fuse mul and add that carry no rounding; here each rounds (README).
    {"add.f32", BINARY(float, float, canonical(a + b))}, {"sub.f32", BINARY(float, float, canonical(a - b))},
    {"mul.f32", BINARY(float, float, canonical(a * b))}, {"fma.rn.f32", TERNARY(float, float, float, canonical(std::fma(a, b, c)))},
    {"add.ftz.f32", BINARY(float, float, flushed(canonical(flushed(a) + flushed(b))))},
    {"sub.ftz.f32", BINARY(float, float, flushed(canonical(flushed(a) - flushed(b))))},
    {"mul.ftz.f32", BINARY(float, float, flushed(canonical(flushed(a) * flushed(b))))},
    {"fma.rn.ftz.f32", TERNARY(float, float, float, flushed(canonical(std::fma(flushed(a), flushed(b), flushed(c)))))},
    {"fma.rm.f32", HANDLER { const float *b = w.lanes<float>(i.operand[2]), *c = w.lanes<float>(i.operand[3]);
       return each<float, float>(w, i, [=](float a, int l) { return rounded_down(a, b[l], c[l]); }); }},
    {"min.f32", BINARY(float, float, smaller(a, b))}, {"max.f32", BINARY(float, float, greater(a, b))},
    {"min3.f32", TERNARY(float, float, float, smaller(smaller(a, b), c))},
    {"max3.f32", TERNARY(float, float, float, greater(greater(a, b), c))},
    {"neg.f32", UNARY(u32, u32, a ^ 0x80000000u)}, {"abs.f32", UNARY(u32, u32, a & 0x7fffffffu)},
    PAIRS("add.f32x2", a + b), PAIRS("sub.f32x2", a - b), PAIRS("mul.f32x2", a * b), PAIRS("fma.rn.f32x2", std::fma(a, b, c)),
    {"rcp.rn.f32", UNARY(float, float, canonical(1.0f / a))},
    {"div.rn.f32", BINARY(float, float, canonical(a / b))}, {"sqrt.rn.f32", UNARY(float, float, canonical(std::sqrt(a)))},
    // "max ulp error of 2"; for |b| from 2^126 to 2^128 it may also be 0, which is not modelled
    {"div.full.f32", HANDLER { const float* b = w.lanes<float>(i.operand[2]);
       return each<float, float>(w, i, [&](float a, int l) { return approximate(m, double(a) / double(b[l]), 0x1p-23); }); }},
    APPROXIMATE("ex2.approx.f32", std::exp2(double(a)), 0x1p-22, SAME, SAME),
    APPROXIMATE("ex2.approx.ftz.f32", std::exp2(double(a)), 0x1p-22, flushed, flushed),
    APPROXIMATE("lg2.approx.f32", std::log2(double(a)), 0x1p-22, SAME, SAME),
    APPROXIMATE("rsqrt.approx.f32", 1 / std::sqrt(double(a)), 0x1.13p-23, SAME, SAME),
    APPROXIMATE("rsqrt.approx.ftz.f32", 1 / std::sqrt(double(a)), 0x1.13p-23, flushed, flushed),
    APPROXIMATE("sqrt.approx.ftz.f32", std::sqrt(double(a)), 0x1p-23, flushed, flushed),
    APPROXIMATE("rcp.approx.ftz.f32", 1 / double(a), 0x1p-23, flushed, flushed),

    // Half Precision and Mixed Precision Floating-Point Instructions
    {"mul.bf16x2", BINARY(u32, u32, to_bf16(from_bf16(u16(a)) * from_bf16(u16(b))) | u32(to_bf16(from_bf16(u16(a >> 16)) * from_bf16(u16(b >> 16)))) << 16)},
    MIXED("bf16", from_bf16), MIXED("f16", from_f16),

    // Data Movement and Conversion Instructions: mov, cvt
    {"mov.b16", UNARY(u16, u16, a)}, {"mov.b32", UNARY(u32, u32, a)}, {"mov.b64", UNARY(u64, u64, a)},
    {"pack", pack}, {"unpack", unpack},
    {"cvt.s64.s32", UNARY(i64, i32, a)}, {"cvt.u64.u32", UNARY(u64, u32, a)}, {"cvt.u32.u64", UNARY(u32, u64, a)},
    {"cvt.u16.u32", UNARY(u16, u32, a)}, {"cvt.u32.u16", UNARY(u32, u16, a)}, {"cvt.s32.s16", UNARY(i32, i16, a)},
    {"cvt.u64.u16", UNARY(u64, u16, a)}, {"cvt.s64.s16", UNARY(i64, i16, a)}, {"cvt.u16.u64", UNARY(u16, u64, a)},
    {"cvt.rn.f32.s32", UNARY(float, i32, a)}, {"cvt.rn.f32.u32", UNARY(float, u32, a)},
    {"cvt.f32.bf16", UNARY(float, u16, canonical(from_bf16(a)))}, {"cvt.f32.f16", UNARY(float, u16, canonical(from_f16(a)))},
    {"cvt.rn.bf16.f32", UNARY(u16, float, to_bf16(a))}, {"cvt.rz.bf16.f32", UNARY(u16, float, to_bf16_towards_zero(a))},
    {"cvt.rn.f16.f32", UNARY(u16, float, to_f16(a))}, {"cvt.bf16.f16", UNARY(u16, u16, to_bf16(from_f16(a)))},
    {"cvt.rn.bf16x2.f32", BINARY(u32, float, u32(to_bf16(a)) << 16 | to_bf16(b))},
    {"cvt.rn.f16x2.f32", BINARY(u32, float, u32(to_f16(a)) << 16 | to_f16(b))},
    {"cvt.rn.f16x2.e4m3x2", HANDLER { return each<u32, u16>(w, i, [](u16 a, int) { return to_f16(from_e4m3(u8(a))) | u32(to_f16(from_e4m3(u8(a >> 8)))) << 16; }); }},
    {"cvt.sat.f32.f32", UNARY(float, float, a > 0 ? (a < 1 ? a : 1.0f) : 0.0f)},
    {"cvta.to.global.u64", UNARY(u64, u64, a)}, {"cvta.shared.u64", UNARY(u64, u64, a + GENERIC_SHARED)},
    {"cvta.to.shared.u64", UNARY(u64, u64, a - GENERIC_SHARED)},

    // Data Movement and Conversion Instructions: memory
    {"ld", load}, {"st", store}, {"cp.async", copy_async}, {"cp.async.commit_group", commit_group},
    {"cp.async.wait_group", wait_group}, {"cp.async.wait_all", wait_all},
    {"cp.async.mbarrier.arrive.noinc", arrive_after_copies},
    {"createpolicy", HANDLER { return write<u64>(w, i, [](int) { return u64(0); }); }},

    // Parallel Synchronization and Communication Instructions
    {"bar.sync", bar_sync}, {"bar.warp.sync", bar_warp},
    {"shfl.sync.idx.b32", shfl<0>}, {"shfl.sync.up.b32", shfl<1>}, {"shfl.sync.down.b32", shfl<2>}, {"shfl.sync.bfly.b32", shfl<3>},
    {"vote.sync.ballot.b32", ballot}, {"vote.sync.any.pred", vote<false>}, {"vote.sync.all.pred", vote<true>},
    {"redux.sync.add.s32", HANDLER { return redux<u32>(m, w, i, [](u32 a, u32 b) { return a + b; }); }},
    {"redux.sync.max.u32", HANDLER { return redux<u32>(m, w, i, [](u32 a, u32 b) { return std::max(a, b); }); }},
    {"redux.sync.min.u32", HANDLER { return redux<u32>(m, w, i, [](u32 a, u32 b) { return std::min(a, b); }); }},
    {"atom.add.u32", HANDLER { return atomic_update(m, w, i, [](u32 old, u32 b) { return old + b; }); }},
    {"atom.inc.u32", HANDLER { return atomic_update(m, w, i, [](u32 old, u32 b) { return old >= b ? 0 : old + 1; }); }},
    {"mbarrier.init", mbarrier_init}, {"mbarrier.arrive", mbarrier_arrive}, {"mbarrier.wait.parity", mbarrier_wait},
    {"griddepcontrol", HANDLER { (void)w; (void)i; return Next::following; }},  // what it waits for has happened

    // Warp Level Matrix Instructions
    {"ldmatrix", load_matrices<false>}, {"ldmatrix.trans", load_matrices<true>},
    {"stmatrix", store_matrices<false>}, {"stmatrix.trans", store_matrices<true>},
    {"mma.m16n8k16.bf16", HANDLER { return mma<16>(m, w, i, [](u32 x) { return from_bf16(u16(x)); }); }},
    {"mma.m16n8k16.f16", HANDLER { return mma<16>(m, w, i, [](u32 x) { return from_f16(u16(x)); }); }},
    {"mma.m16n8k32.e4m3", HANDLER { return mma<32>(m, w, i, [](u32 x) { return from_e4m3(u8(x)); }); }},

    // Control Flow Instructions
    {"bra", bra}, {"ret", leave}, {"exit", leave},
};

}  // namespace ptx
