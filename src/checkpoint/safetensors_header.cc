#include <simdjson.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/assert.h"
#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "config/json_fields.h"

namespace holdfast::checkpoint {
namespace {

using config::brief_json;
using config::JsonFields;

static_assert(std::endian::native == std::endian::little,
              "safetensors is little-endian and holdfast reads it in place");

constexpr std::size_t kLengthBytes = 8;
// object, tensor object, array: 3. The rest is room for unknown fields.
constexpr std::size_t kMaxDepth = 16;
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr JsonFields::Limits kHeaderLimits{kMaxHeaderBytes, kMaxDepth};

// Field errors of a file that breaks its format.
template <typename T>
Result<T> corrupt_if_failed(Result<T> result) {
  if (result.ok()) return result;
  return Error(ErrorCode::kCorrupt, result.error().message());
}

Result<std::uint64_t> header_length(std::span<const std::byte> head, std::uint64_t file_bytes,
                                    const std::string& name) {
  if (file_bytes < kLengthBytes) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: {} bytes long, expected a header length of {} bytes and a header", name,
                      file_bytes, kLengthBytes);
  }
  HF_ASSERT(head.size() >= kLengthBytes, "the head holds less than the header length");
  std::uint64_t length = 0;
  std::memcpy(&length, head.data(), kLengthBytes);
  if (length > file_bytes - kLengthBytes) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: the header length is {} bytes, the file has {} after it", name, length,
                      file_bytes - kLengthBytes);
  }
  if (length > kMaxHeaderBytes) {
    return make_error(ErrorCode::kCorrupt, "{}: the header length is {} bytes, the most is {}",
                      name, length, kMaxHeaderBytes);
  }
  return length;
}

Status check_tensor_name(std::string_view tensor, const std::string& name) {
  if (tensor.empty() || tensor.size() > kMaxTensorNameBytes) {
    return make_error(ErrorCode::kCorrupt, "{}: a tensor's name has {} bytes, accepted are 1 to {}",
                      name, tensor.size(), kMaxTensorNameBytes);
  }
  // Names go into messages and logs; a control character could forge a line there.
  for (const char c : tensor) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      return make_error(ErrorCode::kCorrupt,
                        "{}: a tensor's name has the control character {:#04x}", name, byte);
    }
  }
  return {};
}

std::string known_dtypes() {
  std::string names;
  for (int i = 0; i < tensor::kDTypeCount; ++i) {
    names += (i == 0 ? "" : ", ");
    names += tensor::safetensors_dtype_name(static_cast<tensor::DType>(i));
  }
  return names;
}

Result<tensor::DType> parse_dtype(const JsonFields& fields) {
  HF_ASSIGN(const auto text, corrupt_if_failed(fields.optional_text("dtype")));
  if (!text) return Error(ErrorCode::kCorrupt, fields.missing("dtype").message());
  const auto dtype = tensor::dtype_from_safetensors(*text);
  if (!dtype) {
    return make_error(ErrorCode::kUnsupported, "{}: dtype is {}; this engine knows {}",
                      fields.name(), brief_json(*fields.find("dtype")), known_dtypes());
  }
  return *dtype;
}

Result<tensor::Shape> parse_shape(const JsonFields& fields) {
  HF_ASSIGN(const auto array, corrupt_if_failed(fields.optional_array("shape")));
  if (!array) return Error(ErrorCode::kCorrupt, fields.missing("shape").message());
  std::vector<std::int64_t> dims;
  for (const simdjson::dom::element element : *array) {
    std::int64_t dim = 0;
    if (!element.is_int64() || element.get(dim)) {
      return make_error(ErrorCode::kCorrupt, "{}: shape has {}, expected whole numbers below 2^63",
                        fields.name(), brief_json(element));
    }
    dims.push_back(dim);
    if (dims.size() > std::size_t{tensor::Shape::kMaxRank}) break;  // from_dims refuses it
  }
  auto shape = tensor::Shape::from_dims(dims);
  if (shape.ok()) return shape;
  return make_error(ErrorCode::kCorrupt, "{}: {}", fields.name(), shape.error().message());
}

Result<std::pair<std::uint64_t, std::uint64_t>> parse_offsets(const JsonFields& fields) {
  HF_ASSIGN(const auto array, corrupt_if_failed(fields.optional_array("data_offsets")));
  if (!array) return Error(ErrorCode::kCorrupt, fields.missing("data_offsets").message());
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  // is_uint64 and is_int64 part the numbers at 2^63; get() takes both when not negative.
  if (array->size() != 2 || array->at(0).get(begin) || array->at(1).get(end)) {
    return make_error(ErrorCode::kCorrupt, "{}: data_offsets is {}, expected [begin, end]",
                      fields.name(), brief_json(*fields.find("data_offsets")));
  }
  if (begin > end) {
    return make_error(ErrorCode::kCorrupt, "{}: begins at byte {} and ends before it, at {}",
                      fields.name(), begin, end);
  }
  return std::pair(begin, end);
}

struct FileExtent {
  std::uint64_t data_begin;
  std::uint64_t file_bytes;
};

