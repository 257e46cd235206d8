// Step: what the blocks of one decoder step share. A value that borrows; the thread of the step.
#pragma once

#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "model/decoder.h"
#include "model/slots.h"

namespace holdfast::model {

struct Step {
  const storage::Registry& registry;
  const ops::OpContext& context;
  std::int64_t rows;
  const Tap& tap;
  const DecoderSlots& slots;
  const Activations& act;
  float eps;  // of every norm

  ops::TensorView view(storage::SlotId id) const { return registry.view(id); }
  ops::TensorView view(std::optional<storage::SlotId> id) const {
    return id ? registry.view(*id) : ops::TensorView{};
  }
  // Its first `rows` rows.
  ops::TensorView rows_of(storage::SlotId id) const { return registry.view(id).rows(0, rows); }
  ops::TensorView active() const { return view(slots.row_count); }

  ops::RmsNormArgs norm(const ops::TensorView& x, storage::SlotId weight,
                        const ops::TensorView& out) const {
    return {.x = x, .weight = view(weight), .out = out, .active_rows = active(), .eps = eps};
  }
  // `residual` may be empty.
  ops::LinearArgs linear(const ops::TensorView& x, const LinearSlots& layer,
                         const ops::TensorView& residual, const ops::TensorView& out) const {
    return {.x = x,
            .weight = view(layer.weight),
            .bias = view(layer.bias),
            .residual = residual,
            .out = out,
            .active_rows = active()};
  }

  void show(std::string_view name, const ops::TensorView& shown) const {
    if (tap) tap(name, shown);
  }
  void show(std::int64_t layer, const char* name, const ops::TensorView& shown) const {
    if (tap) tap(fmt::format("layers.{}.{}", layer, name), shown);
  }
};

}  // namespace holdfast::model
