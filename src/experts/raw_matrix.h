// One matrix of every expert exactly as the checkpoint holds it, and its rows in float32 by the
// scalar codecs: the formula that every backend is measured against. Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>

#include "config/expert_format.h"
#include "experts/experts.h"

namespace holdfast::experts {

// Addresses of the first expert's; null where the format has none. Free of padding: it is a part of
// kernel arguments.
struct RawMatrix {
  std::int64_t scheme = 0;        // config::ExpertScheme
  std::int64_t rows = 0;          // of the published matrix
  std::int64_t columns = 0;
  std::int64_t input_major = 0;   // kBF16, kF16, kF32: [columns, rows]
  std::int64_t packing = 0;       // kInt4: tensor::Int4Packing
  std::int64_t group = 0;         // kInt4
  std::int64_t divides = 0;       // global and input scales are stored as their inverse
  std::int64_t scale_dtype = 0;   // tensor::DType of scales that are plain floats
  std::int64_t scalar_dtype = 0;  // of global and input scales
  const std::byte* weights = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* global_scale = nullptr;
  const std::byte* input_scale = nullptr;
  const std::byte* zeros = nullptr;
  const std::int32_t* group_index = nullptr;
  const std::uint16_t* bias = nullptr;
};
static_assert(std::has_unique_object_representations_v<RawMatrix>);

// out[column] = the weight, float32 as the codecs decode it.
void decode_row(const RawMatrix& matrix, std::int64_t expert, std::int64_t row, float* out);
float bias_of(const RawMatrix& matrix, std::int64_t expert, std::int64_t row);
// The multiplier of static activations; 1 where there is none.
float input_scale_of(const RawMatrix& matrix, std::int64_t expert);

// The weight slots of a projection's tensors, as published.
struct RawSlots {
  std::optional<storage::SlotId> weights = {}, scales = {}, global_scale = {}, input_scale = {},
                                 zeros = {}, group_index = {}, bias = {}, shape = {};
};
Result<RawSlots> define_raw_slots(storage::Registry& registry, const ExpertsSpec& spec,
                                  config::Projection projection);
// Asserts that the registry is sealed.
RawMatrix resolve_raw(const storage::Registry& registry, const ExpertsSpec& spec,
                      config::Projection projection, const RawSlots& slots);

}  // namespace holdfast::experts