Status check_range(const TensorEntry& entry, const JsonFields& fields, FileExtent extent) {
  if (entry.end > extent.file_bytes - extent.data_begin) {
    // Two numbers instead of their sum, which may overflow.
    return make_error(ErrorCode::kCorrupt,
                      "{}: ends at byte {} of the data, the file has {} (was it cut short?)",
                      fields.name(), entry.end, extent.file_bytes - extent.data_begin);
  }
  const auto bytes = tensor::byte_size(entry.dtype, entry.shape);
  if (!bytes.ok()) {
    return make_error(ErrorCode::kCorrupt, "{}: {}", fields.name(), bytes.error().message());
  }
  if (*bytes != entry.end - entry.begin) {
    return make_error(ErrorCode::kCorrupt, "{}: {} of shape {} takes {} bytes, its range has {}",
                      fields.name(), tensor::dtype_name(entry.dtype), entry.shape.to_string(),
                      *bytes, entry.end - entry.begin);
  }
  const auto width = static_cast<std::uint64_t>(std::max(tensor::dtype_bits(entry.dtype) / 8, 1));
  const std::uint64_t offset = extent.data_begin + entry.begin;
  if (*bytes > 0 && offset % width != 0) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: begins at byte {} of the file, not a multiple of the {} bytes of {}",
                      fields.name(), offset, width, tensor::dtype_name(entry.dtype));
  }
  return {};
}

Result<TensorEntry> parse_entry(std::string_view tensor, simdjson::dom::element value,
                                FileExtent extent, const std::string& name) {
  HF_TRY(check_tensor_name(tensor, name));
  simdjson::dom::object object;
  if (value.get(object)) {
    return make_error(ErrorCode::kCorrupt, "{}: tensor {} is {}, expected an object", name, tensor,
                      brief_json(value));
  }
  HF_ASSIGN(const JsonFields fields,
            JsonFields::from_object(object, fmt::format("{}: tensor {}", name, tensor)));
  TensorEntry entry;
  entry.name = tensor;
  HF_ASSIGN(entry.dtype, parse_dtype(fields));
  HF_ASSIGN(entry.shape, parse_shape(fields));
  HF_ASSIGN(const auto offsets, parse_offsets(fields));
  entry.begin = offsets.first;
  entry.end = offsets.second;
  HF_TRY(check_range(entry, fields, extent));
  return entry;
}

Result<std::map<std::string, std::string>> parse_metadata(simdjson::dom::element value,
                                                          const std::string& name) {
  simdjson::dom::object object;
  if (value.get(object)) {
    return make_error(ErrorCode::kCorrupt, "{}: {} is {}, expected an object", name, kMetadataKey,
                      brief_json(value));
  }
  HF_ASSIGN(const JsonFields fields,
            JsonFields::from_object(object, fmt::format("{}: {}", name, kMetadataKey)));
  std::map<std::string, std::string> metadata;
  for (const auto field : fields.object()) {
    std::string_view text;
    if (field.value.get(text)) {
      return make_error(ErrorCode::kCorrupt, "{}: a value is {}, expected a string", fields.name(),
                        brief_json(field.value));
    }
    metadata.emplace(field.key, text);
  }
  return metadata;
}

// The tensors, in order, must cover the data section exactly, as the format demands: every byte of
// the file is accounted for.
Status check_cover(const std::vector<TensorEntry>& tensors, FileExtent extent,
                   const std::string& name) {
  std::uint64_t covered = 0;
  const TensorEntry* last = nullptr;
  for (const TensorEntry& entry : tensors) {
    if (entry.begin < covered) {
      return make_error(ErrorCode::kCorrupt,
                        "{}: tensor {} begins at byte {} and overlaps tensor {}, which ends at {}",
                        name, entry.name, entry.begin, last->name, covered);
    }
    if (entry.begin > covered) {
      return make_error(ErrorCode::kCorrupt,
                        "{}: tensor {} begins at byte {}, the data before it ends at {}", name,
                        entry.name, entry.begin, covered);
    }
    covered = entry.end;
    last = &entry;
  }
  const std::uint64_t data_bytes = extent.file_bytes - extent.data_begin;
  if (covered != data_bytes) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: the tensors end at byte {} of the data, the file has {}", name, covered,
                      data_bytes);
  }
  return {};
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> head,
                                                   std::uint64_t file_bytes,
                                                   const std::string& name) {
  HF_ASSIGN(const std::uint64_t length, header_length(head, file_bytes, name));
  HF_ASSERT(head.size() - kLengthBytes >= length, "the head holds less than the header");
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + kLengthBytes,
                              static_cast<std::size_t>(length));
  simdjson::dom::parser parser;
  HF_ASSIGN(const JsonFields fields,
            JsonFields::parse(parser, text, fmt::format("{}: header", name), kHeaderLimits));
  SafetensorsHeader header;
  header.data_begin = kLengthBytes + length;
  const FileExtent extent{header.data_begin, file_bytes};
  for (const auto field : fields.object()) {
    if (field.key == kMetadataKey) {
      HF_ASSIGN(header.metadata, parse_metadata(field.value, name));
      continue;
    }
    if (header.tensors.size() == kMaxTensorsPerFile) {
      return make_error(ErrorCode::kCorrupt, "{}: more than {} tensors", name, kMaxTensorsPerFile);
    }
    HF_ASSIGN(TensorEntry entry, parse_entry(field.key, field.value, extent, name));
    header.tensors.push_back(std::move(entry));
  }
  // Empty tensors go before the one that begins at the same byte.
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  HF_TRY(check_cover(header.tensors, extent, name));
  return header;
}

}  // namespace holdfast::checkpoint
