// What the scheduler knows about one CUDA thread, and how a broken rule is reported.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "fiber.h"

namespace simt {

constexpr unsigned kWarp = 32;

// A kernel broke a rule of the programming model. The message names the source line, block, warp and lanes.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Extent {
  unsigned x = 1, y = 1, z = 1;
  std::uint64_t count() const { return std::uint64_t{x} * y * z; }
};

struct Site {
  const char* file = "";
  int line = 0;
  bool operator==(const Site& other) const { return line == other.line && std::strcmp(file, other.file) == 0; }
  std::string text() const { return std::string(file) + ":" + std::to_string(line); }
};

enum class State { ready, in_warp_collective, at_barrier, exited };

struct Warp;

struct Thread {
  Fiber fiber;
  Extent index;
  State state = State::exited;
  const char* operation = "";   // what it waits in
  Site site;                    // where
  unsigned mask = 0;            // the lanes it waits for
  const void* given = nullptr;  // its operand, on its own stack
  void* taken = nullptr;        // where its result goes, on its own stack
  void (*combine)(const Warp&, unsigned lane) = nullptr;

  std::string waits_in() const {
    if (state == State::exited) return "has left the kernel";
    if (state == State::ready) return "runs";
    std::string text = std::string("waits in ") + operation + " at " + site.text();
    if (state == State::in_warp_collective) text += " with mask " + hex(mask);
    return text;
  }

  static std::string hex(unsigned value) {
    char text[16];
    std::snprintf(text, sizeof text, "0x%08x", value);
    return text;
  }
};

// The lanes that meet in one collective; every one of them is parked, so its operand may be read.
struct Warp {
  Thread* lanes[kWarp] = {};
  unsigned mask = 0;

  bool has(unsigned lane) const { return lane < kWarp && (mask >> lane & 1u) != 0; }

  template <class T>
  const T& given(unsigned lane) const {
    return *static_cast<const T*>(lanes[lane]->given);
  }
  template <class T>
  T& taken(unsigned lane) const {
    return *static_cast<T*>(lanes[lane]->taken);
  }
};

}  // namespace simt
