#include "serve/safetensors_stream.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "serve/json_reader.h"

namespace holdfast::serve {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxRank = 8;

// Bytes of one element; empty for a dtype that is not known. (safetensors, "Dtype")
std::optional<std::size_t> element_bytes(std::string_view dtype) {
  for (const std::string_view name : {"BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"}) {
    if (dtype == name) return 1;
  }
  for (const std::string_view name : {"U16", "I16", "F16", "BF16"}) {
    if (dtype == name) return 2;
  }
  for (const std::string_view name : {"U32", "I32", "F32"}) {
    if (dtype == name) return 4;
  }
  for (const std::string_view name : {"U64", "I64", "F64"}) {
    if (dtype == name) return 8;
  }
  return std::nullopt;
}

Error corrupt(std::string_view tensor, const std::string& what) {
  return make_error(ErrorCode::kCorrupt, "safetensors header: tensor {}: {}", tensor, what);
}

// `bytes` is what the shape and the dtype make.
Result<TensorInfo> read_tensor(std::string_view name, const JsonValue& value,
                               std::uint64_t element, std::uint64_t& bytes) {
  TensorInfo tensor{.name = std::string(name), .dtype = {}, .shape = {}};
  bytes = element;
  for (const auto& [key, content] : value.members()) {
    if (key == "dtype") tensor.dtype = std::string(content.string().value_or(""));
    if (key != "shape") continue;
    const auto dims = content.elements();
    if (content.kind() != JsonKind::kArray || dims.size() > kMaxRank) {
      return corrupt(name, fmt::format("shape is {}, expected at most {} numbers", content.brief(),
                                       kMaxRank));
    }
    for (const JsonValue& dim : dims) {
      const auto size = dim.natural();
      if (!size || *size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ||
          (*size != 0 && bytes > std::numeric_limits<std::uint64_t>::max() / *size)) {
        return corrupt(name, "shape has the dimension " + dim.brief());
      }
      bytes *= *size;
      tensor.shape.push_back(static_cast<std::int64_t>(*size));
    }
  }
  return tensor;
}

struct Field {
  std::optional<JsonValue> dtype, offsets;
};
Field fields_of(const JsonValue& value) {
  Field field;
  for (const auto& [key, content] : value.members()) {
    if (key == "dtype") field.dtype = content;
    if (key == "data_offsets") field.offsets = content;
  }
  return field;
}

}  // namespace

