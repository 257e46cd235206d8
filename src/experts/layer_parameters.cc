#include "experts/layer_parameters.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "experts/expert_parameters.h"
#include "experts/round_inputs.h"
#include "tensor/codecs.h"
#include "tensor/nvfp4_codecs.h"

namespace holdfast::experts {

using config::ExpertScheme;
using config::ExpertTensor;
using config::Projection;
using config::TensorRole;
using storage::DeriveInput;
using storage::ParameterId;
using storage::SlotId;
using tensor::DType;
using tensor::TensorView;

Result<ParameterId> LayerParameters::bind(const ExpertTensor& tensor) {
  const auto found = bound_.find(tensor.name);
  if (found != bound_.end()) return found->second;
  ParameterId id;
  if (is_made(spec_, tensor)) {
    id = made_.stand_in(tensor);
  } else {
    HF_ASSIGN(id, bind_transient(registry_, spec_, tensor));
  }
  bound_.emplace(tensor.name, id);
  return id;
}

const ExpertTensor* LayerParameters::find(Projection projection, TensorRole role) const {
  return find_tensor(spec_, projection, role);
}

Result<const ExpertTensor*> LayerParameters::need(Projection projection, TensorRole role) const {
  return need_tensor(spec_, projection, role);
}

Result<SlotId> LayerParameters::derive(Derived derived) {
  const std::string name = spec_.slot_prefix + "." + derived.name;
  HF_ASSIGN(const SlotId slot,
            registry_.define(storage::SlotSpec{.name = name,
                                               .slot_class = storage::SlotClass::kDerived,
                                               .dtype = derived.dtype,
                                               .shape = derived.shape,
                                               .arena = std::move(derived.arena)}));
  storage::Derivation derivation{.name = name + ".derive",
                                 .inputs = std::move(derived.inputs),
                                 .outputs = {slot},
                                 .slice_count = derived.slice_count,
                                 .function = std::move(derived.function),
                                 .order = std::move(derived.order)};
  HF_TRY(made_.resolve(derivation));
  HF_TRY(registry_.derive(std::move(derivation)));
  return slot;
}

Product gate_up_product(const ExpertsSpec& spec) {
  Product product{.name = "gate_up", .projections = {}, .columns = spec.shape.hidden_size};
  if (is_fused(spec)) {
    product.projections = {Projection::kGateUp};
  } else {
    product.projections = {Projection::kGate, Projection::kUp};
  }
  return product;
}

Product down_product(const ExpertsSpec& spec) {
  return {.name = "down",
          .projections = {Projection::kDown},
          .columns = spec.shape.intermediate_size};
}

namespace {

tensor::GlobalScale convention(const ExpertsSpec& spec) {
  return spec.format.dialect == config::ExpertDialect::kCompressedNvfp4
             ? tensor::GlobalScale::kDivisor
             : tensor::GlobalScale::kMultiplier;
}

// The largest of the inputs' scalars, as multipliers; `names` are the inputs' own.
storage::DeriveFunction largest_multiplier(tensor::GlobalScale kind,
                                           std::vector<std::string> names) {
  return [kind, names = std::move(names)](device::Stream&, std::span<const TensorView> inputs,
                                          std::span<const TensorView> outputs) -> Status {
    float largest = 0.0f;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      float stored = 0.0f;
      HF_TRY(tensor::decode_to_f32(inputs[i].dtype, inputs[i].address, 1, &stored));
      HF_ASSIGN(const float multiplier, tensor::nvfp4_multiplier(kind, stored, names[i]));
      largest = std::max(largest, multiplier);
    }
    *outputs[0].as<float>() = largest;
    return {};
  };
}

Result<std::optional<SlotId>> define_scalar(LayerParameters& layer, std::string name,
                                            const std::vector<const ExpertTensor*>& tensors) {
  const std::int64_t experts = layer.spec().shape.expert_count;
  const tensor::GlobalScale kind = convention(layer.spec());
  std::vector<DeriveInput> inputs;
  std::vector<std::string> names;
  for (const ExpertTensor* tensor : tensors) {
    HF_ASSIGN(const ParameterId parameter, layer.bind(*tensor));
    inputs.emplace_back(parameter);
    names.push_back(tensor->name);
  }
  HF_ASSIGN(const SlotId slot,
            layer.derive({.name = std::move(name),
                          .shape = {experts},
                          .inputs = std::move(inputs),
                          .slice_count = experts,
                          .function = largest_multiplier(kind, std::move(names)),
                          .arena = kScalesArena}));
  return std::optional<SlotId>(slot);
}

Status multiply(device::Stream&, std::span<const TensorView> inputs,
                std::span<const TensorView> outputs) {
  const float* a = inputs[0].as<const float>();
  const float* b = inputs[1].as<const float>();
  float* out = outputs[0].as<float>();
  for (std::int64_t e = 0; e < outputs[0].shape.element_count(); ++e) {
    out[e] = tensor::nvfp4_alpha(a[e], b[e]);
  }
  return {};
}

}  // namespace

