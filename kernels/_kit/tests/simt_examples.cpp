// Small kernels for the shim's own tests: right ones, and one for each rule that a kernel can break.
#include <cstdint>

namespace {

template <int kThreads>
__global__ void block_sum(const float* x, float* y, int barrier) {
  __shared__ float partial[kThreads];
  const int t = static_cast<int>(threadIdx.x);
  partial[t] = x[blockIdx.x * kThreads + threadIdx.x];
  if (barrier) __syncthreads();
  if (t == kThreads - 1 || t == 0) {  // whichever runs first under a schedule reads what others have yet to write
    float sum = 0.f;
    for (int i = 0; i < kThreads; ++i) sum += partial[i];
    y[2 * blockIdx.x + (t != 0)] = sum;
  }
}

__global__ void warp_sum(const float* x, float* y) {
  float v = x[threadIdx.x];
  for (int bit = 16; bit > 0; bit >>= 1) v += __shfl_xor_sync(0xffffffffu, v, bit);
  y[threadIdx.x] = v;
}

__global__ void half_warp_shuffle(const int* x, int* y) {
  int v = x[threadIdx.x];
  if (threadIdx.x < 16) v = __shfl_sync(0xffffffffu, v, 0);
  y[threadIdx.x] = v;
}

__global__ void shuffle_outside_mask(const int* x, int* y) {
  if (threadIdx.x < 16) y[threadIdx.x] = __shfl_sync(0x0000ffffu, x[threadIdx.x], 20);
}

__global__ void not_in_own_mask(int* y) {
  if (threadIdx.x < 16) y[threadIdx.x] = static_cast<int>(__ballot_sync(0x0000ff00u, 1));
}

__global__ void mask_names_exited_lane(int* y) {
  if (threadIdx.x == 3) return;
  y[threadIdx.x] = __any_sync(0xffffffffu, 1);
}

__global__ void disagreeing_masks(int* y) {
  y[threadIdx.x] = static_cast<int>(__ballot_sync(threadIdx.x < 16 ? 0xffffffffu : 0xffff0001u, 1));
}

__global__ void different_calls(int* y) {
  if (threadIdx.x < 16) {
    y[threadIdx.x] = __any_sync(0xffffffffu, 1);
  } else {
    y[threadIdx.x] = __all_sync(0xffffffffu, 1);
  }
}

__global__ void divergent_barrier(int* y) {
  if (threadIdx.x < 32) __syncthreads();
  y[threadIdx.x] = 1;
}

__global__ void two_barriers(int* y) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  y[threadIdx.x] = 1;
}

__global__ void barrier_against_shuffle(int* y) {
  if (threadIdx.x == 0) __syncthreads();
  y[threadIdx.x] = __any_sync(0xffffffffu, 1);
}

__global__ void shared_index(int* y, int index) {
  __shared__ int slots[32];
  slots[threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x == 0) slots[index] = 2;
  __syncthreads();
  y[threadIdx.x] = slots[threadIdx.x];
}

__global__ void dynamic_index(int* y, int index) {
  int* slots = static_cast<int*>(simt::dynamic_shared());
  slots[threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x == 0) slots[index] = 2;
  __syncthreads();
  y[threadIdx.x] = slots[threadIdx.x];
}

__global__ void global_index(int* y, long long index) { y[index + threadIdx.x] = 7; }

__global__ void collectives(unsigned* y) {
  const unsigned lane = threadIdx.x % 32;
  unsigned* row = y + threadIdx.x * 10;
  row[0] = __ballot_sync(0xffffffffu, lane % 3 == 0);
  row[1] = __reduce_add_sync(0xffffffffu, lane);
  row[2] = __reduce_xor_sync(0xffffffffu, lane);
  row[3] = __shfl_up_sync(0xffffffffu, lane, 1);
  row[4] = __shfl_down_sync(0xffffffffu, lane, 3, 8);
  row[5] = __shfl_xor_sync(0xffffffffu, lane, 5);
  row[6] = __shfl_sync(0xffffffffu, lane, 9, 8);
  row[7] = __match_any_sync(0xffffffffu, lane % 4);
  row[8] = lane < 8 ? __ballot_sync(0x000000ffu, 1) : __ballot_sync(0xffffff00u, lane & 1);
  row[9] = static_cast<unsigned>(__syncthreads_count(lane == 0));
}

__global__ void trapping() {
  if (threadIdx.x == 5) __trap();
}

__global__ void runaway(int* y, int depth) {
  volatile char frame[4096];
  frame[0] = static_cast<char>(depth);
  y[0] += frame[0];
  if (depth > 0) runaway(y, depth - 1);
}

simt::Launch one_block(unsigned threads, std::size_t dynamic_bytes = 0) {
  return simt::with_schedule({1, 1, 1}, {threads, 1, 1}, dynamic_bytes);
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default"))) int
#define RUN(...) return simt::guarded([&] { simt::launch(__VA_ARGS__); })

EXPORT run_block_sum(const float* x, float* y, long long blocks, long long barrier) {
  RUN(simt::with_schedule({static_cast<unsigned>(blocks), 1, 1}, {64, 1, 1}), block_sum<64>, x, y, static_cast<int>(barrier));
}
EXPORT run_warp_sum(const float* x, float* y) { RUN(one_block(32), warp_sum, x, y); }
EXPORT run_half_warp_shuffle(const int* x, int* y) { RUN(one_block(32), half_warp_shuffle, x, y); }
EXPORT run_shuffle_outside_mask(const int* x, int* y) { RUN(one_block(32), shuffle_outside_mask, x, y); }
EXPORT run_not_in_own_mask(int* y) { RUN(one_block(32), not_in_own_mask, y); }
EXPORT run_mask_names_exited_lane(int* y) { RUN(one_block(32), mask_names_exited_lane, y); }
EXPORT run_mask_names_absent_lane(int* y) { RUN(one_block(24), mask_names_exited_lane, y); }
EXPORT run_disagreeing_masks(int* y) { RUN(one_block(32), disagreeing_masks, y); }
EXPORT run_different_calls(int* y) { RUN(one_block(32), different_calls, y); }
EXPORT run_divergent_barrier(int* y) { RUN(one_block(64), divergent_barrier, y); }
EXPORT run_two_barriers(int* y) { RUN(one_block(64), two_barriers, y); }
EXPORT run_barrier_against_shuffle(int* y) { RUN(one_block(32), barrier_against_shuffle, y); }
EXPORT run_shared_index(int* y, long long i) { RUN(one_block(32), shared_index, y, static_cast<int>(i)); }
EXPORT run_dynamic_index(int* y, long long i) { RUN(one_block(32, 32 * sizeof(int)), dynamic_index, y, static_cast<int>(i)); }
EXPORT run_global_index(int* y, long long i) { RUN(one_block(32), global_index, y, i); }
EXPORT run_collectives(unsigned* y) { RUN(one_block(64), collectives, y); }
EXPORT run_trapping() { RUN(one_block(32), trapping); }
EXPORT run_impossible(long long grid_y, long long threads, long long bytes) {
  RUN(simt::with_schedule({1, static_cast<unsigned>(grid_y), 1}, {static_cast<unsigned>(threads), 1, 1},
                          static_cast<std::size_t>(bytes)),
      trapping);
}
EXPORT run_runaway(int* y) { RUN(one_block(1), runaway, y, 1000); }
