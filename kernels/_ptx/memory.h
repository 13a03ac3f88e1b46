// Global and shared memory of a launch, and what is known of every byte: whether it was written, by whom, and when.
#pragma once
#include "machine.h"

namespace ptx {

// One tensor that the launch may touch: `bytes` from `begin`, of which only some belong to elements.
struct Allocation {
  u64 begin, bytes;
  i32 writable;        // 0: a store is a fault
  i32 granule;         // bytes that share a record
  const u8* elements;  // null, or one byte a byte: 0 between rows, 1 an input, 3 may be written
  u8* written;         // null, or one byte a byte: 0 for what nothing has written yet
};

// Who wrote and who last read a granule of global memory. A block is known by its number and how often it released.
struct Touch {
  i32 block = -1, warp = 0;
  u32 clock = 0, released = 0;
};
struct GlobalRecord {
  Touch writer, reader;
  bool atomic = false;
};

struct SharedRecord {
  u32 clock = 0;
  u16 writer = 0;
  u8 written = 0;    // one bit a byte of the granule
  u8 in_flight = 0;  // the copies that have not landed
};

struct SharedBarrier {
  i32 expected = 0, pending = 0;
  i64 phase = 0;
  std::vector<u32> clock, completed;
};

struct Memory {
  std::vector<Allocation> allocations;
  std::vector<std::vector<GlobalRecord>> records;
  std::vector<u8> shared;
  std::vector<SharedRecord> shared_records;
  std::vector<u32> shared_reads;  // [granule][warp]: the clock of its last read
  int shared_granule = 1, warps = 1;
  std::unordered_map<u64, SharedBarrier> barriers;
  std::unordered_map<u64, std::map<i32, u32>> released_at;  // atomics' addresses: what they have made visible
  std::map<i32, u32> acquired;                              // of the running block
  u32 released = 0;
  size_t last = 0;
};

// The host address of `bytes` at a lane's address, after every check. `data` is what a store is about to write: the
// bytes that are there already may be written again at any time (Triton lets warps repeat a small tile).
enum class Access { read, write, atomic };
char* global(Machine&, Warp&, const Instruction&, u64 address, int bytes, Access, const char* data = nullptr);
char* shared(Machine&, Warp&, const Instruction&, u64 address, int bytes, Access, const char* data = nullptr);

}  // namespace ptx