Result<std::optional<SlotId>> define_input_scale(LayerParameters& layer, const Product& product) {
  if (!has_input_scale(layer.spec().format.activations)) return std::optional<SlotId>();
  std::vector<const ExpertTensor*> tensors;
  for (const Projection projection : product.projections) {
    HF_ASSIGN(tensors.emplace_back(), layer.need(projection, TensorRole::kInputScale));
  }
  return define_scalar(layer, product.name + ".input_scale", tensors);
}

Result<std::optional<SlotId>> define_weight_scale(LayerParameters& layer, Projection projection) {
  TensorRole role = TensorRole::kScale;
  if (layer.spec().format.scheme == ExpertScheme::kNvfp4) {
    role = TensorRole::kGlobalScale;
  } else if (layer.spec().format.scheme != ExpertScheme::kFp8Tensor) {
    return std::optional<SlotId>();
  }
  HF_ASSIGN(const ExpertTensor* tensor, layer.need(projection, role));
  return define_scalar(layer, std::string(config::projection_name(projection)) + ".weight_scale",
                       {tensor});
}

Result<ScaleChain> define_scale_chain(LayerParameters& layer, Projection projection,
                                      std::optional<SlotId> input_scale) {
  ScaleChain chain{.weight_scale = {}, .input_scale = input_scale, .alpha = input_scale};
  HF_ASSIGN(chain.weight_scale, define_weight_scale(layer, projection));
  if (!chain.weight_scale) return chain;
  chain.alpha = chain.weight_scale;
  if (!input_scale) return chain;
  HF_ASSIGN(chain.alpha,
            layer.derive({.name = std::string(config::projection_name(projection)) + ".alpha",
                          .shape = {layer.spec().shape.expert_count},
                          .inputs = {*chain.weight_scale, *input_scale},
                          .function = &multiply,
                          .arena = kScalesArena}));
  return chain;
}

Result<std::vector<std::int32_t>> int4_order(const tensor::Int4Size& size, bool act_order,
                                             std::span<const std::int32_t> group_index) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(size.groups()), 0);
  for (std::size_t column = 0; column < group_index.size(); ++column) {
    const std::int32_t group = group_index[column];
    if (group < 0 || group >= size.groups()) {
      return make_error(ErrorCode::kCorrupt, "g_idx: input {} is of group {}, there are {}", column,
                        group, size.groups());
    }
    if (!act_order && group != static_cast<std::int64_t>(column) / size.group) {
      return make_error(ErrorCode::kMismatch,
                        "g_idx: input {} is of group {}, the format has no act-order: it must be "
                        "{}; does config.json lack desc_act?",
                        column, group, static_cast<std::int64_t>(column) / size.group);
    }
    ++counts[static_cast<std::size_t>(group)];
  }
  for (std::size_t group = 0; group < counts.size(); ++group) {
    if (counts[group] == size.group) continue;
    return make_error(ErrorCode::kCorrupt, "g_idx: group {} has {} inputs, must have {}", group,
                      counts[group], size.group);
  }
  std::vector<std::int32_t> order(group_index.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::int32_t column) {
    return group_index[static_cast<std::size_t>(column)];
  });
  return order;
}

