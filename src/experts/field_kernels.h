// The kernels of the field-like backends on the CPU: prepare, gate_up, down; grouping and combining
// are the holdfast backend's (cpu_kernels.h). They read the packed layouts, padding included, and
// decode a row once for all pairs of its expert, to float32; a pair's bits depend on its own x and
// expert alone. Free of state, no allocation.
#pragma once

#include <cstdint>
#include <type_traits>

#include "experts/cpu_kernels.h"
#include "experts/field_layout.h"

namespace holdfast::experts::field {

// One packed matrix of every expert. Scales and zeros stand one for each row and group.
struct Matrix {
  cpu::Codec codec = cpu::Codec::kBF16;
  FieldLayout layout;
  std::int64_t columns = 0;  // padded, a multiple of 8
  cpu::GroupScale group_scale = cpu::GroupScale::kNone;
  std::int64_t group = 0;
  FieldScaleLayout scale_layout;  // of scales; zeros are row-major
  const std::byte* weights = nullptr;
  const std::byte* scales = nullptr;
  const std::uint8_t* zeros = nullptr;
  const float* row_scales = nullptr;  // f32 [E, rows]
  const float* bias = nullptr;        // f32 [E, rows]
};

// Where gate row i and up row i of the fused matrix are.
enum class Halves : std::int64_t { kGateFirst, kUpFirst, kPairs };  // kPairs: up 0, gate 0, up 1
inline std::int64_t gate_row(Halves halves, std::int64_t rows, std::int64_t i) {
  if (halves == Halves::kPairs) return 2 * i + 1;
  return halves == Halves::kGateFirst ? i : rows / 2 + i;
}
inline std::int64_t up_row(Halves halves, std::int64_t rows, std::int64_t i) {
  if (halves == Halves::kPairs) return 2 * i;
  return halves == Halves::kUpFirst ? i : rows / 2 + i;
}

// to[pair] = the pair's input row in the matrix's column order, times the reciprocal of its scale,
// rounded; behind its columns what the row has there (the padding of an activation), then zeros.
struct PrepareArgs {
  cpu::MoeShape shape;
  cpu::Inputs from;
  std::int64_t columns = 0;                  // of from.length, that are not padding
  std::int64_t activations = 0;              // config::ActivationScheme
  const std::int32_t* order = nullptr;       // i32 [E, columns], or null
  const float* reciprocal = nullptr;         // f32 [E], or null
  const float* input_scale = nullptr;        // f32 [E], or null
  const std::int32_t* ids = nullptr;
  const std::int32_t* active_rows = nullptr;
  float* to = nullptr;                       // f32 [n * K, padded]
  std::int64_t padded = 0;
};

// Rows of a tile belong to one worker. A kernel that splits a sum over the columns takes turns by
// the tile's lock: it is zero before and after every launch. What finds it at t takes the first t
// halves of the columns for done.
inline constexpr std::int64_t kLockRows = 64;

struct GateUpArgs {
  cpu::MoeShape shape;
  const float* inputs = nullptr;  // f32 [n * K, columns]
  Matrix matrix;
  Halves halves = Halves::kGateFirst;
  const float* gate_alpha = nullptr;  // f32 [E], or null: of the accumulator
  const float* up_alpha = nullptr;
  const float* swiglu_alpha = nullptr;
  const float* beta = nullptr;
  const float* gate_limit = nullptr;
  const float* up_limit = nullptr;
  std::int64_t raw_limits = 0;        // limits and beta are of the accumulators, before alpha
  const float* input_factor = nullptr;  // f32 [E], or null: fake_input_scale
  cpu::Groups groups;
  std::int32_t* locks = nullptr;      // i32, one for 64 rows; or null
  float* activation = nullptr;        // f32 [n * K, rows / 2]
};

struct DownArgs {
  cpu::MoeShape shape;
  const float* inputs = nullptr;
  Matrix matrix;
  const float* alpha = nullptr;
  const float* input_factor = nullptr;
  cpu::Groups groups;
  std::int32_t* locks = nullptr;
  float* down_out = nullptr;  // f32 [n * K, H]
};

static_assert(std::has_unique_object_representations_v<PrepareArgs> &&
              std::has_unique_object_representations_v<GateUpArgs> &&
              std::has_unique_object_representations_v<DownArgs>);

void prepare(const PrepareArgs& args, device::WorkerPool& workers);
void gate_up(const GateUpArgs& args, device::WorkerPool& workers);
void down(const DownArgs& args, device::WorkerPool& workers);

}  // namespace holdfast::experts::field
