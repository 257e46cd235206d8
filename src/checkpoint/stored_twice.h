// find_stored_twice: whether a tensor that nobody expects is half of a layer that the files hold
// once plain and once quantised. Pure; any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "tensor/dtype.h"

namespace holdfast::checkpoint {

// Both of one layer: the plain values and the codes.
struct StoredTwice {
  std::string layer = {};  // "model.layers.0.self_attn.q_proj"
  std::string plain = {};  // "model.layers.0.self_attn.q_proj.weight"
  std::string codes = {};  // "model.layers.0.self_attn.q_proj.qweight"
};
// The dtype of a tensor that is there, or none.
using FindDtype = std::function<std::optional<tensor::DType>(const std::string& name)>;

// `name` is any tensor of the layer: plain values, codes, or what goes with them.
std::optional<StoredTwice> find_stored_twice(std::string_view name, const FindDtype& find);

// "layer L is stored twice, once plain (L.weight) and once quantised (L.qweight); keep one of them"
std::string to_text(const StoredTwice& twice);

}  // namespace holdfast::checkpoint
