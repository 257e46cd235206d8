#include "reload/stager.h"

#include <algorithm>

#include "base/error.h"
#include "reload/arrivals.h"
#include "reload/derive.h"
#include "reload/stage_far.h"

namespace holdfast::reload {
namespace {

using storage::ParameterId;
using tensor::TensorView;

// One parameter on its way to one use.
struct Delivery {
  ParameterId parameter;
  DeliveryId receipt;
  std::uint64_t receipt_origin = 0;  // where in the parameter the receipt's byte 0 is
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
  explicit Stager(const StageJob& job);
  Status run();

 private:
  const storage::ParameterSpec& parameter(ParameterId id) const {
    return job_.registry.parameters()[id.index()];
  }
  DeriveTarget target() { return {job_.registry, job_.staging, job_.stream, buffered_}; }
  Status read(const Delivery& delivery, std::uint64_t offset, std::span<std::byte> to);
  Status read_piece(ParameterId id, const SourcePiece& piece, std::uint64_t offset,
                    std::span<std::byte> to);
  Status copy(std::size_t copy_index);
  Status compare_alias(ParameterId id);
  Status derive(std::size_t step_index);
  void lay_out_inputs(std::size_t step_index);

  const StageJob& job_;
  Arrivals arrivals_;
  std::vector<TransientBlock> transient_;
  std::vector<std::byte> chunk_;  // for casts and aliases; empty when the plan has none
  // What is on its way where the host cannot write; empty when nothing goes that way.
  std::vector<std::byte> passing_;
  std::uint64_t own_bytes_ = 0;  // of all of these
  std::uint64_t buffered_ = 0;   // by derivations besides, at most
  // Of the derivation that runs now.
  std::vector<TransientInput> transient_inputs_;
  std::vector<TensorView> inputs_;
};

Stager::Stager(const StageJob& job) : job_(job), arrivals_(job.registry, job.plan) {
  std::uint64_t most = 0;
  for (const DeriveStep& step : job.plan.derivations) {
    most = std::max(most, transient_buffer_bytes(job.registry, step));
  }
  transient_.resize(most / sizeof(TransientBlock));
  const bool needs_chunk = std::any_of(
      job.plan.feeds.begin(), job.plan.feeds.end(), [](const ParameterFeed& feed) {
        return feed.cast_from.has_value() || feed.alias_source.has_value();
      });
  if (needs_chunk) chunk_.resize(kStageChunkBytes);
  const bool passes = !job.staging.direct() &&
                      std::any_of(job.plan.copies.begin(), job.plan.copies.end(),
                                  [&](const CopyStep& c) { return !is_plain_copy(job.plan, c); });
  if (passes) passing_.resize(kStageChunkBytes);
  own_bytes_ = most + chunk_.size() + passing_.size();
  job.log.peak_host_bytes = own_bytes_;
}

// Reads stored bytes [offset, offset + to.size()) of a parameter, at most a chunk, from `piece`,
// which holds them all.
Status Stager::read_piece(ParameterId id, const SourcePiece& piece, std::uint64_t offset,
                          std::span<std::byte> to) {
  const storage::ParameterSpec& spec = parameter(id);
  const auto cast_from = job_.plan.feeds[id.index()].cast_from;
  const auto from_bits = static_cast<std::uint64_t>(
      tensor::dtype_bits(cast_from.value_or(spec.dtype)));
  const auto to_bits = static_cast<std::uint64_t>(tensor::dtype_bits(spec.dtype));
  const auto in_source = [&](std::uint64_t bytes) { return bytes * from_bits / to_bits; };
  const std::uint64_t at = in_source(offset - piece.begin);
  const auto bytes =
      cast_from ? std::span(chunk_).first(in_source(to.size())) : std::span<std::byte>(to);
  if (auto status = job_.source.read(piece.source_index, at, bytes); !status.ok()) {
    return status.error().with_context(
        fmt::format("tensor {} bytes [{}, {})", spec.name, at, at + bytes.size()));
  }
  // Now, while the chunk is in the cache.
  arrivals_.note_source(id, in_source(offset), bytes);
  if (cast_from) cast_elements(*cast_from, bytes, spec.dtype, to);
  arrivals_.note_value(id, to);
  if (cast_from) return check_sane(spec, offset, to, CastFrom{*cast_from, bytes});
  return check_sane(spec, offset, to);
}

Status Stager::read(const Delivery& delivery, std::uint64_t offset, std::span<std::byte> to) {
  const auto& pieces = job_.plan.feeds[delivery.parameter.index()].pieces;
  auto piece = std::find_if(pieces.begin(), pieces.end(),
                            [&](const SourcePiece& p) { return p.end > offset; });
  // A cast from the widest type to the narrowest fills the chunk buffer to the last byte.
  const std::size_t most = kStageChunkBytes / (chunk_.empty() ? 1 : sizeof(float));
  for (std::size_t done = 0; done < to.size();) {
    HF_TRY(job_.guard.check("staging"));
    const std::uint64_t at = offset + done;
    while (piece->end <= at) ++piece;
    const std::size_t bytes =
        std::min<std::uint64_t>({most, to.size() - done, piece->end - at});
    job_.log.wrote = true;
    HF_TRY(read_piece(delivery.parameter, *piece, at, to.subspan(done, bytes)));
    HF_TRY(job_.receipts.record(delivery.receipt, at - delivery.receipt_origin, bytes));
    done += bytes;
  }
  return {};
}

Status Stager::copy(std::size_t copy_index) {
  const CopyStep& step = job_.plan.copies[copy_index];
  const bool direct = job_.staging.direct();
  const Delivery delivery{.parameter = step.parameter,
                          .receipt = job_.receipts.of_copy(copy_index),
                          .receipt_origin = step.parameter_offset};
  // Recorded chunk by chunk: the digest goes on while the chunk is in the cache.
  for (std::size_t done = 0; done < step.bytes;) {
    const std::uint64_t at = step.offset_bytes + done;
    const std::size_t bytes = std::min<std::uint64_t>(kStageChunkBytes, step.bytes - done);
    const auto chunk = direct ? job_.staging.bytes(step.slot).subspan(at, bytes)
                              : std::span(passing_).first(bytes);
    HF_TRY(read(delivery, step.parameter_offset + done, chunk));
    if (!direct) HF_TRY(job_.staging.put(step.slot, at, chunk));
    HF_TRY(job_.staging.record(step.slot, at, bytes));
    done += bytes;
  }
  return {};
}

// Both names of a parameter came: they must be one tensor.
Status Stager::compare_alias(ParameterId id) {
  const ParameterFeed& feed = job_.plan.feeds[id.index()];
  if (!feed.alias_source.has_value()) return {};
  const storage::ParameterSpec& spec = parameter(id);
  const tensor::DType dtype = feed.cast_from.value_or(spec.dtype);
  const std::uint64_t bytes = tensor::byte_size(dtype, spec.shape).value();
  // Twice from the source, because a cast leaves nothing to compare with.
  const auto digest_of_source = [&](std::size_t index) -> Result<base::Digest> {
    base::DigestStream digest;
    for (std::uint64_t at = 0; at < bytes;) {
      HF_TRY(job_.guard.check("staging"));
      const auto chunk =
          std::span(chunk_).first(std::min<std::uint64_t>(chunk_.size(), bytes - at));
      HF_TRY(job_.source.read(index, at, chunk));
      digest.add(chunk);
      at += chunk.size();
    }
    return digest.digest();
  };
  const std::size_t first = feed.pieces.front().source_index;
  HF_ASSIGN(const base::Digest one, digest_of_source(first));
  HF_ASSIGN(const base::Digest other, digest_of_source(*feed.alias_source));
  if (one == other) return {};
  return make_error(ErrorCode::kMismatch,
                    "tensors {} and {} are one parameter and differ: digests {} and {}",
                    job_.source.tensors()[first].name,
                    job_.source.tensors()[*feed.alias_source].name, one.to_hex(), other.to_hex());
}

void Stager::lay_out_inputs(std::size_t step_index) {
  const DeriveStep& step = job_.plan.derivations[step_index];
  const storage::Derivation& derivation = job_.registry.derivations()[step.derivation_index];
  transient_inputs_.clear();
  inputs_.clear();
  std::byte* buffer = transient_.empty() ? nullptr : transient_.front().bytes;
  std::uint32_t receipt = job_.receipts.of_derivation(step_index).value;
  for (std::size_t i = 0; i < derivation.inputs.size(); ++i) {
    if (const auto* slot = std::get_if<storage::SlotId>(&derivation.inputs[i])) {
      inputs_.push_back(job_.staging.view(*slot));
      continue;
    }
    const auto id = std::get<ParameterId>(derivation.inputs[i]);
    const storage::ParameterSpec& spec = parameter(id);
    TensorView view{.address = nullptr, .dtype = spec.dtype, .shape = spec.shape};
    if (!step.from_source[i]) {
      view.address = job_.staging.view(*spec.slot).address + spec.offset_bytes;
      inputs_.push_back(view);
      continue;
    }
    const std::uint64_t bytes = transient_slice_bytes(derivation, spec);
    transient_inputs_.push_back(
        {.input_index = i,
         .delivery = {.parameter = id, .receipt = DeliveryId{receipt++}, .receipt_origin = 0},
         .slice_bytes = bytes});
    view.address = buffer;
    buffer += round_to_transient_alignment(bytes);
    inputs_.push_back(derivation.slice_count > 1 ? view.rows(0, 1) : view);
  }
}

Status Stager::derive(std::size_t step_index) {
  const DeriveStep& step = job_.plan.derivations[step_index];
  const storage::Derivation& derivation = job_.registry.derivations()[step.derivation_index];
  HF_TRY(check_inputs_fresh(target(), derivation));
  lay_out_inputs(step_index);
  for (const std::int64_t slice : step.slices) {
    HF_TRY(job_.guard.check("staging"));
    for (const TransientInput& input : transient_inputs_) {
      const std::uint64_t offset = input.slice_bytes * static_cast<std::uint64_t>(slice);
      const auto status = read(input.delivery, offset, inputs_[input.input_index].span());
      if (!status.ok()) return status.error().with_context("derivation " + derivation.name);
    }
    job_.log.wrote = true;
    HF_TRY(derive_slice(target(), derivation, slice, inputs_));
    job_.log.peak_host_bytes = std::max(job_.log.peak_host_bytes, own_bytes_ + buffered_);
  }
  return {};
}

Status Stager::run() {
  const StageTarget kept{job_.registry, job_.plan, job_.staging, job_.guard};
  HF_TRY(check_source(job_.registry, job_.plan, job_.source));
  HF_TRY(stage_preserved(kept));
  for (std::size_t i = 0; i < job_.plan.feeds.size(); ++i) {
    HF_TRY(compare_alias(ParameterId{static_cast<std::uint32_t>(i)}));
  }
  for (std::size_t i = 0; i < job_.plan.copies.size(); ++i) {
    const bool far = !job_.staging.direct() && is_plain_copy(job_.plan, job_.plan.copies[i]);
    if (!far) HF_TRY(copy(i));
  }
  if (!job_.staging.direct()) HF_TRY(stage_far(job_, arrivals_));
  job_.log.wrote = true;
  HF_TRY(stage_constants(kept));
  for (std::size_t i = 0; i < job_.plan.derivations.size(); ++i) HF_TRY(derive(i));
  HF_TRY(job_.staging.finish_writes());
  HF_TRY(job_.source.finish());
  HF_TRY(arrivals_.check_expected());
  job_.log.zeros = arrivals_.suspicious_zeros();
  return {};
}

}  // namespace

// The plan holds indexes into the tensors of the source that it was made from.
Status check_source(const storage::Registry& registry, const ReloadPlan& plan,
                    const Source& source) {
  const auto tensors = source.tensors();
  for (std::size_t i = 0; i < plan.feeds.size(); ++i) {
    const storage::ParameterSpec& spec = registry.parameters()[i];
    const tensor::DType dtype = plan.feeds[i].cast_from.value_or(spec.dtype);
    for (const SourcePiece& piece : plan.feeds[i].pieces) {
      const bool listed = piece.source_index < tensors.size();
      if (listed) {
        const SourceTensor& tensor = tensors[piece.source_index];
        const auto found = registry.find_published(tensor.name);
        if (found && found->parameter.index() == i && tensor.dtype == dtype &&
            tensor.shape == registry.published_shape(*found)) {
          continue;
        }
      }
      return make_error(ErrorCode::kMismatch,
                        "{} is not what the plan was made from ({}): its tensor {} is {}, expected "
                        "{}; make the plan anew",
                        source.describe(), plan.source, piece.source_index,
                        listed ? tensors[piece.source_index].name : "absent", spec.name);
    }
  }
  return {};
}

Status run_stage(const StageJob& job) { return Stager(job).run(); }

}  // namespace holdfast::reload
