#include "reload/stager.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "reload/sanity.h"
#include "reload/unwritten.h"

namespace holdfast::reload {
namespace {

using tensor::TensorView;

// One tensor of the source on its way to one use.
struct Delivery {
  std::size_t source_index = 0;
  storage::ParameterId parameter;
  DeliveryId receipt;
};

// An input of a derivation that lives in the host buffer only while its slice runs.
struct TransientInput {
  std::size_t input_index = 0;
  Delivery delivery;
  std::uint64_t slice_bytes = 0;
};

struct alignas(kTransientAlignment) TransientBlock {
  std::byte bytes[kTransientAlignment];
};

class Stager {
 public:
  explicit Stager(const StageJob& job)
      : job_(job), transient_(transient_bytes(job.registry, job.plan) / sizeof(TransientBlock)) {}

  Status run();

 private:
  static std::uint64_t transient_bytes(const storage::Registry& registry, const ReloadPlan& plan);
  const storage::ParameterSpec& parameter(storage::ParameterId id) const {
    return job_.registry.parameters()[id.index()];
  }
  Status check_cancelled() const;
  Status check_delivery(std::size_t source_index, storage::ParameterId id) const;
  Status read(const Delivery& delivery, std::uint64_t offset, std::span<std::byte> to);
  Status check_sane(const Delivery& delivery, std::uint64_t offset,
                    std::span<const std::byte> bytes) const;
  Status copy(std::size_t copy_index);
  Status write_constants();
  Status derive(std::size_t step_index);
  Status check_inputs_fresh(const storage::Derivation& derivation) const;
  Status run_slice(const storage::Derivation& derivation, std::int64_t slice);

