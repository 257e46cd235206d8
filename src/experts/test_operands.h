// The slots of a layer's operands in a registry that is being built: what tests and benchmarks of
// experts layers feed.
#pragma once

#include "experts/experts.h"
#include "storage/registry.h"

namespace holdfast::experts::testing {

struct LayerOperands {
  storage::SlotId x, ids, weights, residual, out, active_rows;
};

// For shape.max_rows rows.
inline LayerOperands define_operands(storage::Registry& registry, const ExpertsShape& shape) {
  const auto input = [&registry](const char* name, tensor::DType dtype, const tensor::Shape& size) {
    return registry
        .define(storage::SlotSpec{.name = name,
                                  .slot_class = storage::SlotClass::kInput,
                                  .dtype = dtype,
                                  .shape = size,
                                  .arena = {}})
        .value();
  };
  const std::int64_t n = shape.max_rows;
  return {.x = input("x", tensor::DType::kF32, {n, shape.hidden_size}),
          .ids = input("ids", tensor::DType::kI32, {n, shape.experts_per_token}),
          .weights = input("weights", tensor::DType::kF32, {n, shape.experts_per_token}),
          .residual = input("residual", tensor::DType::kF32, {n, shape.hidden_size}),
          .out = input("out", tensor::DType::kF32, {n, shape.hidden_size}),
          .active_rows = input("active_rows", tensor::DType::kI32, {1})};
}

inline ExpertsArgs rows_of(const storage::Registry& registry, const LayerOperands& operands,
                           std::int64_t begin, std::int64_t count) {
  const auto rows = [&](storage::SlotId slot) { return registry.view(slot).rows(begin, count); };
  return {.x = rows(operands.x),
          .ids = rows(operands.ids),
          .weights = rows(operands.weights),
          .residual = rows(operands.residual),
          .out = rows(operands.out),
          .active_rows = registry.view(operands.active_rows)};
}

}  // namespace holdfast::experts::testing
