#include "reload/fragments.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/error.h"
#include "checkpoint/checkpoint.h"

namespace holdfast::reload {
namespace {

using storage::ParameterId;
using tensor::TensorView;

// Stored bytes that a cast makes at a time; their source may be four times as wide.
constexpr std::size_t kCastBlockBytes = kStageChunkBytes / 4;
constexpr std::size_t kNearestNames = 3;

std::uint64_t bits(tensor::DType dtype) {
  return static_cast<std::uint64_t>(tensor::dtype_bits(dtype));
}

Error unknown_tensor(const storage::Registry& registry, const std::string& name) {
  const auto nearest = checkpoint::nearest_names(name, published_names(registry), kNearestNames);
  return make_error(ErrorCode::kNotFound,
                    "a fragment of {}, which is not a parameter of the live model (nearest: {})",
                    name, fmt::join(nearest, ", "));
}

// Of the parameter, or the first of one expert's tensor.
std::optional<base::Digest> promised_digest(const ParameterFeed& feed) {
  if (feed.expected.has_value()) return feed.expected;
  for (const SourcePiece& piece : feed.pieces) {
    if (piece.expected.has_value()) return piece.expected;
  }
  return std::nullopt;
}

}  // namespace

FragmentStager::FragmentStager(const FragmentJob& job)
    : job_(job), arrivals_(job.registry, job.plan), progress_(job.plan.feeds.size()) {
  for (std::size_t i = 0; i < job.plan.derivations.size(); ++i) {
    const auto& from_source = job.plan.derivations[i].from_source;
    if (std::find(from_source.begin(), from_source.end(), true) == from_source.end()) continue;
    Waiting& waiting = waiting_.emplace_back();
    waiting.step_index = i;
    waiting.buffers.resize(from_source.size());
  }
}

Status FragmentStager::start() {
  const StageTarget kept{job_.registry, job_.plan, job_.staging, job_.guard};
  HF_TRY(stage_preserved(kept));
  return stage_constants(kept);
}

void FragmentStager::grow(std::uint64_t bytes) {
  host_bytes_ += bytes;
  job_.log.peak_host_bytes = std::max(job_.log.peak_host_bytes, host_bytes_);
}

const storage::Derivation& FragmentStager::derivation(const Waiting& waiting) const {
  return job_.registry
      .derivations()[job_.plan.derivations[waiting.step_index].derivation_index];
}

std::uint64_t FragmentStager::parameter_bytes(ParameterId id) const {
  return tensor::byte_size(spec(id).dtype, spec(id).shape).value();
}

bool FragmentStager::wants(ParameterId id, const ByteRange& range) const {
  std::uint64_t at = range.begin;
  for (const SourcePiece& piece : job_.plan.feeds[id.index()].pieces) {
    if (piece.begin <= at && at < piece.end) at = piece.end;
  }
  return at >= range.end;
}

// Whether something was computed from these bytes already.
bool FragmentStager::is_used(ParameterId id, const ByteRange& range) const {
  if (const auto slot = spec(id).slot; slot.has_value()) return used_.contains(*slot);
  if (progress_[id.index()].checked) return true;
  for (const Waiting& waiting : waiting_) {
    const storage::Derivation& of = derivation(waiting);
    const bool reads = std::find(of.inputs.begin(), of.inputs.end(),
                                 storage::DeriveInput(id)) != of.inputs.end();
    if (!reads) continue;
    const std::uint64_t slice_bytes = transient_slice_bytes(of, spec(id));
    for (std::uint64_t slice = range.begin / slice_bytes; slice * slice_bytes < range.end;
         ++slice) {
      if (waiting.done.contains(static_cast<std::int64_t>(slice))) return true;
    }
  }
  return false;
}

Status FragmentStager::check_overlap(const PlacedFragment& placed, const Fragment& fragment) const {
  const Progress& progress = progress_[placed.parameter.index()];
  const ByteRange range = placed.stored;
  const Intervals& came = placed.is_alias ? progress.alias_came : progress.came;
  if (!came.intersects(range.begin, range.end)) return {};
  if (!fragment.overwrite) {
    return make_error(ErrorCode::kCorrupt,
                      "tensor {}: some of bytes [{}, {}) arrived a second time; a fragment that "
                      "replaces bytes must say so",
                      fragment.tensor, range.begin, range.end);
  }
  if (placed.is_alias || !is_used(placed.parameter, range)) return {};
  return make_error(ErrorCode::kFailedPrecondition,
                    "tensor {}: bytes [{}, {}) cannot be replaced: something was computed from "
                    "them; begin anew",
                    fragment.tensor, range.begin, range.end);
}

Result<tensor::DType> FragmentStager::dtype_of(const Fragment& fragment, ParameterId id) const {
  const tensor::DType planned = job_.plan.feeds[id.index()].cast_from.value_or(spec(id).dtype);
  const tensor::DType dtype = fragment.dtype.value_or(planned);
  if (dtype == planned || takes_rounded(spec(id), dtype)) return dtype;
  return make_error(ErrorCode::kMismatch, "tensor {}: a fragment of dtype {}, expected {}",
                    fragment.tensor, tensor::dtype_name(dtype),
                    takes_rounded(spec(id), planned) ? taken_dtypes(spec(id))
                                                     : std::string(tensor::dtype_name(planned)));
}

Result<PlacedFragment> FragmentStager::place(const Fragment& fragment,
                                             std::span<const std::byte> bytes) const {
  const auto found = job_.registry.find_published(fragment.tensor);
  if (!found.has_value()) return unknown_tensor(job_.registry, fragment.tensor);
  const ParameterId id = found->parameter;
  const ParameterFeed& feed = job_.plan.feeds[id.index()];
  if (feed.pieces.empty()) {
    return make_error(ErrorCode::kMismatch, "tensor {} {}", fragment.tensor,
                      outside_text(job_.plan.scope));
  }
  const storage::ParameterSpec& parameter = spec(id);
  HF_ASSIGN(const tensor::DType from, dtype_of(fragment, id));
  const std::optional<base::Digest> promised = promised_digest(feed);
  if (from != parameter.dtype && promised.has_value()) {
    return make_error(ErrorCode::kUnsupported,
                      "tensor {} is cast as it is pushed, so its digest {} cannot be checked: "
                      "promise none, or push {}",
                      fragment.tensor, promised->to_hex(),
                      tensor::dtype_name(parameter.dtype));
  }
  const tensor::Shape& shape = job_.registry.published_shape(*found);
  const std::uint64_t all = tensor::byte_size(from, shape).value();
  std::uint64_t begin = fragment.offset_bytes;
  if (fragment.rows.has_value()) {
    const RowRange rows = *fragment.rows;
    const std::int64_t row_count = shape.rank() > 0 ? shape[0] : 1;
    const std::uint64_t row_bytes = all / static_cast<std::uint64_t>(row_count);
    const bool inside = rows.begin >= 0 && rows.count > 0 && rows.begin < row_count &&
                        rows.count <= row_count - rows.begin;
    if (!inside || bytes.size() != static_cast<std::uint64_t>(rows.count) * row_bytes) {
      return make_error(ErrorCode::kMismatch,
                        "tensor {}: a fragment of {} rows from row {} with {} bytes; it has {} "
                        "rows of {} bytes",
                        fragment.tensor, rows.count, rows.begin, bytes.size(), row_count,
                        row_bytes);
    }
    begin = static_cast<std::uint64_t>(rows.begin) * row_bytes;
  }
  const std::uint64_t element = std::max<std::uint64_t>(bits(from) / 8, 1);
  if (bytes.empty() || begin > all || bytes.size() > all - begin || begin % element != 0 ||
      bytes.size() % element != 0) {
    return make_error(ErrorCode::kMismatch,
                      "tensor {}: a fragment of {} bytes at byte {}; it has {} bytes in elements "
                      "of {}",
                      fragment.tensor, bytes.size(), begin, all, element);
  }
  begin += all * static_cast<std::uint64_t>(found->row.value_or(0));
  const auto stored = [&](std::uint64_t at) { return at * bits(parameter.dtype) / bits(from); };
  const PlacedFragment placed{
      .parameter = id,
      .stored = {stored(begin), stored(begin + bytes.size())},
      .from = from,
      .is_alias = feed.alias_source.has_value() && feed.alias_name == fragment.tensor};
  if (!wants(id, placed.stored)) {
    return make_error(ErrorCode::kMismatch,
                      "tensor {}: of it, bytes [{}, {}) {}", fragment.tensor,
                      placed.stored.begin, placed.stored.end, outside_text(job_.plan.scope));
  }
  HF_TRY(check_overlap(placed, fragment));
  return placed;
}

// Kept whole, to be compared with the first name's bytes at the end.
void FragmentStager::take_alias(const PlacedFragment& placed, std::span<const std::byte> bytes) {
  Progress& progress = progress_[placed.parameter.index()];
  if (progress.alias.empty()) {
    progress.alias.resize(parameter_bytes(placed.parameter));
    grow(progress.alias.size());
  }
  std::memcpy(progress.alias.data() + placed.stored.begin, bytes.data(), bytes.size());
  progress.alias_came.cover(placed.stored.begin, placed.stored.end);
}

void FragmentStager::buffer(Waiting& waiting, std::size_t input, std::uint64_t offset,
                            std::span<const std::byte> bytes) {
  const storage::Derivation& of = derivation(waiting);
  const auto id = std::get<ParameterId>(of.inputs[input]);
  const std::uint64_t slice_bytes = transient_slice_bytes(of, spec(id));
  for (std::size_t done = 0; done < bytes.size();) {
    const std::uint64_t at = offset + done;
    const auto slice = static_cast<std::int64_t>(at / slice_bytes);
    const std::uint64_t in_slice = at % slice_bytes;
    const std::size_t count = std::min<std::uint64_t>(bytes.size() - done, slice_bytes - in_slice);
    Buffer& to = waiting.buffers[input][slice];
    if (to.bytes.empty()) {
      to.bytes.resize(slice_bytes);
      grow(slice_bytes);
    }
    std::memcpy(to.bytes.data() + in_slice, bytes.data() + done, count);
    to.came.cover(in_slice, in_slice + count);
    done += count;
  }
}

Status FragmentStager::take_stored(ParameterId id, std::uint64_t offset,
                                   std::span<const std::byte> bytes,
                                   const std::optional<CastFrom>& from) {
  HF_TRY(check_sane(spec(id), offset, bytes, from));
  arrivals_.note_value(id, bytes);
  if (const auto slot = spec(id).slot; slot.has_value()) {
    HF_TRY(job_.staging.put(*slot, spec(id).offset_bytes + offset, bytes));
    // It may replace what came before.
    job_.staging.rewritten(*slot, spec(id).offset_bytes + offset);
    return {};
  }
  for (Waiting& waiting : waiting_) {
    const storage::Derivation& of = derivation(waiting);
    for (std::size_t input = 0; input < of.inputs.size(); ++input) {
      const auto* parameter = std::get_if<ParameterId>(&of.inputs[input]);
      if (parameter != nullptr && *parameter == id) buffer(waiting, input, offset, bytes);
    }
  }
  return {};
}

Status FragmentStager::take(const PlacedFragment& placed, std::span<const std::byte> bytes,
                            device::Stream& stream) {
  const ParameterId id = placed.parameter;
  job_.log.wrote = true;
  const tensor::DType to = spec(id).dtype;
  const bool casts = placed.from != to;
  if (casts && cast_block_.empty()) {
    cast_block_.resize(kCastBlockBytes);
    grow(cast_block_.size());
  }
  const std::uint64_t stored_bytes = placed.stored.end - placed.stored.begin;
  const auto from_source = [&](std::uint64_t done, std::uint64_t count) {
    return bytes.subspan(done * bits(placed.from) / bits(to), count * bits(placed.from) / bits(to));
  };
  const auto stored_block = [&](std::uint64_t done) {
    const std::size_t most = casts ? kCastBlockBytes : kStageChunkBytes;
    const std::uint64_t count = std::min<std::uint64_t>(most, stored_bytes - done);
    if (!casts) return bytes.subspan(done, count);
    const auto block = std::span(cast_block_).first(count);
    cast_elements(placed.from, from_source(done, count), to, block);
    return std::span<const std::byte>(block);
  };
  for (std::uint64_t done = 0; done < stored_bytes;) {
    HF_TRY(job_.guard.check("staging"));
    const auto block = stored_block(done);
    if (placed.is_alias) {
      const std::uint64_t begin = placed.stored.begin + done;
      take_alias({.parameter = id,
                  .stored = {begin, begin + block.size()},
                  .from = to,
                  .is_alias = true},
                 block);
    } else {
      std::optional<CastFrom> from;
      if (casts) from = CastFrom{placed.from, from_source(done, block.size())};
      HF_TRY(take_stored(id, placed.stored.begin + done, block, from));
    }
    done += block.size();
  }
  if (placed.is_alias) return {};
  progress_[id.index()].came.cover(placed.stored.begin, placed.stored.end);
  HF_TRY(settle(id));
  return run_ready(stream);
}

// A parameter of which all wanted bytes came: its receipts are complete, and a slot of its own is
// this generation's.
Status FragmentStager::settle(ParameterId id) {
  Progress& progress = progress_[id.index()];
  const ParameterFeed& feed = job_.plan.feeds[id.index()];
  if (progress.complete) return {};
  for (const SourcePiece& piece : feed.pieces) {
    if (!progress.came.contains(piece.begin, piece.end)) return {};
  }
  progress.complete = true;
  for (std::size_t i = 0; i < job_.plan.copies.size(); ++i) {
    const CopyStep& copy = job_.plan.copies[i];
    if (copy.parameter != id) continue;
    HF_TRY(job_.receipts.record(job_.receipts.of_copy(i), 0, copy.bytes));
    HF_TRY(job_.staging.record(copy.slot, copy.offset_bytes, copy.bytes));
  }
  if (spec(id).slot.has_value()) return {};
  for (const Waiting& waiting : waiting_) {
    DeliveryId receipt = job_.receipts.of_derivation(waiting.step_index);
    const auto& from_source = job_.plan.derivations[waiting.step_index].from_source;
    for (std::size_t input = 0; input < from_source.size(); ++input) {
      if (!from_source[input]) continue;
      if (std::get<ParameterId>(derivation(waiting).inputs[input]) == id) {
        for (const SourcePiece& piece : feed.pieces) {
          HF_TRY(job_.receipts.record(receipt, piece.begin, piece.end - piece.begin));
        }
      }
      ++receipt.value;
    }
  }
  if (!feed.expected.has_value()) return {};
  progress.checked = true;
  return check_digest(id);
}

}  // namespace holdfast::reload
