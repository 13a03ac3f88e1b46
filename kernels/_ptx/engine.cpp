// Runs a decoded PTX program on the CPU: grid, blocks, warps, barriers, memory, and what each instruction does.
#include "arithmetic.h"
#include "machine.h"
#include "memory.h"

#include <algorithm>
#include <cfenv>
#include <cstdio>

namespace ptx {

// ---- the machine -------------------------------------------------------------------------------------------------

struct Special {
  i32 offset, which;  // which: 0..2 tid, 3..5 ntid, 6..8 ctaid, 9..11 nctaid, 12 laneid, 13 warpid
};

struct BlockBarrier {
  int arrived = 0, threads = 0;  // threads: 0 for all of the block
  std::vector<u32> clock;
  std::vector<std::pair<int, u32>> parties;  // warp, lanes
};

struct Launch {
  i32 grid[3], block[3];
  i64 register_bytes;
  const char* image;  // a warp's registers before it starts: the constants, and poison
  const Special* specials;
  i64 special_count;
  const char* parameters;
  i64 parameter_bytes;
  i64 shared_bytes;
  i32 shared_granule;
  const Allocation* allocations;
  i64 allocation_count;
  i32 schedule;     // 0 as numbered and until it waits, 1 from the last warp, 2 random slices
  i32 perturb;      // 0 none, 1 up, 2 down, 3 either way
  i32 tensor_order; // 0 rounded once, 1 a product at a time, 2 in halves, cut off
  i32 land_at_exit; // 1: the copies of a warp that exits land there; nothing promises it
  u64 seed;
  i64* executed;    // per instruction: warps that executed it, lanes of them, sectors or passes of its memory
  i64* lanes;
  i64* traffic;
  i64* partial;     // of those warps, how many with lanes missing
};

struct Machine {
  const Instruction* program;
  i64 length;
  const Launch* launch;
  Memory memory;
  std::vector<Warp> warps;
  std::vector<char> registers;
  std::map<int, BlockBarrier> barriers;
  std::vector<u32> exited;  // what the warps that have exited did happens before a barrier that no longer counts them
  i32 block[3] = {}, block_number = 0;
  i64 events = 0;
  u64 random = 0;
};

static u64 mixed(u64 x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
static u64 draw(Machine& m) { return m.random = mixed(m.random); }

static std::string lane_list(u32 bits) {
  if (bits == ~0u) return "all lanes";
  std::string text = std::has_single_bit(bits) ? "lane" : "lanes";
  for (int l = 0; l < LANES; ++l) {
    if (!(bits >> l & 1)) continue;
    int end = l;
    while (end < 31 && (bits >> (end + 1) & 1)) ++end;
    text += (text.back() == 'e' || text.back() == 's' ? " " : ", ") + std::to_string(l);
    if (end > l) text += "-" + std::to_string(end);
    l = end;
  }
  return text;
}

void fault(Machine& m, Warp& w, const Instruction& i, const std::string& what) {
  throw Fault(std::to_string(i.line) + "|block (" + std::to_string(m.block[0]) + ", " + std::to_string(m.block[1]) +
              ", " + std::to_string(m.block[2]) + "), warp " + std::to_string(w.index) + ", " +
              lane_list(w.active ? w.active : w.bits) + ": " + what);
}

float approximate(Machine& m, double exact, double bound) {
  if (m.launch->perturb == 0 || !std::isfinite(exact)) return canonical(float(exact));
  const double sign = m.launch->perturb == 1 ? 1 : m.launch->perturb == 2 ? -1 : (draw(m) & 1 ? 1 : -1);
  return float(exact * (1 + sign * bound));
}

// ---- memory ------------------------------------------------------------------------------------------------------

static std::string hexadecimal(u64 x) {
  char text[20];
  std::snprintf(text, sizeof text, "0x%llx", (unsigned long long)x);
  return text;
}

static void meet(std::vector<u32>& mine, const std::vector<u32>& theirs) {
  for (size_t k = 0; k < mine.size() && k < theirs.size(); ++k) mine[k] = std::max(mine[k], theirs[k]);
}

static bool before(Machine& m, Warp& w, const Touch& t) {
  if (t.block < 0) return true;
  if (t.block == m.block_number) return t.warp == w.index || t.clock <= w.clock[t.warp];
  const auto found = m.memory.acquired.find(t.block);
  return found != m.memory.acquired.end() && found->second > t.released;
}

static std::string who(Machine& m, const Touch& t) {
  return t.block == m.block_number ? "warp " + std::to_string(t.warp) + " of this block" : "block " + std::to_string(t.block);
}

char* global(Machine& m, Warp& w, const Instruction& i, u64 address, int bytes, Access access, const char* data) {
  Memory& memory = m.memory;
  if (address % bytes) fault(m, w, i, "address " + hexadecimal(address) + " is no multiple of " + std::to_string(bytes));
  const auto inside = [&](size_t k) {
    const Allocation& a = memory.allocations[k];
    return address >= a.begin && address + bytes <= a.begin + a.bytes;
  };
  if (memory.last >= memory.allocations.size() || !inside(memory.last)) {
    size_t low = 0, high = memory.allocations.size();
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (memory.allocations[middle].begin <= address) low = middle + 1; else high = middle;
    }
    if (low == 0 || !inside(low - 1)) {
      std::string where = " is in no tensor of the launch";
      if (low > 0) {
        const Allocation& a = memory.allocations[low - 1];
        where += ", " + std::to_string(address - a.begin) + " bytes into tensor " + std::to_string(low - 1) + " of " + std::to_string(a.bytes);
      }
      fault(m, w, i, std::to_string(bytes) + " bytes at " + hexadecimal(address) + where);
    }
    memory.last = low - 1;
  }
  const size_t index = memory.last;
  const Allocation& a = memory.allocations[index];
  const u64 offset = address - a.begin;
  if (a.elements)
    for (int b = 0; b < bytes; ++b)
      if (!a.elements[offset + b]) fault(m, w, i, "byte " + std::to_string(offset + b) + " of tensor " + std::to_string(index) + " lies between its rows");
  if (access != Access::read && a.elements && a.elements[offset] != 3) fault(m, w, i, "byte " + std::to_string(offset) + " of tensor " + std::to_string(index) + " is an input and is written");
  if (access != Access::read && !a.writable) fault(m, w, i, "tensor " + std::to_string(index) + " is an input and is written");
  if (!a.writable) return reinterpret_cast<char*>(address);
  if (a.written) {
    for (int b = 0; b < bytes; ++b) {
      if (access == Access::write) a.written[offset + b] = 1;
      else if (!a.written[offset + b]) fault(m, w, i, "byte " + std::to_string(offset + b) + " of tensor " + std::to_string(index) + " is read and was never written");
    }
  }
  auto& records = memory.records[index];
  if (records.empty()) records.resize((a.bytes + a.granule - 1) / a.granule);
  const bool same = data && !std::memcmp(reinterpret_cast<const char*>(address), data, bytes);
  const Touch now{m.block_number, w.index, w.clock[w.index], memory.released};
  for (u64 g = offset / a.granule; g <= (offset + bytes - 1) / a.granule; ++g) {
    GlobalRecord& r = records[g];
    const bool both_atomic = access == Access::atomic && r.atomic;
    if (!both_atomic && !same && !before(m, w, r.writer)) fault(m, w, i, "race: byte " + std::to_string(g * a.granule) + " of tensor " + std::to_string(index) + " was written by " + who(m, r.writer) + ", with nothing in between");
    if (access == Access::read) {
      r.reader = now;
      continue;
    }
    if (!both_atomic && !same && !before(m, w, r.reader)) fault(m, w, i, "race: byte " + std::to_string(g * a.granule) + " of tensor " + std::to_string(index) + " is written while " + who(m, r.reader) + " may still read it");
    r.writer = now;
    r.atomic = access == Access::atomic;
  }
  return reinterpret_cast<char*>(address);
}

static u64 shared_offset(Machine& m, Warp& w, const Instruction& i, u64 address, int bytes) {
  if (address >= GENERIC_SHARED) address -= GENERIC_SHARED;
  if (address % bytes) fault(m, w, i, "shared address " + std::to_string(address) + " is no multiple of " + std::to_string(bytes));
  const u64 size = m.memory.shared.size();
  if (address < SHARED_BEGIN || address - SHARED_BEGIN + bytes > size) {
    fault(m, w, i, std::to_string(bytes) + " bytes at shared offset " + std::to_string(i64(address - SHARED_BEGIN)) + ", the block has " + std::to_string(size));
  }
  return address - SHARED_BEGIN;
}

char* shared(Machine& m, Warp& w, const Instruction& i, u64 address, int bytes, Access access, const char* data) {
  Memory& memory = m.memory;
  const u64 offset = shared_offset(m, w, i, address, bytes);
  const int granule = memory.shared_granule;
  const bool same = data && !std::memcmp(memory.shared.data() + offset, data, bytes);
  for (u64 g = offset / granule; g <= (offset + bytes - 1) / granule; ++g) {
    SharedRecord& r = memory.shared_records[g];
    const auto place = [&] { return "shared byte " + std::to_string(g * granule); };
    if (r.in_flight) fault(m, w, i, place() + " belongs to a cp.async of warp " + std::to_string(r.writer) + " that nobody has waited for");
    const int begin = int(std::max<i64>(i64(offset) - i64(g * granule), 0));
    const int end = int(std::min<u64>(offset + bytes - g * granule, granule));
    const u8 touched = u8((1u << end) - (1u << begin));
    if (access != Access::write && (r.written & touched) != touched) fault(m, w, i, place() + " is read and was never written");
    if (!(same && (r.written & touched) == touched) && r.written && r.writer != w.index && r.clock > w.clock[r.writer])
      fault(m, w, i, "race: " + place() + " was written by warp " + std::to_string(r.writer) + ", with no barrier in between");
    u32* reads = memory.shared_reads.data() + g * memory.warps;
    if (access == Access::read) {
      reads[w.index] = w.clock[w.index];
      continue;
    }
    for (int other = 0; !same && other < memory.warps; ++other)
      if (other != w.index && reads[other] > w.clock[other])
        fault(m, w, i, "race: " + place() + " is written while warp " + std::to_string(other) + " may still read it");
    // Atomics of several warps do not race with each other: their result is ordered, so the record is left open.
    r.written |= touched;
    r.writer = u16(w.index);
    r.clock = access == Access::atomic ? 0 : w.clock[w.index];
  }
  return reinterpret_cast<char*>(memory.shared.data() + offset);
}

static void land(Machine& m, Warp& w, const Instruction& i, const Copy& copy) {
  const u64 offset = shared_offset(m, w, i, copy.target, copy.bytes);
  for (u64 g = offset / m.memory.shared_granule; g <= (offset + copy.bytes - 1) / m.memory.shared_granule; ++g) m.memory.shared_records[g].in_flight = 0;
  w.active = 1u << copy.lane;
  char* target = shared(m, w, i, copy.target, copy.bytes, Access::write);
  std::memset(target, 0, copy.bytes);
  if (copy.from_source) std::memcpy(target, reinterpret_cast<const char*>(copy.source), copy.from_source);
  ++m.events;
}

// Lands the copies that `wanted` picks, in the order of their issue.
template <class F> static void land_some(Machine& m, Warp& w, const Instruction& i, F wanted) {
  const u32 active = w.active;
  std::vector<Copy> left;
  for (const Copy& copy : w.copies) {
    if (wanted(copy)) land(m, w, i, copy); else left.push_back(copy);
  }
  w.copies.swap(left);
  w.active = active;
}

static void arrive(Machine& m, Warp& w, const Instruction& i, u64 address, int count) {
  const auto found = m.memory.barriers.find(shared_offset(m, w, i, address, 8));
  if (found == m.memory.barriers.end()) fault(m, w, i, "an mbarrier that was never initialised");
  SharedBarrier& b = found->second;
  if (b.clock.empty()) b.clock.resize(w.clock.size());
  meet(b.clock, w.clock);
  b.pending -= count;
  if (b.pending < 0) fault(m, w, i, "more arrivals than the " + std::to_string(b.expected) + " that the mbarrier expects");
  if (b.pending == 0) {
    ++b.phase;
    b.pending = b.expected;
    b.completed = b.clock;
  }
  ++m.events;
}

// The pending cp.async.mbarrier.arrive of a warp; each lands its lane's copies and arrives.
static bool fire(Machine& m, Warp& w, size_t most) {
  bool fired = false;
  while (!w.arrivals.empty() && most--) {
    const Arrival arrival = w.arrivals.front();
    w.arrivals.erase(w.arrivals.begin());
    const Instruction& i = m.program[arrival.at];
    land_some(m, w, i, [&](const Copy& copy) { return copy.lane == arrival.lane && copy.serial < arrival.serial; });
    arrive(m, w, i, arrival.barrier, 1);
    ++w.clock[w.index];
    fired = true;
  }
  return fired;
}

}  // namespace ptx

