// A fiber: one CUDA thread's stack, switched to and from by the scheduler. Needs no operating-system thread.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace simt {

#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kStackBytes = 256 * 1024;  // redzones make frames several times larger
#else
constexpr std::size_t kStackBytes = 64 * 1024;
#endif

class Fiber {
 public:
  Fiber() {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    map_bytes_ = kStackBytes + page;
    void* map = mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (map == MAP_FAILED) throw std::bad_alloc();
    map_ = static_cast<char*>(map);
    stack_ = map_ + page;
    mprotect(map_, page, PROT_NONE);  // an overflowing frame faults instead of writing into its neighbour
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber() { munmap(map_, map_bytes_); }

  // Prepares the fiber to call entry(argument) at the next resume(). A fiber abandoned halfway may be started again.
  void start(void (*entry)(void*), void* argument) {
    entry_ = entry;
    argument_ = argument;
    finished_ = false;
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack_, kStackBytes);
    fake_stack_ = nullptr;
#endif
#if defined(__x86_64__)
    auto** top = reinterpret_cast<void**>(stack_ + kStackBytes);
    *--top = nullptr;  // so that the stack is 8 mod 16 at the first instruction, as after a call
    *--top = reinterpret_cast<void*>(&Fiber::trampoline);
    for (int saved_register = 0; saved_register < 6; ++saved_register) *--top = nullptr;
    stack_pointer_ = top;
#else
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_;
    context_.uc_stack.ss_size = kStackBytes;
    context_.uc_link = nullptr;
    makecontext(&context_, &Fiber::trampoline, 0);
#endif
  }

  // Scheduler side: runs the fiber until it yields or its entry returns.
  void resume() {
    running() = this;
#if defined(__SANITIZE_ADDRESS__)
    void* scheduler_fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&scheduler_fake_stack, stack_, kStackBytes);
#endif
    enter();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#endif
  }

  // Fiber side: back to the scheduler until the next resume().
  static void yield() {
    Fiber& self = *running();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(self.finished_ ? nullptr : &self.fake_stack_, self.scheduler_stack_,
                                   self.scheduler_stack_bytes_);
#endif
    self.leave();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(self.fake_stack_, &self.scheduler_stack_, &self.scheduler_stack_bytes_);
#endif
  }

 private:
  static Fiber*& running() {
    static Fiber* fiber = nullptr;
    return fiber;
  }

  static void trampoline() {
    Fiber& self = *running();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &self.scheduler_stack_, &self.scheduler_stack_bytes_);
#endif
    self.entry_(self.argument_);
    self.finished_ = true;
    yield();
    __builtin_unreachable();
  }

#if defined(__x86_64__)
  // Saves the callee-saved registers and the stack pointer of one side, restores those of the other (System V ABI).
  __attribute__((naked, noinline)) static void switch_stack(void** /*save*/, void* /*load*/) {
    asm volatile(
        "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
        "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
        "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
  }
  void enter() { switch_stack(&scheduler_stack_pointer_, stack_pointer_); }
  void leave() { switch_stack(&stack_pointer_, scheduler_stack_pointer_); }
  void* stack_pointer_ = nullptr;
  void* scheduler_stack_pointer_ = nullptr;
#else
  void enter() { swapcontext(&scheduler_context_, &context_); }
  void leave() { swapcontext(&context_, &scheduler_context_); }
  ucontext_t context_;
  ucontext_t scheduler_context_;
#endif

  char* map_ = nullptr;
  char* stack_ = nullptr;
  std::size_t map_bytes_ = 0;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  bool finished_ = false;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_bytes_ = 0;
#endif
};

}  // namespace simt
