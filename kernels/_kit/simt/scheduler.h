// Runs one block at a time: every thread until it waits or leaves, then whatever rendezvous is complete, and again.
// The rules of collectives are checked here, once every thread has gone as far as it can alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "shared_memory.h"
#include "thread.h"

namespace simt {

enum class Schedule { forward = 0, reverse = 1, random = 2 };

struct Launch {
  Extent grid;
  Extent block;
  std::size_t dynamic_shared_bytes = 0;
  Schedule schedule = Schedule::forward;
  std::uint64_t seed = 0;
};

class Scheduler {
 public:
  static Scheduler& instance() {
    static Scheduler scheduler;
    return scheduler;
  }

  // Runs body(argument) once a thread of the launch. Throws Fault, or invalid_argument for an impossible launch.
  void run(const Launch& launch, void (*body)(void*), void* argument) {
    check(launch);
    const std::lock_guard<std::mutex> one_launch_at_a_time(mutex_);
    launch_ = launch;
    random_.seed(launch.seed);
    while (threads_.size() < launch.block.count()) threads_.push_back(std::make_unique<Thread>());
    DynamicSharedMemory dynamic(launch.dynamic_shared_bytes);
    for (const std::uint64_t flat : order(launch.grid.count())) {
      block_index_ = unflatten(flat, launch.grid);
      poison_static_shared_memory();
      dynamic.poison();
      run_block(body, argument);
    }
  }

  // The rest of the public part is called by device code, on a fiber.

  void wait_in_warp(const char* operation, unsigned mask, const void* given, void* taken,
                    void (*combine)(const Warp&, unsigned), Site site) {
    running_->mask = mask;
    running_->given = given;
    running_->combine = combine;
    wait(State::in_warp_collective, operation, taken, site);
  }

  // Returns over how many threads of the block the predicate holds.
  int wait_at_barrier(const char* operation, bool predicate, Site site) {
    int count = predicate ? 1 : 0;
    wait(State::at_barrier, operation, &count, site);
    return count;
  }

  [[noreturn]] void trap(const std::string& why) {
    trap_ = why + " in " + name(*running_);
    while (true) Fiber::yield();
  }

  const Extent& thread_index() const { return running_->index; }
  const Extent& block_index() const { return block_index_; }
  const Extent& block_extent() const { return launch_.block; }
  const Extent& grid_extent() const { return launch_.grid; }
  unsigned lane() const { return flat_index(*running_) % kWarp; }

