#include "model/quantized_linear.h"

#include <algorithm>
#include <utility>

#include "config/linear_modules.h"
#include "model/decode_matrix.h"

namespace holdfast::model {
namespace {

using config::LinearTensor;
using storage::SlotId;
using tensor::DType;
using tensor::TensorView;

// A part and what is read of it, in the order of the derivation's inputs.
struct Published {
  std::string name;
  tensor::MatrixSize size;
  std::vector<config::TensorRole> roles;
};

Status decode_parts(const config::ExpertFormat& format, const std::vector<Published>& parts,
                    std::span<const TensorView> inputs, const TensorView& out) {
  std::uint16_t* to = out.as<std::uint16_t>();
  std::size_t next = 0;
  for (const Published& part : parts) {
    PublishedMatrix matrix{.name = part.name, .size = part.size};
    for (const config::TensorRole role : part.roles) matrix.of(role) = inputs[next++];
    HF_TRY(decode_matrix(format, matrix, to));
    to += part.size.rows * part.size.cols;
  }
  return {};
}

}  // namespace

bool is_quantized(const config::ModelConfig& config, const LinearSpec& spec) {
  return std::any_of(spec.parts.begin(), spec.parts.end(),
                     [&](const Part& part) { return config.is_quantized(part.parameter); });
}

Result<SlotId> define_quantized_weight(storage::Registry& registry,
                                       const config::ModelConfig& config, const LinearSpec& spec) {
  std::vector<Published> parts;
  storage::Derivation derivation{.name = spec.name + ".weight.derive"};
  std::int64_t rows = 0;
  for (const Part& part : spec.parts) {
    Published published{.name = part.parameter, .size = {part.rows, spec.inputs}, .roles = {}};
    HF_ASSIGN(const std::vector<LinearTensor> tensors,
              config::linear_tensors(config, {part.parameter, part.rows, spec.inputs}));
    for (const LinearTensor& tensor : tensors) {
      HF_ASSIGN(const storage::ParameterId id,
                registry.bind({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape}));
      derivation.inputs.emplace_back(id);
      published.roles.push_back(tensor.role);
    }
    derivation.host_bytes =
        std::max(derivation.host_bytes,
                 decode_scratch_bytes(config.expert_format, published.size));
    rows += part.rows;
    parts.push_back(std::move(published));
  }
  HF_ASSIGN(const SlotId slot, registry.define({.name = spec.name + ".weight",
                                                .slot_class = storage::SlotClass::kDerived,
                                                .dtype = DType::kBF16,
                                                .shape = {rows, spec.inputs},
                                                .arena = {}}));
  derivation.outputs = {slot};
  derivation.function = [format = config.expert_format, parts = std::move(parts)](
                            device::Stream&, std::span<const TensorView> inputs,
                            std::span<const TensorView> outputs) {
    return decode_parts(format, parts, inputs, outputs[0]);
  };
  HF_TRY(registry.derive(std::move(derivation)));
  return slot;
}

}  // namespace holdfast::model
