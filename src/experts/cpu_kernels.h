// The kernels of the holdfast backend on the CPU, in launch order: group the (row, slot) pairs by
// expert, gate_up with SwiGLU, down, combine. Launched by the backend; free of state, no
// allocation.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/cpu/worker_pool.h"

namespace holdfast::experts::cpu {

// One packed matrix of every expert (cpu_packing.h). Bias bf16 [E, rows] as in the checkpoint.
struct Matrix {
  const std::byte* weights = nullptr;    // codes, or bf16 when scales is null
  const std::uint8_t* scales = nullptr;
  const std::uint16_t* bias = nullptr;
};

// n rows; a pair is row * experts_per_token + slot.
struct MoeShape {
  std::int64_t n = 0;
  std::int64_t expert_count = 0;
  std::int64_t experts_per_token = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
};

// The pairs by expert, ascending within one.
struct Groups {
  const std::int32_t* begin = nullptr;  // i32 [E + 1]: where an expert's pairs begin in `pairs`
  const std::int32_t* pairs = nullptr;  // i32 [n * K]
};

// Each kernel's arguments hold the addresses that it reads or writes and no others: a capture
// checks every word in them against the declared operands, so there is no padding either.
struct GroupArgs {
  MoeShape shape;
  const std::int32_t* ids = nullptr;
  const std::int32_t* active_rows = nullptr;
  std::int32_t* group_begin = nullptr;
  std::int32_t* group_pairs = nullptr;
};

struct GateUpArgs {
  MoeShape shape;
  const float* x = nullptr;
  Matrix gate_up;
  const float* alpha = nullptr;
  const float* beta = nullptr;
  const float* limit = nullptr;
  Groups groups;
  float* activation = nullptr;  // f32 [n * K, I]
};

struct DownArgs {
  MoeShape shape;
  const float* activation = nullptr;
  Matrix down;
  Groups groups;
  float* down_out = nullptr;  // f32 [n * K, H], bias included
};

struct CombineArgs {
  MoeShape shape;
  const float* down_out = nullptr;
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  const float* residual = nullptr;
  const std::int32_t* active_rows = nullptr;
  float* out = nullptr;
};

static_assert(std::has_unique_object_representations_v<GroupArgs> &&
              std::has_unique_object_representations_v<GateUpArgs> &&
              std::has_unique_object_representations_v<DownArgs> &&
              std::has_unique_object_representations_v<CombineArgs>);

void group_pairs(const GroupArgs& args, device::WorkerPool& workers);
void gate_up(const GateUpArgs& args, device::WorkerPool& workers);
void down(const DownArgs& args, device::WorkerPool& workers);
void combine(const CombineArgs& args, device::WorkerPool& workers);

}  // namespace holdfast::experts::cpu
