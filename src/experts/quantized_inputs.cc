#include "experts/quantized_inputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "base/assert.h"
#include "base/error.h"
#include "experts/expert_parameters.h"

namespace holdfast::experts {
namespace {

using config::ExpertTensor;
using config::Projection;
using config::TensorRole;
using storage::DeriveInput;
using storage::ParameterId;
using tensor::TensorView;

// Above every parameter that a registry can have.
constexpr std::uint32_t kFirstStandIn = 1u << 31;

const ExpertTensor* source_of(const ExpertsSpec& spec, Projection projection) {
  const auto found = std::ranges::find_if(spec.source_tensors, [&](const ExpertTensor& tensor) {
    return tensor.projection == projection && tensor.role == TensorRole::kWeight;
  });
  return found == spec.source_tensors.end() ? nullptr : &*found;
}

// Those whose values decide `projection`'s scales: itself, and its sibling under a global scale.
std::vector<Projection> deciding(const ExpertsSpec& spec, Projection projection) {
  std::vector<Projection> all{projection};
  if (!shares_global_scale(spec.format)) return all;
  if (projection == Projection::kGate) all.push_back(Projection::kUp);
  if (projection == Projection::kUp) all.push_back(Projection::kGate);
  return all;
}

std::size_t bytes_of(const ExpertTensor& tensor) {
  const auto bytes = tensor::byte_size(tensor.dtype, tensor.shape);
  HF_ASSERT(bytes.ok(), "expert_tensors gives shapes that can be counted");
  return *bytes;
}

// The published tensors of one expert's projection, made from its values.
struct MadeMatrix {
  Projection projection;
  std::vector<const ExpertTensor*> tensors;  // of the plan that owns this
  std::vector<std::vector<std::byte>> bytes;  // of each

  TensorView view(const ExpertTensor& tensor) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i]->name != tensor.name) continue;
      std::vector<std::int64_t> dims{1};  // one expert's row, as of a parameter
      dims.insert(dims.end(), tensor.shape.dims().begin(), tensor.shape.dims().end());
      return {.address = bytes[i].data(), .dtype = tensor.dtype,
              .shape = tensor::Shape::from_dims(dims).value()};
    }
    HF_ASSERT(false, "each stand-in's projection is made");
    return {};
  }
};

// One derivation's: what comes, what is made of it, and what the function wants.
struct Plan {
  config::ExpertFormat format;
  std::string layer;
  std::vector<ExpertTensor> sources;                     // inputs [0, sources)
  std::vector<ExpertTensor> tensors;                     // the format's, of one layer
  std::vector<std::pair<Projection, std::vector<std::size_t>>> matrices;  // deciding sources
  struct Wanted {
    bool made = false;
    ExpertTensor tensor = {};  // made
    std::size_t input = 0;     // else: of the derivation
  };
  std::vector<Wanted> wanted;
  storage::DeriveFunction function;

  Result<float> amax(std::size_t source, const TensorView& input) const {
    const tensor::MatrixValues values = config::matrix_values(sources[source], input.address);
    HF_ASSIGN(const float largest, tensor::matrix_amax(values, {0, values.size.rows}));
    if (std::isfinite(largest)) return largest;
    return make_error(ErrorCode::kCorrupt,
                      "{}: {} has a value that is not finite; no scale can be chosen for it", layer,
                      sources[source].name);
  }

  Result<MadeMatrix> make(std::size_t index, std::span<const TensorView> inputs) const {
    const auto& [projection, decide] = matrices[index];
    MadeMatrix made{.projection = projection, .tensors = {}, .bytes = {}};
    config::MatrixTensors out;
    for (const ExpertTensor& tensor : tensors) {
      std::span<std::byte>* const role = out.find(tensor.role);
      if (tensor.projection != projection || role == nullptr) continue;
      made.tensors.push_back(&tensor);
      *role = made.bytes.emplace_back(bytes_of(tensor));
    }
    config::MatrixAmax amax;
    for (const std::size_t source : decide) {
      HF_ASSIGN(const float largest, this->amax(source, inputs[source]));
      if (source == decide.front()) amax.own = largest;
      amax.shared = std::max(amax.shared, largest);
    }
    const std::size_t source = decide.front();
    HF_TRY(quantize_matrix(format, config::matrix_values(sources[source], inputs[source].address),
                           amax, out));
    return made;
  }

  Status run(device::Stream& stream, std::span<const TensorView> inputs,
             std::span<const TensorView> outputs) const {
    std::vector<MadeMatrix> made;
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      HF_ASSIGN(MadeMatrix matrix, make(i, inputs));
      made.push_back(std::move(matrix));
    }
    std::vector<TensorView> views;
    for (const Wanted& want : wanted) {
      if (!want.made) {
        views.push_back(inputs[want.input]);
        continue;
      }
      const auto matrix = std::ranges::find(made, want.tensor.projection, &MadeMatrix::projection);
      views.push_back(matrix->view(want.tensor));
    }
    HF_TRY(function(stream, views, outputs));
    return stream.synchronize();  // the function may have enqueued, and the buffers end here
  }
};