 private:
  static void check(const Launch& launch) {
    const Extent& block = launch.block;
    const Extent& grid = launch.grid;
    const auto text = [](const Extent& e) {
      return std::to_string(e.x) + " x " + std::to_string(e.y) + " x " + std::to_string(e.z);
    };
    if (block.count() == 0 || block.count() > 1024 || block.z > 64)
      throw std::invalid_argument("a block needs 1..1024 threads and at most 64 in z, got " + text(block));
    if (grid.count() == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
      throw std::invalid_argument("a grid needs 1..2^31-1 blocks in x, 1..65535 in y and z, got " + text(grid));
    if (launch.dynamic_shared_bytes > kSharedBytesPerBlock)
      throw std::invalid_argument("a block has at most " + std::to_string(kSharedBytesPerBlock) +
                                  " bytes of shared memory, got " + std::to_string(launch.dynamic_shared_bytes));
  }

  static Extent unflatten(std::uint64_t flat, const Extent& extent) {
    Extent index;
    index.x = static_cast<unsigned>(flat % extent.x);
    index.y = static_cast<unsigned>(flat / extent.x % extent.y);
    index.z = static_cast<unsigned>(flat / extent.x / extent.y);
    return index;
  }

  unsigned flat_index(const Thread& thread) const {
    return thread.index.x + launch_.block.x * (thread.index.y + launch_.block.y * thread.index.z);
  }

  // In which order blocks, or the threads of a block, have their turn.
  std::vector<std::uint64_t> order(std::uint64_t count) {
    std::vector<std::uint64_t> turns(count);
    for (std::uint64_t i = 0; i < count; ++i) turns[i] = launch_.schedule == Schedule::reverse ? count - 1 - i : i;
    if (launch_.schedule == Schedule::random) std::shuffle(turns.begin(), turns.end(), random_);
    return turns;
  }

  void wait(State state, const char* operation, void* taken, Site site) {
    running_->state = state;
    running_->operation = operation;
    running_->taken = taken;
    running_->site = site;
    Fiber::yield();
  }

  void run_block(void (*body)(void*), void* argument) {
    block_threads_ = static_cast<unsigned>(launch_.block.count());
    trap_.clear();
    for (unsigned i = 0; i < block_threads_; ++i) {
      threads_[i]->index = unflatten(i, launch_.block);
      threads_[i]->state = State::ready;
      threads_[i]->fiber.start(body, argument);
    }
    unsigned exited = 0;
    while (true) {
      for (const std::uint64_t turn : order(block_threads_)) {
        running_ = threads_[turn].get();
        if (running_->state != State::ready) continue;
        running_->state = State::exited;  // what it stays when the fiber does not come back waiting
        running_->fiber.resume();
        if (!trap_.empty()) throw Fault(trap_);
        if (running_->state == State::exited) ++exited;
      }
      if (exited == block_threads_) return;
      const bool warps_went_on = release_warps();
      if (!warps_went_on && !release_barrier()) throw Fault("no thread can go on: " + standing());
    }
  }

  bool release_warps() {
    bool released = false;
    for (unsigned first = 0; first < block_threads_; first += kWarp) {
      for (unsigned lane = 0; lane < kWarp && first + lane < block_threads_; ++lane) {
        if (threads_[first + lane]->state != State::in_warp_collective) continue;
        Warp warp;
        warp.mask = threads_[first + lane]->mask;
        if (!gather(first, lane, warp)) continue;
        for (unsigned other = 0; other < kWarp; ++other)
          if (warp.has(other)) combine(warp, other);
        for (unsigned other = 0; other < kWarp; ++other)
          if (warp.has(other)) warp.lanes[other]->state = State::ready;
        released = true;
      }
    }
    return released;
  }

  void combine(const Warp& warp, unsigned lane) const {
    try {
      warp.lanes[lane]->combine(warp, lane);
    } catch (const Fault& fault) {
      throw Fault(std::string(fault.what()) + ": " + name(*warp.lanes[lane]) + " " + warp.lanes[lane]->waits_in());
    }
  }

  // Collects the lanes that `lane` waits for. False while one of them may still come; a Fault when it never can.
  bool gather(unsigned first, unsigned lane, Warp& warp) const {
    const Thread& self = *threads_[first + lane];
    if (!warp.has(lane)) throw Fault("a lane is not in its own mask: " + name(self) + " " + self.waits_in());
    const auto where = [&] { return " (" + name(self) + " " + self.waits_in() + ")"; };
    for (unsigned other = block_threads_ - first; other < kWarp; ++other)
      if (warp.has(other))
        throw Fault("a mask names lane " + std::to_string(other) + ", which the block does not have" + where());
    bool complete = true;
    for (unsigned other = 0; other < kWarp; ++other) {
      if (!warp.has(other)) continue;
      Thread& peer = *threads_[first + other];
      if (peer.state == State::exited || peer.state == State::at_barrier)
        throw Fault("divergent collective: " + name(peer) + " " + peer.waits_in() + where());
      if (peer.state == State::in_warp_collective) {
        const bool same_call = peer.site == self.site && std::strcmp(peer.operation, self.operation) == 0;
        if (peer.mask == self.mask && !same_call)
          throw Fault("divergent collective: " + name(peer) + " " + peer.waits_in() + where());
        if (peer.mask != self.mask && (peer.mask >> lane & 1u) != 0)
          throw Fault("lanes disagree on the mask: " + name(peer) + " " + peer.waits_in() + where());
        complete = complete && peer.mask == self.mask;
      } else {
        complete = false;
      }
      warp.lanes[other] = &peer;
    }
    return complete;
  }

  // Called when no warp can go on: then every thread has to stand at one and the same barrier.
  bool release_barrier() {
    const Thread* first = nullptr;
    int held = 0;
    for (unsigned i = 0; i < block_threads_; ++i) {
      const Thread& thread = *threads_[i];
      if (thread.state != State::at_barrier) continue;
      if (first == nullptr) first = &thread;
      held += *static_cast<const int*>(thread.taken);
    }
    if (first == nullptr) return false;
    for (unsigned i = 0; i < block_threads_; ++i) {
      const Thread& thread = *threads_[i];
      const bool same_call = thread.state == State::at_barrier && thread.site == first->site &&
                             std::strcmp(thread.operation, first->operation) == 0;
      if (!same_call)
        throw Fault("divergent barrier: " + name(thread) + " " + thread.waits_in() + " (" + name(*first) + " " +
                    first->waits_in() + ")");
    }
    for (unsigned i = 0; i < block_threads_; ++i) {
      *static_cast<int*>(threads_[i]->taken) = held;
      threads_[i]->state = State::ready;
    }
    return true;
  }

  std::string name(const Thread& thread) const {
    char text[96];
    const unsigned flat = flat_index(thread);
    std::snprintf(text, sizeof text, "block (%u,%u,%u) warp %u lane %u", block_index_.x, block_index_.y,
                  block_index_.z, flat / kWarp, flat % kWarp);
    return text;
  }

  std::string standing() const {
    std::string text;
    for (unsigned i = 0; i < block_threads_; ++i)
      if (threads_[i]->state != State::exited) text += "\n  " + name(*threads_[i]) + " " + threads_[i]->waits_in();
    return text;
  }

  std::mutex mutex_;
  Launch launch_;
  Extent block_index_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Thread>> threads_;
  unsigned block_threads_ = 0;
  Thread* running_ = nullptr;
  std::string trap_;
};

// Runs kernel(arguments...) over the whole launch.
template <class... Parameters, class... Arguments>
void launch(const Launch& how, void (*kernel)(Parameters...), Arguments... arguments) {
  auto call = [&] { kernel(arguments...); };
  Scheduler::instance().run(how, [](void* closure) { (*static_cast<decltype(call)*>(closure))(); }, &call);
}

// One warp collective: every lane of the mask brings an In; combine computes each lane's Out from all of them.
// Host twins of warp-wide instructions (mma, ldmatrix, ...) are written with this.
template <class Out, class In>
Out rendezvous(const char* operation, unsigned mask, const In& given, Out (*combine)(const Warp&, unsigned lane),
               Site site) {
  struct Taken {
    Out value;
    Out (*combine)(const Warp&, unsigned);
  } taken{Out{}, combine};
  Scheduler::instance().wait_in_warp(
      operation, mask, &given, &taken,
      [](const Warp& warp, unsigned lane) {
        Taken& mine = warp.taken<Taken>(lane);
        mine.value = mine.combine(warp, lane);
      },
      site);
  return taken.value;
}

}  // namespace simt
