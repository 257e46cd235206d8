// The second half of FragmentStager: slices that have all their inputs, and the end.
#include <algorithm>

#include "base/digest.h"
#include "base/error.h"
#include "reload/fragments.h"

namespace holdfast::reload {
namespace {

using storage::ParameterId;
using tensor::TensorView;

// Of one of a parameter's published tensors.
const std::string& part_name(const storage::ParameterSpec& spec, const SourcePiece& piece) {
  return spec.part_names[piece.begin / (piece.end - piece.begin)];
}

}  // namespace

// All slices of a tensor with an expected digest wait until it is complete.
base::Digest FragmentStager::digest_of_transient(ParameterId id) const {
  base::DigestStream digest;
  for (const Waiting& waiting : waiting_) {
    const storage::Derivation& of = derivation(waiting);
    for (std::size_t input = 0; input < of.inputs.size(); ++input) {
      const auto* parameter = std::get_if<ParameterId>(&of.inputs[input]);
      if (parameter == nullptr || *parameter != id) continue;
      for (const auto& [slice, buffered] : waiting.buffers[input]) digest.add(buffered.bytes);
      return digest.digest();
    }
  }
  return digest.digest();
}

Status FragmentStager::check_digest(ParameterId id) const {
  const auto expected = job_.plan.feeds[id.index()].expected;
  if (!expected.has_value()) return {};
  const storage::ParameterSpec& parameter = spec(id);
  if (!parameter.slot.has_value()) {
    return compare_digests(parameter.name, digest_of_transient(id), *expected);
  }
  HF_ASSIGN(const base::Digest found,
            job_.staging.plain_digest(*parameter.slot, parameter.offset_bytes,
                                      parameter_bytes(id)));
  return compare_digests(parameter.name, found, *expected);
}

// `bytes`: the whole slice, which holds whole experts.
Status FragmentStager::check_transient_parts(ParameterId id, std::int64_t slice,
                                             std::span<const std::byte> bytes) const {
  const std::uint64_t begin = static_cast<std::uint64_t>(slice) * bytes.size();
  for (const SourcePiece& piece : job_.plan.feeds[id.index()].pieces) {
    if (!piece.expected || piece.begin < begin || piece.end > begin + bytes.size()) continue;
    const auto part = bytes.subspan(piece.begin - begin, piece.end - piece.begin);
    HF_TRY(compare_digests(part_name(spec(id), piece), base::digest_of(part), *piece.expected));
  }
  return {};
}

Status FragmentStager::check_resident_parts(ParameterId id) const {
  const storage::ParameterSpec& parameter = spec(id);
  for (const SourcePiece& piece : job_.plan.feeds[id.index()].pieces) {
    if (!piece.expected) continue;
    HF_ASSIGN(const base::Digest found,
              job_.staging.plain_digest(*parameter.slot, parameter.offset_bytes + piece.begin,
                                        piece.end - piece.begin));
    HF_TRY(compare_digests(part_name(parameter, piece), found, *piece.expected));
  }
  return {};
}

bool FragmentStager::ready(const Waiting& waiting, std::int64_t slice) const {
  const storage::Derivation& of = derivation(waiting);
  for (std::size_t input = 0; input < of.inputs.size(); ++input) {
    if (!job_.plan.derivations[waiting.step_index].from_source[input]) continue;
    const auto id = std::get<ParameterId>(of.inputs[input]);
    const auto found = waiting.buffers[input].find(slice);
    if (found == waiting.buffers[input].end()) return false;
    if (!found->second.came.covers(found->second.bytes.size())) return false;
    const bool promised = job_.plan.feeds[id.index()].expected.has_value();
    if (promised && !progress_[id.index()].checked) return false;
  }
  return true;
}

Status FragmentStager::run_ready(device::Stream& stream) {
  const DeriveTarget target{job_.registry, job_.staging, stream, buffered_};
  for (Waiting& waiting : waiting_) {
    if (!inputs_fresh(target, derivation(waiting))) continue;
    for (const std::int64_t slice : job_.plan.derivations[waiting.step_index].slices) {
      if (waiting.done.contains(slice) || !ready(waiting, slice)) continue;
      HF_TRY(job_.guard.check("staging"));
      HF_TRY(run_slice(waiting, slice, stream));
    }
  }
  return {};
}

Status FragmentStager::run_slice(Waiting& waiting, std::int64_t slice, device::Stream& stream) {
  const storage::Derivation& of = derivation(waiting);
  std::vector<TensorView> inputs;
  for (std::size_t input = 0; input < of.inputs.size(); ++input) {
    if (const auto* slot = std::get_if<storage::SlotId>(&of.inputs[input])) {
      inputs.push_back(job_.staging.view(*slot));
      used_.insert(*slot);
      continue;
    }
    const storage::ParameterSpec& parameter = spec(std::get<ParameterId>(of.inputs[input]));
    TensorView view{.address = nullptr, .dtype = parameter.dtype, .shape = parameter.shape};
    if (parameter.slot.has_value()) {
      view.address = job_.staging.view(*parameter.slot).address + parameter.offset_bytes;
      used_.insert(*parameter.slot);
      inputs.push_back(view);
      continue;
    }
    const auto& bytes = waiting.buffers[input][slice].bytes;
    HF_TRY(check_transient_parts(std::get<ParameterId>(of.inputs[input]), slice, bytes));
    view.address = waiting.buffers[input][slice].bytes.data();
    inputs.push_back(of.slice_count > 1 ? view.rows(0, 1) : view);
  }
  HF_TRY(derive_slice({job_.registry, job_.staging, stream, buffered_}, of, slice, inputs));
  job_.log.peak_host_bytes = std::max(job_.log.peak_host_bytes, host_bytes_ + buffered_);
  for (auto& of_input : waiting.buffers) {
    const auto buffered = of_input.find(slice);
    if (buffered == of_input.end()) continue;
    host_bytes_ -= buffered->second.bytes.size();
    of_input.erase(buffered);
  }
  waiting.done.insert(slice);
  return {};
}

// A derivation without transient inputs: all that it reads lies in staging.
Status FragmentStager::run_resident(std::size_t step_index, device::Stream& stream) {
  Waiting waiting{.step_index = step_index, .buffers = {}, .done = {}};
  waiting.buffers.resize(derivation(waiting).inputs.size());
  for (const std::int64_t slice : job_.plan.derivations[step_index].slices) {
    HF_TRY(job_.guard.check("staging"));
    HF_TRY(run_slice(waiting, slice, stream));
  }
  return {};
}

Status FragmentStager::check_all_came() const {
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    const ParameterId id{static_cast<std::uint32_t>(i)};
    for (const SourcePiece& piece : job_.plan.feeds[i].pieces) {
      if (progress_[i].came.contains(piece.begin, piece.end)) continue;
      const auto hole = progress_[i].came.first_hole_in(piece.begin, piece.end);
      return make_error(ErrorCode::kCorrupt, "tensor {}: bytes [{}, {}) of {} never arrived",
                        spec(id).name, hole->begin, hole->end, parameter_bytes(id));
    }
    if (job_.plan.feeds[i].alias_source.has_value() &&
        !progress_[i].alias_came.covers(parameter_bytes(id))) {
      const auto hole = progress_[i].alias_came.first_hole(parameter_bytes(id));
      return make_error(ErrorCode::kCorrupt, "tensor {}: bytes [{}, {}) of {} never arrived",
                        job_.plan.feeds[i].alias_name, hole->begin, hole->end,
                        parameter_bytes(id));
    }
  }
  return {};
}