Status SafetensorsStream::take_header(std::span<const std::byte>& bytes) {
  const std::size_t wanted = header_.size() < kLengthBytes
                                 ? kLengthBytes - header_.size()
                                 : kLengthBytes + header_bytes_ - header_.size();
  const std::size_t count = std::min(wanted, bytes.size());
  header_.insert(header_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
  bytes = bytes.subspan(count);
  if (header_.size() == kLengthBytes) {
    header_bytes_ = 0;
    for (std::size_t i = kLengthBytes; i > 0; --i) {
      header_bytes_ = header_bytes_ << 8 | static_cast<std::uint64_t>(header_[i - 1]);
    }
    if (header_bytes_ < 2 || header_bytes_ > kMaxStreamHeaderBytes) {
      return make_error(ErrorCode::kCorrupt,
                        "safetensors: the header is {} bytes long, expected 2 to {}",
                        header_bytes_, kMaxStreamHeaderBytes);
    }
  }
  if (header_.size() < kLengthBytes || header_.size() < kLengthBytes + header_bytes_) return {};
  HF_TRY(parse_header());
  parsed_ = true;
  header_ = {};
  std::vector<TensorInfo> tensors;
  for (const Part& part : parts_) tensors.push_back(part.tensor);
  return sinks_.on_header(tensors);
}

Status SafetensorsStream::parse_header() {
  const std::string_view text(reinterpret_cast<const char*>(header_.data()) + kLengthBytes,
                              header_bytes_);
  JsonDocument document;
  if (const auto error = JsonDocument::parse(text, document)) {
    return make_error(ErrorCode::kCorrupt, "safetensors header: {}", error->message);
  }
  if (document.root().kind() != JsonKind::kObject) {
    return make_error(ErrorCode::kCorrupt, "safetensors header: expected an object, not {}",
                      document.root().brief());
  }
  std::set<std::string_view> names;
  const auto members = document.root().members();
  if (members.size() > kMaxStreamTensors) {
    return make_error(ErrorCode::kCorrupt, "safetensors header: {} tensors, at most {}",
                      members.size(), kMaxStreamTensors);
  }
  for (const auto& [name, value] : members) {
    if (name == "__metadata__") continue;
    if (!names.insert(name).second) return corrupt(name, "its name comes twice");
    const Field field = fields_of(value);
    const auto dtype = field.dtype ? field.dtype->string() : std::nullopt;
    const auto element = dtype ? element_bytes(*dtype) : std::nullopt;
    if (!element) {
      return corrupt(name, "dtype is " + (field.dtype ? field.dtype->brief() : "missing") +
                               ", which is not known");
    }
    const auto offsets = field.offsets ? field.offsets->elements() : std::vector<JsonValue>();
    const auto begin = offsets.size() == 2 ? offsets[0].natural() : std::nullopt;
    const auto end = offsets.size() == 2 ? offsets[1].natural() : std::nullopt;
    if (!begin || !end || *begin > *end) {
      return corrupt(name, "data_offsets is " +
                               (field.offsets ? field.offsets->brief() : std::string("missing")) +
                               ", expected [begin, end]");
    }
    std::uint64_t bytes = 0;
    HF_ASSIGN(TensorInfo tensor, read_tensor(name, value, *element, bytes));
    if (bytes != *end - *begin) {
      return corrupt(name, fmt::format("its shape and dtype are {} bytes, data_offsets {}", bytes,
                                       *end - *begin));
    }
    parts_.push_back({std::move(tensor), *begin, *end, *element});
  }
  std::sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t at = 0;
  for (const Part& part : parts_) {
    if (part.begin != at) {
      return corrupt(part.tensor.name,
                     fmt::format("it begins at byte {} of the data, the one before ends at {}",
                                 part.begin, at));
    }
    at = part.end;
  }
  return {};
}

// Whole elements at once; one that is cut by the pieces is put together first.
Status SafetensorsStream::take_data(std::span<const std::byte>& bytes) {
  while (part_ < parts_.size() && position_ == parts_[part_].end) ++part_;
  if (part_ == parts_.size()) {
    return make_error(ErrorCode::kCorrupt,
                      "safetensors: {} bytes follow the last tensor, which ends at byte {}",
                      bytes.size(), position_);
  }
  const Part& part = parts_[part_];
  const std::size_t left =
      static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), part.end - position_ -
                                                                         element_size_));
  if (element_size_ == 0 && left >= part.element_bytes) {
    const std::size_t whole = left - left % part.element_bytes;
    HF_TRY(emit(bytes.first(whole)));
    bytes = bytes.subspan(whole);
    return {};
  }
  const std::size_t count = std::min(part.element_bytes - element_size_, left);
  std::memcpy(element_.data() + element_size_, bytes.data(), count);
  element_size_ += count;
  bytes = bytes.subspan(count);
  if (element_size_ < part.element_bytes) return {};
  element_size_ = 0;
  return emit(std::span(element_).first(part.element_bytes));
}

Status SafetensorsStream::emit(std::span<const std::byte> bytes) {
  const Part& part = parts_[part_];
  const std::uint64_t offset = position_ - part.begin;
  position_ += bytes.size();
  return sinks_.on_bytes(part.tensor, offset, bytes);
}

Status SafetensorsStream::feed(std::span<const std::byte> bytes) {
  fed_ += bytes.size();
  while (!bytes.empty()) {
    HF_TRY(parsed_ ? take_data(bytes) : take_header(bytes));
  }
  return {};
}

Status SafetensorsStream::finish() const {
  if (!parsed_) {
    return make_error(ErrorCode::kCorrupt, "safetensors: it ends within the header, after {} bytes",
                      fed_);
  }
  std::uint64_t end = parts_.empty() ? 0 : parts_.back().end;
  if (position_ == end) return {};
  return make_error(ErrorCode::kCorrupt, "safetensors: it ends at byte {} of {}, within tensor {}",
                    position_ + element_size_, end,
                    parts_[std::min(part_, parts_.size() - 1)].tensor.name);
}

}  // namespace holdfast::serve
