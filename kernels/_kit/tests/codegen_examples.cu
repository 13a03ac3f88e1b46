// Kernels whose machine code is known: a wide copy, one that must spill, one with a tile too large for a block.
extern "C" __global__ void wide_copy(const float4* __restrict__ x, float4* __restrict__ y, int n) {
#pragma unroll 1
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i];
}

extern "C" __global__ void indexed_local(const float* x, float* y, int n) {
  float values[64];
  for (int i = 0; i < 64; ++i) values[i] = x[i * n];
  float sum = 0.f;
#pragma unroll 1
  for (int i = 0; i < n; ++i) sum += values[i * 7 % 64];
  y[threadIdx.x] = sum;
}

extern "C" __global__ void shared_tile(const float* x, float* y) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[63 - threadIdx.x];
}
