// The kernels of the holdfast backend on the CPU, in launch order: group the (row, slot) pairs by
// expert, prepare the inputs, gate_up with SwiGLU, prepare again, down, combine. Launched by the
// backend; free of state, no allocation.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/cpu/worker_pool.h"

namespace holdfast::experts::cpu {

// What the tiles of a matrix hold (cpu_packing.h).
enum class Codec : std::int64_t { kBF16, kF16, kF32, kE4M3, kE2M1, kInt4 };
// The scales of groups of columns.
enum class GroupScale : std::int64_t {
  kNone,
  kE8M0,  // a byte for each row
  kE4M3,  // a byte for each row
  kF16,   // for each row
  kBF16,
  kF32,
  kF32Tile,  // f32, one for the tile
};

// One packed matrix of every expert. Tile t of it is number t * tile_step + first_tile of the slot,
// row r's bias number r * tile_step + first_tile: fused, gate and up alternate.
struct Matrix {
  Codec codec = Codec::kBF16;
  GroupScale group_scale = GroupScale::kNone;
  std::int64_t group = 0;  // columns to a scale
  std::int64_t tile_step = 1;
  std::int64_t first_tile = 0;
  const std::byte* weights = nullptr;
  const std::byte* scales = nullptr;
  const std::uint8_t* zeros = nullptr;    // kInt4; null: 8
  const float* row_scales = nullptr;      // f32 [E, tiles, 16], or null
  const float* alpha = nullptr;           // f32 [E], of the whole matrix, or null
  const std::uint16_t* bias = nullptr;    // bf16 [E, rows], or null
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

// Where a product finds the input row of a pair: row pair / pairs_per_row of x, f32 [*, length].
struct Inputs {
  const float* x = nullptr;
  std::int64_t length = 0;
  std::int64_t pairs_per_row = 1;
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

// to[pair] = the input row of each pair, its columns in the order of its expert's matrix, rounded.
struct PrepareArgs {
  MoeShape shape;
  Inputs from;
  std::int64_t activations = 0;              // config::ActivationScheme
  const std::int32_t* order = nullptr;       // i32 [E, length]: the source of each column, or null
  const float* input_scale = nullptr;        // f32 [E], or null
  const std::int32_t* ids = nullptr;
  const std::int32_t* active_rows = nullptr;
  float* to = nullptr;                       // f32 [n * K, length]
};

struct GateUpArgs {
  MoeShape shape;
  Inputs inputs;
  Matrix gate, up;
  const float* alpha = nullptr;
  const float* beta = nullptr;
  const float* limit = nullptr;
  Groups groups;
  float* activation = nullptr;  // f32 [n * K, I]
};

struct DownArgs {
  MoeShape shape;
  Inputs inputs;
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
              std::has_unique_object_representations_v<PrepareArgs> &&
              std::has_unique_object_representations_v<GateUpArgs> &&
              std::has_unique_object_representations_v<DownArgs> &&
              std::has_unique_object_representations_v<CombineArgs>);

void group_pairs(const GroupArgs& args, device::WorkerPool& workers);
void prepare_inputs(const PrepareArgs& args, device::WorkerPool& workers);
void gate_up(const GateUpArgs& args, device::WorkerPool& workers);
void down(const DownArgs& args, device::WorkerPool& workers);
void combine(const CombineArgs& args, device::WorkerPool& workers);

}  // namespace holdfast::experts::cpu