Status FragmentStager::check_aliases() const {
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    if (!job_.plan.feeds[i].alias_source.has_value()) continue;
    const storage::ParameterSpec& parameter = job_.registry.parameters()[i];
    HF_ASSIGN(const base::Digest one,
              job_.staging.plain_digest(*parameter.slot, parameter.offset_bytes,
                                        progress_[i].alias.size()));
    const base::Digest other = base::digest_of(progress_[i].alias);
    if (one == other) continue;
    return make_error(ErrorCode::kMismatch,
                      "tensors {} and {} are one parameter and differ: digests {} and {}",
                      parameter.name, job_.plan.feeds[i].alias_name, one.to_hex(), other.to_hex());
  }
  return {};
}

Status FragmentStager::finish(device::Stream& stream) {
  HF_TRY(job_.guard.check("staging"));
  HF_TRY(check_all_came());
  HF_TRY(check_aliases());
  const DeriveTarget target{job_.registry, job_.staging, stream, buffered_};
  for (std::size_t i = 0; i < job_.plan.derivations.size(); ++i) {
    const auto waiting = std::find_if(waiting_.begin(), waiting_.end(),
                                      [i](const Waiting& w) { return w.step_index == i; });
    if (waiting == waiting_.end()) {
      const std::size_t index = job_.plan.derivations[i].derivation_index;
      HF_TRY(check_inputs_fresh(target, job_.registry.derivations()[index]));
      HF_TRY(run_resident(i, stream));
    } else {
      HF_TRY(run_ready(stream));
    }
  }
  // Resident tensors might be overwritten until now.
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    const ParameterId id{static_cast<std::uint32_t>(i)};
    if (!spec(id).slot.has_value()) continue;
    HF_TRY(check_digest(id));
    HF_TRY(check_resident_parts(id));
  }
  HF_TRY(job_.staging.finish_writes());
  job_.log.zeros = arrivals_.suspicious_zeros();
  return {};
}

}  // namespace holdfast::reload