#include "instructions.h"

namespace ptx {

// ---- running -----------------------------------------------------------------------------------------------------

// Chooses the lanes that run next: those at the lowest instruction, or after a failed wait at another one.
static bool choose(Machine& m, Warp& w) {
  const u32 able = w.alive & ~w.waiting;
  const u32 free = able & ~w.held;
  if (!free) return false;
  const i32 spun = w.yielded ? w.at : -1;
  i32 best = -1;
  each_lane(free, [&](int l) {
    const bool better = best < 0 || (best == spun && w.pc[l] != spun) || (w.pc[l] < best && w.pc[l] != spun);
    if (better) best = w.pc[l];
  });
  w.bits = 0;
  w.others = i32(m.length);
  each_lane(able, [&](int l) {
    if (w.pc[l] == best) w.bits |= 1u << l;
    else if (!(w.held >> l & 1) && w.pc[l] > best) w.others = std::min(w.others, w.pc[l]);
  });
  w.held &= ~w.bits;
  w.at = best;
  lanes_of(w.bits, w.mask);
  return true;
}

enum class Stop { finished, waits, yields, slice };

static Stop run(Machine& m, Warp& w, i64 slice) {
  w.bits = 0;
  while (true) {
    if (!w.bits && !choose(m, w)) return w.alive ? Stop::waits : Stop::finished;
    w.yielded = false;
    while (w.bits) {
      const Instruction& i = m.program[w.at];
      w.effective = w.mask;
      w.active = w.bits;
      if (i.guard >= 0) {
        const i32* p = w.lanes<i32>(i.guard);
        for (int l = 0; l < LANES; ++l) w.guarded[l] = w.mask[l] & (p[l] ^ -i.guard_negated);
        w.active = bits_of(w.guarded);
        w.effective = w.guarded;
      }
      Next next = Next::following;
      if (w.active) {
        const i32 at = w.at;
        const u32 active = w.active;
        next = ENTRIES[i.handler].handler(m, w, i);
        if (!(w.held & active)) {
          m.launch->executed[at] += 1;
          m.launch->lanes[at] += std::popcount(active);
          m.launch->partial[at] += active != w.alive && active != ~0u;
        }
      }
      if (next == Next::following) ++w.at;
      if (w.bits && (w.at >= w.others || w.yielded || --slice <= 0)) {
        each_lane(w.bits, [&](int l) { w.pc[l] = w.at; });
        w.bits = 0;
        if (w.yielded) return Stop::yields;
        if (slice <= 0) return Stop::slice;
      }
    }
  }
}

static void start_block(Machine& m) {
  const Launch& launch = *m.launch;
  const int threads = launch.block[0] * launch.block[1] * launch.block[2];
  const int warps = (threads + LANES - 1) / LANES;
  m.barriers.clear();
  m.memory.barriers.clear();
  m.memory.acquired.clear();
  m.memory.released = 0;
  m.memory.warps = warps;
  m.memory.shared_granule = launch.shared_granule;
  const size_t granules = (launch.shared_bytes + launch.shared_granule - 1) / launch.shared_granule;
  m.memory.shared.assign(launch.shared_bytes, 0xff);
  m.memory.shared_records.assign(granules, {});
  m.memory.shared_reads.assign(granules * warps, 0);
  m.registers.resize(launch.register_bytes * warps + 64);
  char* aligned = reinterpret_cast<char*>((reinterpret_cast<u64>(m.registers.data()) + 63) & ~u64(63));
  m.warps.assign(warps, {});
  for (int index = 0; index < warps; ++index) {
    Warp& w = m.warps[index];
    w.index = index;
    w.registers = aligned + launch.register_bytes * index;
    std::memcpy(w.registers, launch.image, launch.register_bytes);
    const int lanes = std::min(LANES, threads - index * LANES);
    w.alive = lanes == LANES ? ~0u : (1u << lanes) - 1;
    w.clock.assign(warps, 0);
    m.exited.assign(warps, 0);
    w.clock[index] = 1;
    w.random = draw(m);
    for (i64 s = 0; s < launch.special_count; ++s) {
      const Special& special = launch.specials[s];
      u32* d = w.lanes<u32>(special.offset);
      for (int l = 0; l < LANES; ++l) {
        const int thread = index * LANES + l;
        const int tid[3] = {thread % launch.block[0], thread / launch.block[0] % launch.block[1], thread / launch.block[0] / launch.block[1]};
        const int axis = special.which % 3;
        d[l] = u32(special.which < 3 ? tid[axis] : special.which < 6 ? launch.block[axis] : special.which < 9 ? m.block[axis]
               : special.which < 12 ? launch.grid[axis] : special.which == 12 ? l : index);
      }
    }
  }
}

static void run_block(Machine& m) {
  start_block(m);
  const int warps = int(m.warps.size());
  std::vector<int> order(warps);
  for (int k = 0; k < warps; ++k) order[k] = m.launch->schedule == 1 ? warps - 1 - k : k;
  for (int idle = 0; idle < 256;) {
    const i64 events = m.events;
    bool alive = false, sliced = false;
    if (m.launch->schedule == 2)
      for (int k = warps - 1; k > 0; --k) std::swap(order[k], order[draw(m) % (k + 1)]);
    for (int index : order) {
      Warp& w = m.warps[index];
      if (!w.alive) continue;
      const Stop stop = run(m, w, m.launch->schedule == 2 ? i64(1 + draw(m) % 64) : INT64_MAX);
      alive |= w.alive != 0;
      sliced |= stop == Stop::slice;
    }
    if (!alive) {
      for (Warp& w : m.warps) fire(m, w, ~size_t(0));
      return;
    }
    if (sliced || m.events != events) {
      idle = 0;
      continue;
    }
    bool fired = false;
    for (int index : order) fired = fired || fire(m, m.warps[index], m.launch->schedule == 2 ? 1 : ~size_t(0));
    idle = fired ? 0 : idle + 1;
  }
  std::string where;
  Warp* stuck = nullptr;
  int line = 0;
  for (Warp& w : m.warps) {
    if (!w.alive) {
      where += "; warp " + std::to_string(w.index) + " has exited";
      continue;
    }
    if (!stuck || (w.waiting && !stuck->waiting)) stuck = &w;
    std::map<std::pair<int, int>, u32> places;
    each_lane(w.alive, [&](int l) { places[w.waiting >> l & 1 ? std::pair{w.barrier[l], 1} : std::pair{m.program[w.pc[l]].line, 0}] |= 1u << l; });
    for (const auto& [place, lanes] : places) where += "; warp " + std::to_string(w.index) + ", " + lane_list(lanes) + (place.second ? " waits at the barrier of line " : " at line ") + std::to_string(place.first);
    if (w.waiting) line = w.barrier[first(w.waiting)];
  }
  stuck->active = stuck->alive;
  Instruction at = m.program[stuck->pc[first(stuck->alive)]];
  if (line) at.line = line;
  fault(m, *stuck, at, "nobody can go on" + where);
}

}  // namespace ptx