Result<std::vector<std::int32_t>> product_order(const Product& product,
                                                const config::ExpertFormat& format,
                                                std::span<const TensorView> indices) {
  const tensor::Int4Size size{.rows = 1, .cols = product.columns, .group = format.group_size};
  const auto count = static_cast<std::size_t>(size.cols);
  const std::span<const std::int32_t> first(indices[0].as<const std::int32_t>(), count);
  for (const TensorView& other : indices.subspan(1)) {
    const std::int32_t* index = other.as<const std::int32_t>();
    const auto differs = std::ranges::mismatch(first, std::span(index, count));
    if (differs.in1 == first.end()) continue;
    return make_error(ErrorCode::kUnsupported,
                      "{}: the g_idx of gate and up differ, but they share their input: input {} "
                      "is of group {} and of group {}",
                      product.name, differs.in1 - first.begin(), *differs.in1, *differs.in2);
  }
  return int4_order(size, format.act_order, first);
}

namespace {

// The group indices of a product's projections, `first`'s first.
Result<std::vector<DeriveInput>> bind_group_indices(LayerParameters& layer, const Product& product,
                                                    Projection first) {
  std::vector<DeriveInput> inputs;
  for (const Projection projection : product.projections) {
    HF_ASSIGN(const ExpertTensor* tensor, layer.need(projection, TensorRole::kGroupIndex));
    HF_ASSIGN(const ParameterId parameter, layer.bind(*tensor));
    inputs.insert(projection == first ? inputs.begin() : inputs.end(), parameter);
  }
  return inputs;
}

}  // namespace

Result<std::optional<SlotId>> define_order(LayerParameters& layer, const Product& product,
                                           const std::string& slot_name) {
  const config::ExpertFormat& format = layer.spec().format;
  if (format.scheme != ExpertScheme::kInt4 || !format.act_order) return std::optional<SlotId>();
  HF_ASSIGN(auto inputs, bind_group_indices(layer, product, product.projections[0]));
  const auto compute = [product, format](device::Stream&, std::span<const TensorView> views,
                                         std::span<const TensorView> outputs) -> Status {
    HF_ASSIGN(const std::vector<std::int32_t> order, product_order(product, format, views));
    std::memcpy(outputs[0].address, order.data(), order.size() * sizeof(std::int32_t));
    return {};
  };
  const std::int64_t experts = layer.spec().shape.expert_count;
  HF_ASSIGN(const SlotId slot, layer.derive({.name = product.name + "." + slot_name,
                                             .dtype = DType::kI32,
                                             .shape = {experts, product.columns},
                                             .inputs = std::move(inputs),
                                             .slice_count = experts,
                                             .function = compute}));
  return std::optional<SlotId>(slot);
}

Result<std::optional<SlotId>> define_group_index(LayerParameters& layer, const Product& product,
                                                 Projection projection) {
  if (layer.find(projection, TensorRole::kGroupIndex) == nullptr) return std::optional<SlotId>();
  HF_ASSIGN(auto inputs, bind_group_indices(layer, product, projection));
  const auto copy = [product, format = layer.spec().format](
                        device::Stream&, std::span<const TensorView> views,
                        std::span<const TensorView> outputs) -> Status {
    HF_TRY(product_order(product, format, views));
    std::memcpy(outputs[0].address, views[0].address, outputs[0].bytes());
    return {};
  };
  const std::int64_t experts = layer.spec().shape.expert_count;
  HF_ASSIGN(const SlotId slot,
            layer.derive({.name = std::string(config::projection_name(projection)) + ".group_index",
                          .dtype = DType::kI32,
                          .shape = {experts, product.columns},
                          .inputs = std::move(inputs),
                          .slice_count = experts,
                          .function = copy}));
  return std::optional<SlotId>(slot);
}

tensor::Int4Packing int4_packing(const config::ExpertFormat& format) {
  if (format.dialect == config::ExpertDialect::kAwq) return tensor::Int4Packing::kAwq;
  if (format.dialect == config::ExpertDialect::kCompressedInt4) {
    return tensor::Int4Packing::kCompressedTensors;
  }
  return format.gptq_v1 ? tensor::Int4Packing::kGptqV1 : tensor::Int4Packing::kGptqV2;
}

}  // namespace holdfast::experts