  const StageJob& job_;
  std::vector<TransientBlock> transient_;
  // Of the derivation that runs now.
  std::vector<TransientInput> transient_inputs_;
  std::vector<TensorView> inputs_;
};

std::uint64_t Stager::transient_bytes(const storage::Registry& registry, const ReloadPlan& plan) {
  std::uint64_t most = 0;
  for (const DeriveStep& step : plan.derivations) {
    most = std::max(most, transient_buffer_bytes(registry, step));
  }
  return most;
}

Status Stager::check_cancelled() const {
  if (job_.cancel != nullptr && job_.cancel->load(std::memory_order_relaxed)) {
    return make_error(ErrorCode::kCancelled, "cancelled while staging {}", job_.plan.source);
  }
  return {};
}

// The plan holds indexes into the tensors of the source that it was made from.
Status Stager::check_delivery(std::size_t source_index, storage::ParameterId id) const {
  const storage::ParameterSpec& spec = parameter(id);
  const auto tensors = job_.source.tensors();
  if (source_index < tensors.size()) {
    const SourceTensor& tensor = tensors[source_index];
    if (tensor.name == spec.name && tensor.dtype == spec.dtype && tensor.shape == spec.shape) {
      return {};
    }
  }
  return make_error(ErrorCode::kMismatch,
                    "{} is not what the plan was made from ({}): its tensor {} is {}, expected {}; "
                    "make the plan anew",
                    job_.source.describe(), job_.plan.source, source_index,
                    source_index < tensors.size() ? tensors[source_index].name : "absent",
                    spec.name);
}

Status Stager::check_sane(const Delivery& delivery, std::uint64_t offset,
                          std::span<const std::byte> bytes) const {
  const storage::ParameterSpec& spec = parameter(delivery.parameter);
  const Insanity insanity = insanity_of(spec.name, spec.dtype);
  const auto index = find_insane(bytes, insanity);
  if (!index.has_value()) return {};
  const std::uint64_t first =
      offset * 8 / static_cast<std::uint64_t>(tensor::dtype_bits(spec.dtype));
  return make_error(ErrorCode::kCorrupt, "tensor {} {} {}: element {} is {}", spec.name,
                    tensor::dtype_name(spec.dtype), spec.shape.to_string(), first + *index,
                    insanity_text(insanity));
}

Status Stager::read(const Delivery& delivery, std::uint64_t offset, std::span<std::byte> to) {
  for (std::size_t done = 0; done < to.size();) {
    HF_TRY(check_cancelled());
    const auto chunk = to.subspan(done, std::min(kStageChunkBytes, to.size() - done));
    const std::uint64_t at = offset + done;
    if (auto status = job_.source.read(delivery.source_index, at, chunk); !status.ok()) {
      return status.error().with_context(fmt::format(
          "tensor {} bytes [{}, {})", parameter(delivery.parameter).name, at, at + chunk.size()));
    }
    HF_TRY(job_.receipts.record(delivery.receipt, at, chunk.size()));
    // Now, while the chunk is in the cache.
    HF_TRY(check_sane(delivery, at, chunk));
    done += chunk.size();
  }
  return {};
}

Status Stager::copy(std::size_t copy_index) {
  const CopyStep& step = job_.plan.copies[copy_index];
  HF_TRY(check_delivery(step.source_index, step.parameter));
  const auto to = job_.staging.bytes(step.slot).subspan(step.offset_bytes, step.bytes);
  HF_TRY(read({.source_index = step.source_index,
               .parameter = step.parameter,
               .receipt = job_.receipts.of_copy(copy_index)},
              0, to));
  return job_.staging.record(step.slot, step.offset_bytes, step.bytes);
}

Status Stager::write_constants() {
  for (const storage::SlotId id : job_.staging.slots()) {
    const auto value = job_.registry.constant_value(id);
    if (job_.registry.slot(id).spec.slot_class != storage::SlotClass::kConstant) continue;
    const auto to = job_.staging.bytes(id);
    if (value.size() != to.size()) {
      return make_error(ErrorCode::kFailedPrecondition,
                        "constant slot {} has {} bytes and a value of {}: define it with "
                        "define_constant",
                        job_.registry.slot(id).spec.name, to.size(), value.size());
    }
    std::memcpy(to.data(), value.data(), value.size());
    HF_TRY(job_.staging.record(id, 0, value.size()));
  }
  return {};
}

Status Stager::check_inputs_fresh(const storage::Derivation& derivation) const {
  for (const storage::DeriveInput& input : derivation.inputs) {
    const auto* id = std::get_if<storage::SlotId>(&input);
    const std::optional<storage::SlotId> slot =
        id != nullptr ? *id : parameter(std::get<storage::ParameterId>(input)).slot;
    if (!slot.has_value() || job_.staging.fresh(*slot)) continue;
    return make_error(ErrorCode::kFailedPrecondition,
                      "derivation {} would read slot {} before it holds the bytes of epoch {}",
                      derivation.name, job_.registry.slot(*slot).spec.name,
                      job_.staging.generation());
  }
  return {};
}

Status Stager::derive(std::size_t step_index) {
  const DeriveStep& step = job_.plan.derivations[step_index];
  const storage::Derivation& derivation = job_.registry.derivations()[step.derivation_index];
  HF_TRY(check_inputs_fresh(derivation));
  transient_inputs_.clear();
  inputs_.clear();
  std::byte* buffer = transient_.empty() ? nullptr : transient_.front().bytes;
  std::uint32_t receipt = job_.receipts.of_derivation(step_index).value;
  for (std::size_t i = 0; i < derivation.inputs.size(); ++i) {
    if (const auto* slot = std::get_if<storage::SlotId>(&derivation.inputs[i])) {
      inputs_.push_back(job_.staging.view(*slot));
      continue;
    }
    const auto id = std::get<storage::ParameterId>(derivation.inputs[i]);
    const storage::ParameterSpec& spec = parameter(id);
    TensorView view{.address = nullptr, .dtype = spec.dtype, .shape = spec.shape};
    if (spec.slot.has_value()) {
      view.address = job_.staging.bytes(*spec.slot).data() + spec.offset_bytes;
      inputs_.push_back(view);
      continue;
    }
    const std::size_t source_index = *step.source_of_input[i];
    HF_TRY(check_delivery(source_index, id));
    const std::uint64_t bytes = transient_slice_bytes(derivation, spec);
    transient_inputs_.push_back({.input_index = i,
                                 .delivery = {.source_index = source_index,
                                              .parameter = id,
                                              .receipt = DeliveryId{receipt++}},
                                 .slice_bytes = bytes});
    view.address = buffer;
    buffer += round_to_transient_alignment(bytes);
    inputs_.push_back(derivation.slice_count > 1 ? view.rows(0, 1) : view);
  }
  for (std::int64_t slice = 0; slice < derivation.slice_count; ++slice) {
    if (auto status = run_slice(derivation, slice); !status.ok()) {
      return status.error().with_context("derivation " + derivation.name);
    }
  }
  return {};
}

Status Stager::run_slice(const storage::Derivation& derivation, std::int64_t slice) {
  HF_TRY(check_cancelled());
  for (const TransientInput& input : transient_inputs_) {
    const std::uint64_t offset = input.slice_bytes * static_cast<std::uint64_t>(slice);
    HF_TRY(read(input.delivery, offset, inputs_[input.input_index].span()));
  }
  std::vector<TensorView> outputs;
  for (const storage::SlotId id : derivation.outputs) {
    const TensorView whole = job_.staging.view(id);
    outputs.push_back(derivation.slice_count > 1 ? whole.rows(slice, 1) : whole);
  }
  const auto compute = [&]() -> Status {
    HF_TRY(derivation.function(job_.stream, inputs_, outputs));
    // The host buffer is filled again for the next slice.
    return job_.stream.synchronize();
  };
  HF_TRY(compute());
  HF_ASSIGN(const auto unwritten, find_unwritten(outputs, compute));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const storage::SlotId id = derivation.outputs[i];
    const auto offset =
        static_cast<std::uint64_t>(outputs[i].address - job_.staging.bytes(id).data());
    if (unwritten.has_value() && unwritten->output_index == i) {
      return make_error(ErrorCode::kCorrupt, "byte {} of slot {} was left unwritten",
                        offset + unwritten->byte, job_.registry.slot(id).spec.name);
    }
    HF_TRY(job_.staging.record(id, offset, outputs[i].bytes()));
  }
  return {};
}

Status Stager::run() {
  for (std::size_t i = 0; i < job_.plan.copies.size(); ++i) HF_TRY(copy(i));
  HF_TRY(write_constants());
  for (std::size_t i = 0; i < job_.plan.derivations.size(); ++i) HF_TRY(derive(i));
  return job_.source.finish();
}

}  // namespace

Status run_stage(const StageJob& job) { return Stager(job).run(); }

}  // namespace holdfast::reload