// ---- what Python calls ----------------------------------------------------------------------------------------------

extern "C" {

int ptx_find(const char* name) {
  const int count = int(sizeof ptx::ENTRIES / sizeof ptx::ENTRIES[0]);
  for (int k = 0; k < count; ++k)
    if (!std::strcmp(ptx::ENTRIES[k].name, name)) return k;
  return -1;
}

const char* ptx_name(int index) {
  return index < int(sizeof ptx::ENTRIES / sizeof ptx::ENTRIES[0]) ? ptx::ENTRIES[index].name : nullptr;
}

int ptx_layout(int which) { return which == 0 ? sizeof(ptx::Instruction) : which == 1 ? sizeof(ptx::Launch) : sizeof(ptx::Allocation); }

// Runs the whole grid. Returns 0, or 1 with "line|what" in `message`.
int ptx_run(const ptx::Instruction* program, long length, const ptx::Launch* launch, char* message, long message_bytes) {
  ptx::Machine m;
  m.program = program;
  m.length = length;
  m.launch = launch;
  m.random = launch->seed;
  m.memory.allocations.assign(launch->allocations, launch->allocations + launch->allocation_count);
  m.memory.records.resize(launch->allocation_count);
  try {
    for (int z = 0; z < launch->grid[2]; ++z)
      for (int y = 0; y < launch->grid[1]; ++y)
        for (int x = 0; x < launch->grid[0]; ++x, ++m.block_number) {
          m.block[0] = x, m.block[1] = y, m.block[2] = z;
          ptx::run_block(m);
        }
  } catch (const ptx::Fault& error) {
    std::snprintf(message, message_bytes, "%s", error.what());
    return 1;
  }
  return 0;
}
}
