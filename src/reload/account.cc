#include "reload/account.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/stored_twice.h"

namespace holdfast::reload {
namespace {

using storage::ParameterSpec;
using storage::PublishedTensor;
using storage::SlotClass;

// How many defects an error spells out before it counts the rest.
constexpr std::size_t kSpelledDefects = 3;
constexpr std::size_t kNearestNames = 3;

std::string nearest_text(const std::vector<std::string>& names) {
  if (names.empty()) return "none are known";
  return fmt::format("nearest: {}", fmt::join(names, ", "));
}

std::string ranges_text(const std::vector<ByteRange>& ranges) {
  std::vector<std::string> parts;
  for (const ByteRange& range : ranges) {
    if (parts.size() == kSpelledDefects) {
      parts.emplace_back("...");
      break;
    }
    parts.push_back(fmt::format("[{}, {})", range.begin, range.end));
  }
  return fmt::format("{}", fmt::join(parts, " "));
}

bool is_declared(std::span<const DeclaredCast> casts, std::string_view parameter,
                 tensor::DType from, tensor::DType to) {
  return std::any_of(casts.begin(), casts.end(), [&](const DeclaredCast& cast) {
    return cast.from == from && cast.to == to && !cast.parameter.empty() &&
           parameter.ends_with(cast.parameter);
  });
}

// Slots and parameters of a registry have sizes that do not overflow.
std::uint64_t bytes_of(const ParameterSpec& spec) {
  return tensor::byte_size(spec.dtype, spec.shape).value();
}

}  // namespace

Account::Account(const storage::Registry& registry, const Source& source,
                 const PlanOptions& options, const Selection& selection)
    : registry_(registry),
      source_(source),
      options_(options),
      selection_(selection),
      feeds_(registry.parameters().size()),
      first_source_(registry.parameters().size()) {}

void Account::defect(ErrorCode code, std::string text) {
  if (defect_count_++ == 0) first_code_ = code;
  if (defects_.size() < kSpelledDefects) defects_.push_back(std::move(text));
}

// The nearest names cost a pass over all names: only for defects that will be spelled out.
bool Account::will_be_spelled() const { return defects_.size() < kSpelledDefects; }

std::string Account::nearest_parameters(std::string_view name) const {
  if (!will_be_spelled()) return "";
  return nearest_text(
      checkpoint::nearest_names(name, published_names(registry_), kNearestNames));
}

std::string Account::nearest_sources(std::string_view name) const {
  if (!will_be_spelled()) return "";
  std::vector<std::string> known;
  for (const auto& tensor : source_.tensors()) known.push_back(tensor.name);
  return nearest_text(checkpoint::nearest_names(name, known, kNearestNames));
}

void Account::match_unknown(const SourceTensor& tensor) {
  auto slot = registry_.find_slot(tensor.name);
  constexpr std::string_view kPrefix = "model.";
  if (!slot.has_value() && tensor.name.starts_with(kPrefix)) {
    slot = registry_.find_slot(std::string_view(tensor.name).substr(kPrefix.size()));
  }
  if (slot.has_value() && registry_.slot(*slot).spec.slot_class == SlotClass::kConstant) {
    return defect(ErrorCode::kMismatch,
                  fmt::format("tensor {} names constant slot {}, which is computed from the config "
                              "and never loaded",
                              tensor.name, registry_.slot(*slot).spec.name));
  }
  const auto dtype_of = [this](const std::string& name) -> std::optional<tensor::DType> {
    const auto tensors = source_.tensors();
    const auto found = std::ranges::find(tensors, name, &SourceTensor::name);
    if (found == tensors.end()) return std::nullopt;
    return found->dtype;
  };
  if (will_be_spelled()) {
    if (const auto twice = checkpoint::find_stored_twice(tensor.name, dtype_of)) {
      return defect(ErrorCode::kMismatch,
                    fmt::format("tensor {}: {}", tensor.name, checkpoint::to_text(*twice)));
    }
  }
  defect(ErrorCode::kMismatch,
         fmt::format("tensor {} is not a parameter of the live model ({})", tensor.name,
                     nearest_parameters(tensor.name)));
}

// Dtype, shape, layout and shard.
bool Account::match_form(const SourceTensor& tensor, const PublishedTensor& published) {
  const ParameterIndex parameter = published.parameter.index();
  const ParameterSpec& wanted = spec(parameter);
  const tensor::Shape& shape = registry_.published_shape(published);
  const std::size_t before = defect_count_;
  const auto fail = [&](const std::string& text) {
    defect(ErrorCode::kMismatch, fmt::format("tensor {}: {}", tensor.name, text));
  };
  if (tensor.layout != wanted.layout) {
    fail(fmt::format("layout {}, expected {}", tensor.layout, wanted.layout));
  }
  if (tensor.shard_index != 0 || tensor.shard_count != 1) {
    fail(fmt::format("shard {} of {}, this engine holds shard 0 of 1", tensor.shard_index,
                     tensor.shard_count));
  }
  if (tensor.shape != shape) {
    fail(fmt::format("shape {}, expected {}", tensor.shape.to_string(), shape.to_string()));
  }
  auto& cast_from = feeds_[parameter].cast_from;
  if (tensor.dtype != wanted.dtype) {
    const std::string_view from = tensor::dtype_name(tensor.dtype);
    const std::string_view to = tensor::dtype_name(wanted.dtype);
    if (!takes_rounded(wanted, tensor.dtype) &&
        !is_declared(options_.casts, tensor.name, tensor.dtype, wanted.dtype)) {
      fail(fmt::format("dtype {}, expected {}; nothing is cast in silence", from,
                       taken_dtypes(wanted)));
    } else if (!castable(tensor.dtype, wanted.dtype)) {
      fail(fmt::format("a cast from {} to {} is declared and not possible", from, to));
    } else {
      cast_from = tensor.dtype;
    }
  }
  const auto& first = first_source_[parameter];
  if (first.has_value() && source_.tensors()[*first].dtype != tensor.dtype) {
    fail(fmt::format("dtype {}, its first rows came as {}", tensor::dtype_name(tensor.dtype),
                     tensor::dtype_name(source_.tensors()[*first].dtype)));
  }
  return defect_count_ == before;
}

// Whether source tensor `index` is the second of two names for one parameter.
bool Account::match_alias(std::size_t index, ParameterIndex parameter) {
  const auto& first = first_source_[parameter];
  if (!first.has_value()) return false;
  const SourceTensor& before = source_.tensors()[*first];
  const SourceTensor& tensor = source_.tensors()[index];
  auto& alias = feeds_[parameter].alias_source;
  if (before.name == tensor.name || before.rows || tensor.rows || alias.has_value()) return false;
  if (registry_.find_published(before.name)->row || registry_.find_published(tensor.name)->row) {
    return false;  // rows of one parameter
  }
  alias = index;
  feeds_[parameter].alias_name = tensor.name;
  return true;
}

void Account::match_rows(std::size_t index, const PublishedTensor& published) {
  const SourceTensor& tensor = source_.tensors()[index];
  const ParameterIndex parameter = published.parameter.index();
  const ParameterSpec& wanted = spec(parameter);
  SourcePiece piece{.source_index = index, .begin = 0, .end = bytes_of(wanted)};
  if (published.row && tensor.rows) {
    return defect(ErrorCode::kMismatch,
                  fmt::format("tensor {}: it is one expert's and comes whole, not by rows",
                              tensor.name));
  }
  if (const auto part = published.row ? RowRange{*published.row, 1} : tensor.rows) {
    const RowRange rows = *part;
    const std::int64_t all = wanted.shape.rank() > 0 ? wanted.shape[0] : 0;
    if (rows.begin < 0 || rows.count < 1 || rows.begin > all || rows.count > all - rows.begin) {
      return defect(ErrorCode::kMismatch,
                    fmt::format("tensor {}: {} rows from row {}, it has {}", tensor.name,
                                rows.count, rows.begin, all));
    }
    const std::uint64_t row_bytes = piece.end / static_cast<std::uint64_t>(all);
    piece.begin = static_cast<std::uint64_t>(rows.begin) * row_bytes;
    piece.end = static_cast<std::uint64_t>(rows.end()) * row_bytes;
  }
  auto& pieces = feeds_[parameter].pieces;
  const auto next = std::lower_bound(
      pieces.begin(), pieces.end(), piece.begin,
      [](const SourcePiece& other, std::uint64_t begin) { return other.begin < begin; });
  const SourcePiece* twice = nullptr;
  if (next != pieces.end() && next->begin < piece.end) twice = &*next;
  if (next != pieces.begin() && std::prev(next)->end > piece.begin) twice = &*std::prev(next);
  if (twice != nullptr) {
    return defect(ErrorCode::kMismatch,
                  fmt::format("tensor {} comes twice, as number {} and number {} of the source",
                              tensor.name, twice->source_index, index));
  }
  pieces.insert(next, piece);
}

void Account::match_source_tensor(std::size_t index) {
  const SourceTensor& tensor = source_.tensors()[index];
  const auto published = registry_.find_published(tensor.name);
  if (!published.has_value()) return match_unknown(tensor);
  const ParameterIndex parameter = published->parameter.index();
  if (!selection_.parameters[parameter].any) {
    return defect(ErrorCode::kMismatch,
                  fmt::format("tensor {} {}", tensor.name, outside_text(options_.scope)));
  }
  const bool fits = match_form(tensor, *published);
  if (fits && match_alias(index, parameter)) return;
  // Also when it does not fit, so that it is not called missing as well.
  if (!first_source_[parameter].has_value()) first_source_[parameter] = index;
  if (fits) match_rows(index, *published);
}

// The part that holds byte `at`, else the parameter itself.
const std::string& Account::published_name(ParameterIndex parameter, std::uint64_t at) const {
  const ParameterSpec& wanted = spec(parameter);
  if (wanted.part_names.empty()) return wanted.name;
  return wanted.part_names[at / (bytes_of(wanted) / wanted.part_names.size())];
}

// What of a selected parameter did not come, and what came that is not selected.
void Account::match_parameter(ParameterIndex parameter) {
  const ParameterSelection& selection = selection_.parameters[parameter];
  if (!selection.any) return;
  const auto missing = [&](std::uint64_t at) {
    const std::string& name = published_name(parameter, at);
    defect(ErrorCode::kNotFound,
           fmt::format("tensor {} is missing ({})", name, nearest_sources(name)));
  };
  const auto wanted = selected_bytes(spec(parameter), selection);
  if (!first_source_[parameter].has_value()) return missing(wanted.front().begin);
  const auto& pieces = feeds_[parameter].pieces;
  if (pieces.empty()) return;  // its form is a defect already
  std::vector<ByteRange> came;
  for (const SourcePiece& piece : pieces) {
    if (!came.empty() && came.back().end == piece.begin) {
      came.back().end = piece.end;
    } else {
      came.push_back({piece.begin, piece.end});
    }
  }
  if (came == wanted) return;
  if (!spec(parameter).part_names.empty()) {
    for (const ByteRange& range : wanted) {
      std::uint64_t at = range.begin;
      for (const ByteRange& here : came) at = here.begin <= at && at < here.end ? here.end : at;
      if (at < range.end) return missing(at);
    }
  }
  defect(ErrorCode::kMismatch,
         fmt::format("tensor {}: the source has bytes {} of it, wanted are {}",
                     spec(parameter).name, ranges_text(came), ranges_text(wanted)));
}

// Of one expert's own tensor.
void Account::match_part_digest(const std::string& name, ParameterIndex parameter,
                                base::Digest digest) {
  for (SourcePiece& piece : feeds_[parameter].pieces) {
    if (source_.tensors()[piece.source_index].name == name) piece.expected = digest;
  }
}

Status Account::match_digests() {
  for (const auto& [name, digest] : options_.expected_digests) {
    const auto id = registry_.find_parameter(name);
    if (const auto part = registry_.find_published(name); part && part->row) {
      match_part_digest(name, part->parameter.index(), digest);
      continue;
    }
    if (!id.has_value()) {
      return make_error(ErrorCode::kNotFound,
                        "an expected digest for {}, which is not a parameter of the live model "
                        "({})",
                        name, nearest_parameters(name));
    }
    ParameterFeed& feed = feeds_[id->index()];
    if (feed.pieces.empty()) continue;  // outside of the scope
    if (feed.expected.has_value() && *feed.expected != digest) {
      return make_error(ErrorCode::kMismatch,
                        "parameter {} has two names with the expected digests {} and {}",
                        spec(id->index()).name, feed.expected->to_hex(), digest.to_hex());
    }
    if (selection_.parameters[id->index()].rows.empty()) {
      feed.expected = digest;
    } else {
      notes_.push_back(fmt::format(
          "the expected digest of {} covers all its rows and only some come: not checked", name));
    }
  }
  return {};
}

Result<std::vector<ParameterFeed>> Account::run() {
  for (std::size_t i = 0; i < source_.tensors().size(); ++i) match_source_tensor(i);
  for (std::size_t i = 0; i < feeds_.size(); ++i) match_parameter(i);
  if (defect_count_ > 0) {
    const std::size_t rest = defect_count_ - defects_.size();
    return make_error(first_code_, "{}: {}{}", source_.describe(), fmt::join(defects_, "; "),
                      rest == 0 ? "" : fmt::format("; and {} more", rest));
  }
  HF_TRY(match_digests());
  return std::move(feeds_);
}

}  // namespace holdfast::reload
