// The kernels of the holdfast backend on the CPU, in launch order: group the (row, slot) pairs by
// expert, gate_up with SwiGLU, down, combine. Launched by the backend; free of state, no allocation.
#pragma once

#include <cstdint>

#include "device/cpu/worker_pool.h"

namespace holdfast::experts::cpu {

// One packed matrix of every expert (cpu_packing.h). Bias bf16 [E, rows] as in the checkpoint.
struct Matrix {
  const std::byte* weights = nullptr;    // codes, or bf16 when scales is null
  const std::uint8_t* scales = nullptr;
  const std::uint16_t* bias = nullptr;
};

// A pair is row * experts_per_token + slot. All pointers are resolved addresses of slots or operands.
struct MoeArgs {
  std::int64_t n = 0;
  std::int64_t expert_count = 0;
  std::int64_t experts_per_token = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  const float* x = nullptr;
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  const float* residual = nullptr;
  float* out = nullptr;
  const std::int32_t* active_rows = nullptr;
  Matrix gate_up, down;
  const float* alpha = nullptr;
  const float* beta = nullptr;
  const float* limit = nullptr;
  std::int32_t* group_begin = nullptr;  // i32 [E + 1]: where an expert's pairs begin in group_pairs
  std::int32_t* group_pairs = nullptr;  // i32 [n * K]: pairs by expert, ascending within one
  float* activation = nullptr;          // f32 [n * K, I]
  float* down_out = nullptr;            // f32 [n * K, H], bias included
};

void group_pairs(const MoeArgs& args, device::WorkerPool& workers);
void gate_up(const MoeArgs& args, device::WorkerPool& workers);
void down(const MoeArgs& args, device::WorkerPool& workers);
void combine(const MoeArgs& args, device::WorkerPool& workers);

}  // namespace holdfast::experts::cpu