Status copy_whole(device::Stream&, std::span<const TensorView> inputs,
                  std::span<const TensorView> outputs) {
  std::memcpy(outputs[0].address, inputs[0].address, outputs[0].bytes());
  return {};
}

}  // namespace

bool is_made(const ExpertsSpec& spec, const ExpertTensor& tensor) {
  return !spec.source_tensors.empty() && tensor.role != TensorRole::kBias;
}

ParameterId QuantizedInputs::stand_in(const ExpertTensor& tensor) {
  made_.push_back(tensor);
  return ParameterId{kFirstStandIn + static_cast<std::uint32_t>(made_.size() - 1)};
}

Status QuantizedInputs::resolve(storage::Derivation& derivation) {
  auto plan = std::make_shared<Plan>();
  plan->format = spec_.format;
  plan->layer = spec_.slot_prefix;
  plan->tensors = spec_.tensors;
  std::vector<DeriveInput> sources, others;
  const auto add_source = [&](Projection projection) -> Result<std::size_t> {
    const auto known = std::ranges::find(plan->sources, projection, &ExpertTensor::projection);
    if (known != plan->sources.end()) {
      return static_cast<std::size_t>(known - plan->sources.begin());
    }
    const ExpertTensor* source = source_of(spec_, projection);
    if (source == nullptr) {
      return make_error(ErrorCode::kInvalidArgument, "{}: the source has no weight of {}",
                        spec_.slot_prefix, config::projection_name(projection));
    }
    auto parameter = registry_.find_parameter(expert_parameter(spec_, *source).name);
    if (!parameter) {
      HF_ASSIGN(parameter, bind_transient(registry_, spec_, *source));
    }
    sources.emplace_back(*parameter);
    plan->sources.push_back(*source);
    return plan->sources.size() - 1;
  };
  for (const DeriveInput& input : derivation.inputs) {
    const auto* id = std::get_if<ParameterId>(&input);
    if (id == nullptr || id->value < kFirstStandIn) {
      plan->wanted.push_back({.made = false, .input = others.size()});
      others.push_back(input);
      continue;
    }
    const ExpertTensor& tensor = made_[id->value - kFirstStandIn];
    plan->wanted.push_back({.made = true, .tensor = tensor});
    const auto of = [&](const auto& matrix) { return matrix.first == tensor.projection; };
    if (std::ranges::any_of(plan->matrices, of)) continue;
    std::vector<std::size_t> decide;
    for (const Projection projection : deciding(spec_, tensor.projection)) {
      HF_ASSIGN(const std::size_t index, add_source(projection));
      decide.push_back(index);
    }
    plan->matrices.emplace_back(tensor.projection, std::move(decide));
  }
  if (plan->matrices.empty()) return {};
  for (Plan::Wanted& want : plan->wanted) {
    if (!want.made) want.input += sources.size();
  }
  sources.insert(sources.end(), others.begin(), others.end());
  derivation.inputs = std::move(sources);
  plan->function = std::move(derivation.function);
  derivation.function = [plan](device::Stream& stream, std::span<const TensorView> inputs,
                               std::span<const TensorView> outputs) {
    return plan->run(stream, inputs, outputs);
  };
  for (const auto& [projection, decide] : plan->matrices) {
    const auto size = config::matrix_values(plan->sources[decide.front()], nullptr).size;
    derivation.host_bytes += quantize_scratch_bytes(spec_.format, size);
    for (const ExpertTensor& tensor : spec_.tensors) {
      if (tensor.projection == projection && is_made(spec_, tensor)) {
        derivation.host_bytes += bytes_of(tensor);
      }
    }
  }
  return {};
}

Result<storage::SlotId> define_made(storage::Registry& registry, const ExpertsSpec& spec,
                                    const ExpertTensor& tensor) {
  const std::string name = spec.slot_prefix + "." + tensor.name;
  const storage::ParameterSpec whole = expert_parameter(spec, tensor);
  HF_ASSIGN(const storage::SlotId slot,
            registry.define(storage::SlotSpec{.name = name,
                                              .slot_class = storage::SlotClass::kDerived,
                                              .dtype = whole.dtype,
                                              .shape = whole.shape,
                                              .arena = {}}));
  QuantizedInputs inputs(registry, spec);
  storage::Derivation derivation{.name = name + ".derive",
                                 .inputs = {inputs.stand_in(tensor)},
                                 .outputs = {slot},
                                 .slice_count = spec.shape.expert_count,
                                 .function = &copy_whole};
  HF_TRY(inputs.resolve(derivation));
  HF_TRY(registry.derive(std::move(derivation)));
  return slot;
}

}  // namespace holdfast::experts
