#include "reload/arrivals.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "storage/live_bytes.h"
#include "reload/sanity.h"
#include "tensor/codecs.h"

namespace holdfast::reload {
namespace {

// By the published name: the expert's own tensor where there is one.
Error insane_element(const storage::ParameterSpec& spec, tensor::DType dtype, std::uint64_t index,
                     std::string_view what) {
  const bool whole = spec.part_names.empty();
  const tensor::Shape& shape = whole ? spec.shape : spec.part_shape;
  const auto of_one = static_cast<std::uint64_t>(shape.element_count());
  return make_error(ErrorCode::kCorrupt, "tensor {} {} {}: element {} is {}",
                    whole ? spec.name : spec.part_names[index / of_one],
                    tensor::dtype_name(dtype), shape.to_string(), index % of_one, what);
}

}  // namespace

Status check_sane(const storage::ParameterSpec& spec, std::uint64_t offset,
                  std::span<const std::byte> bytes, const std::optional<CastFrom>& from) {
  const Insanity insanity = insanity_of(spec.name, spec.dtype);
  const auto index = find_insane(bytes, insanity);
  if (!index.has_value()) return {};
  const std::uint64_t first =
      offset * 8 / static_cast<std::uint64_t>(tensor::dtype_bits(spec.dtype));
  const auto element_of = [&](tensor::DType dtype, std::span<const std::byte> all) {
    const std::size_t size = static_cast<std::size_t>(tensor::dtype_bits(dtype)) / 8;
    return all.subspan(*index * size, size);
  };
  const auto stored = element_of(spec.dtype, bytes);
  if (!from.has_value()) return insane_value(spec, first + *index, stored);
  const auto value_of = [](tensor::DType dtype, std::span<const std::byte> element) {
    float value = 0;
    tensor::decode_to_f32(dtype, element.data(), 1, &value).value();
    return value;
  };
  const auto came = element_of(from->dtype, from->bytes);
  const float value = value_of(from->dtype, came);
  const bool beyond = std::isfinite(value) && !std::isfinite(value_of(spec.dtype, stored));
  return insane_element(spec, from->dtype, first + *index,
                        beyond ? fmt::format("{}, beyond {}", value, tensor::dtype_name(spec.dtype))
                               : insanity_text(insanity, from->dtype, came.data()));
}

Error insane_value(const storage::ParameterSpec& spec, std::uint64_t index,
                   std::span<const std::byte> element) {
  return insane_element(
      spec, spec.dtype, index,
      insanity_text(insanity_of(spec.name, spec.dtype), spec.dtype, element.data()));
}

Status compare_digests(const std::string& tensor, base::Digest found, base::Digest expected) {
  if (found == expected) return {};
  return make_error(ErrorCode::kCorrupt,
                    "tensor {}: its bytes have digest {}, the publisher promised {}; send it "
                    "again, or make the manifest anew",
                    tensor, found.to_hex(), expected.to_hex());
}

// A range that starts with zero and equals itself moved by one is zero everywhere.
bool all_zero(std::span<const std::byte> bytes) {
  if (bytes.empty()) return true;
  return bytes[0] == std::byte{0} &&
         std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

Arrivals::Arrivals(const storage::Registry& registry, const ReloadPlan& plan)
    : registry_(registry), plan_(plan), progress_(plan.feeds.size()) {
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    if (plan.feeds[i].expected.has_value()) progress_[i].digest.emplace();
    const storage::ParameterSpec& spec = registry.parameters()[i];
    progress_[i].parts = promised_parts(spec, plan.feeds[i]);
    if (plan.from_epoch.value == 0 || !spec.slot.has_value()) continue;
    // Elsewhere it would cost a read of every weight: asked of the few that came all zero.
    if (!registry.device().host_addressable()) continue;
    const std::size_t bytes = tensor::byte_size(spec.dtype, spec.shape).value();
    progress_[i].was_nonzero =
        !all_zero(registry.view(*spec.slot).const_span().subspan(spec.offset_bytes, bytes));
  }
}

std::map<std::uint64_t, Arrivals::Part> Arrivals::promised_parts(
    const storage::ParameterSpec& spec, const ParameterFeed& feed) {
  std::map<std::uint64_t, Part> parts;
  if (spec.part_names.empty()) return parts;
  const tensor::DType from = feed.cast_from.value_or(spec.dtype);
  const std::uint64_t bytes = tensor::byte_size(from, spec.part_shape).value();
  const std::uint64_t stored = tensor::byte_size(spec.dtype, spec.part_shape).value();
  for (const SourcePiece& piece : feed.pieces) {
    if (!piece.expected.has_value()) continue;
    const std::uint64_t row = piece.begin / stored;
    Part& part = parts[row * bytes];
    part.end = (row + 1) * bytes;
    part.name = spec.part_names[row];
    part.expected = *piece.expected;
  }
  return parts;
}

void Arrivals::note_source(storage::ParameterId id, std::uint64_t offset,
                           std::span<const std::byte> bytes) {
  Progress& progress = progress_[id.index()];
  // No chunk crosses from one tensor of the source into the next.
  if (auto part = progress.parts.upper_bound(offset); part != progress.parts.begin()) {
    const auto& [begin, of] = *--part;
    if (offset == begin + of.hashed && offset < of.end) {
      part->second.digest.add(bytes);
      part->second.hashed += bytes.size();
    }
  }
  if (!progress.digest.has_value() || offset != progress.hashed) return;
  progress.digest->add(bytes);
  progress.hashed += bytes.size();
}

void Arrivals::note_value(storage::ParameterId id, std::span<const std::byte> bytes) {
  Progress& progress = progress_[id.index()];
  progress.came = true;
  // Settled by the first chunk of any real tensor.
  progress.nonzero = progress.nonzero || !all_zero(bytes);
}

void Arrivals::note_zero(storage::ParameterId id, bool zero) {
  progress_[id.index()].came = true;
  progress_[id.index()].nonzero |= !zero;
}

Status Arrivals::check_expected() const {
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    for (const auto& [begin, part] : progress_[i].parts) {
      HF_TRY(compare_digests(part.name, part.digest.digest(), part.expected));
    }
    if (!progress_[i].digest.has_value()) continue;
    HF_TRY(compare_digests(registry_.parameters()[i].name, progress_[i].digest->digest(),
                           *plan_.feeds[i].expected));
  }
  return {};
}

