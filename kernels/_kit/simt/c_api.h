// What a test library adds to a kernel so that Python's ctypes can call it: a schedule, and faults as text.
//   extern "C" int run(const float* x, float* y, int n) {
//     return simt::guarded([&] { simt::launch(simt::with_schedule(grid, block), kernel, x, y, n); });
//   }
#pragma once

#include <exception>
#include <string>

#include "scheduler.h"

namespace simt {

inline Schedule& chosen_schedule() {
  static Schedule schedule = Schedule::forward;
  return schedule;
}
inline std::uint64_t& chosen_seed() {
  static std::uint64_t seed = 0;
  return seed;
}
inline std::string& last_fault() {
  static std::string text;
  return text;
}

inline Launch with_schedule(Extent grid, Extent block, std::size_t dynamic_shared_bytes = 0) {
  return Launch{grid, block, dynamic_shared_bytes, chosen_schedule(), chosen_seed()};
}

template <class Body>
int guarded(Body body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    last_fault() = error.what();
    return 1;
  }
}

}  // namespace simt

extern "C" {
__attribute__((used, visibility("default"))) inline void simt_choose_schedule(int schedule, unsigned long long seed) {
  simt::chosen_schedule() = static_cast<simt::Schedule>(schedule);
  simt::chosen_seed() = seed;
}
__attribute__((used, visibility("default"))) inline const char* simt_last_fault() {
  return simt::last_fault().c_str();
}
}
