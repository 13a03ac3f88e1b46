// Prints the resident blocks an SM that NVIDIA's cuda_occupancy.h computes for each "registers threads shared" on stdin.
#include <cuda_occupancy.h>

#include <cstdio>

int main() {
  cudaOccDeviceProp device{};
  device.computeMajor = 12;
  device.computeMinor = 0;
  device.maxThreadsPerBlock = 1024;
  device.maxThreadsPerMultiprocessor = 1536;
  device.regsPerBlock = 65536;
  device.regsPerMultiprocessor = 65536;
  device.warpSize = 32;
  device.sharedMemPerBlock = 49152;
  device.sharedMemPerMultiprocessor = 102400;
  device.numSms = 188;
  device.sharedMemPerBlockOptin = 101376;
  device.reservedSharedMemPerBlock = 1024;
  cudaOccDeviceState state{};
  state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
  int registers, threads, shared;
  while (std::scanf("%d %d %d", &registers, &threads, &shared) == 3) {
    cudaOccFuncAttributes kernel{};
    kernel.maxThreadsPerBlock = 1024;
    kernel.numRegs = registers;
    kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    kernel.maxDynamicSharedSizeBytes = 101376;
    cudaOccResult result{};
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, shared) != 0) return 1;
    std::printf("%d\n", result.activeBlocksPerMultiprocessor);
  }
}