// Of a resident parameter that was not found to be other than zero. One that cannot be read counts
// as such: the warning is then one too few, and the read fails where it matters.
bool Arrivals::was_zero(const storage::ParameterSpec& spec) const {
  if (registry_.device().host_addressable()) return true;
  constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;
  storage::LiveBytes live(registry_);
  const std::uint64_t bytes = tensor::byte_size(spec.dtype, spec.shape).value();
  for (std::uint64_t done = 0; done < bytes; done += kPieceBytes) {
    const auto piece =
        live.of(*spec.slot, spec.offset_bytes + done, std::min(kPieceBytes, bytes - done));
    if (!piece.ok()) return true;
    if (!all_zero(*piece)) return false;
  }
  return true;
}

std::vector<storage::ParameterId> Arrivals::suspicious_zeros() const {
  std::vector<storage::ParameterId> zeros;
  if (plan_.from_epoch.value == 0) return zeros;
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    if (!progress_[i].came || progress_[i].nonzero) continue;
    const storage::ParameterSpec& spec = registry_.parameters()[i];
    if (spec.slot.has_value() && !progress_[i].was_nonzero && was_zero(spec)) continue;
    zeros.push_back(storage::ParameterId{static_cast<std::uint32_t>(i)});
  }
  return zeros;
}

}  // namespace holdfast::reload
