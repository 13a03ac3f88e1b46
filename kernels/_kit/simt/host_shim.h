// Runs CUDA C++ device code on the CPU, unchanged: force-include this header (g++ -x c++ -include host_shim.h).
//
// What it models: one fiber a CUDA thread, blocks one after another, warp collectives and block barriers as rendezvous,
// shared memory that is poisoned before every block, and three orders in which lanes run (forward, reverse, random).
// What it refuses: divergent collectives, a lane outside its own mask, a mask that names an exited lane, a shuffle from
// outside the mask, a barrier that a thread left the kernel without reaching. Each is a simt::Fault naming the lanes.
// What it does not model: the memory model between collectives, races between blocks, asynchronous copies, MUFU rounding.
#pragma once

#include "c_api.h"
#include "device_api.h"
