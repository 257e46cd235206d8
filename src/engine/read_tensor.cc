#include "engine/read_tensor.h"

#include <algorithm>
#include <cstring>
#include <variant>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "reload/scope.h"
#include "tensor/codecs.h"

namespace holdfast::engine {

namespace {

constexpr std::size_t kNearestNames = 3;

Error unknown(const storage::Registry& registry, const std::string& name) {
  const auto nearest =
      checkpoint::nearest_names(name, reload::published_names(registry), kNearestNames);
  return make_error(ErrorCode::kNotFound, "the model has no tensor {}; nearest: {}", name,
                    fmt::join(nearest, ", "));
}

Error packed(const storage::Registry& registry, storage::ParameterId parameter) {
  std::vector<std::string> slots;
  for (const storage::Derivation& derivation : registry.derivations()) {
    const auto feeds = [&](const storage::DeriveInput& input) {
      const auto* id = std::get_if<storage::ParameterId>(&input);
      return id != nullptr && *id == parameter;
    };
    if (std::none_of(derivation.inputs.begin(), derivation.inputs.end(), feeds)) continue;
    for (const storage::SlotId slot : derivation.outputs) {
      slots.push_back(registry.slot(slot).spec.name);
    }
  }
  return make_error(ErrorCode::kUnsupported,
                    "tensor {} is kept only in packed form, in {}; the census has their digests",
                    registry.parameters()[parameter.value].name, fmt::join(slots, ", "));
}

template <typename T>
void widen(const std::vector<std::byte>& bytes, std::vector<float>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = static_cast<float>(value);
  }
}

}  // namespace

Result<std::vector<float>> read_tensor(const storage::Registry& registry, const std::string& name,
                                       std::size_t most) {
  const auto found = registry.find_published(name);
  if (!found) return unknown(registry, name);
  const storage::ParameterSpec& spec = registry.parameters()[found->parameter.index()];
  if (!spec.slot) return packed(registry, found->parameter);
  if (registry.poisoned()) {
    return make_error(ErrorCode::kPoisoned,
                      "tensor {}: the weights are not to be trusted; a complete reload recovers",
                      name);
  }
  // A registry's shapes do not overflow.
  const tensor::Shape& shape = registry.published_shape(*found);
  const auto count = std::min(most, static_cast<std::size_t>(shape.element_count()));
  if (count == 0) return std::vector<float>();
  std::vector<std::byte> bytes((count * tensor::dtype_bits(spec.dtype) + 7) / 8);
  const std::size_t row = static_cast<std::size_t>(found->row.value_or(0)) *
                          tensor::byte_size(spec.dtype, shape).value();
  HF_TRY(registry.device().read(bytes.data(),
                                registry.view(*spec.slot).address + spec.offset_bytes + row,
                                bytes.size()));
  std::vector<float> values(count);
  switch (spec.dtype) {
    case tensor::DType::kU8: widen<std::uint8_t>(bytes, values); break;
    case tensor::DType::kI32: widen<std::int32_t>(bytes, values); break;
    case tensor::DType::kI64: widen<std::int64_t>(bytes, values); break;
    default:
      HF_TRY(tensor::decode_to_f32(spec.dtype, bytes.data(), static_cast<std::int64_t>(count),
                                   values.data()));
  }
  return values;
}

}  // namespace holdfast::engine
