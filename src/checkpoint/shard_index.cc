#include "checkpoint/shard_index.h"

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "config/json_fields.h"

namespace holdfast::checkpoint {
namespace {

constexpr std::size_t kMaxFileNameBytes = 255;
constexpr std::string_view kSuffix = ".safetensors";

// A plain name: an index must not reach out of its directory.
bool is_shard_name(std::string_view file) {
  if (file.size() > kMaxFileNameBytes || file.size() <= kSuffix.size()) return false;
  if (!file.ends_with(kSuffix) || file.front() == '.') return false;
  for (const char c : file) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F || c == '/' || c == '\\') return false;
  }
  return true;
}

}  // namespace

Result<ShardIndex> parse_shard_index(std::string_view json, const std::string& name) {
  simdjson::dom::parser parser;
  HF_ASSIGN(const auto fields, config::JsonFields::parse(parser, json, name, {kMaxIndexBytes, 16}));
  const auto map = fields.optional_object("weight_map");
  if (!map.ok()) return Error(ErrorCode::kCorrupt, map.error().message());
  if (!*map) return Error(ErrorCode::kCorrupt, fields.missing("weight_map").message());
  ShardIndex index;
  for (const auto field : (*map)->object()) {
    if (field.key.empty() || field.key.size() > kMaxTensorNameBytes) {
      return make_error(ErrorCode::kCorrupt,
                        "{}: a tensor's name has {} bytes, accepted are 1 to {}", name,
                        field.key.size(), kMaxTensorNameBytes);
    }
    std::string_view file;
    if (field.value.get(file) || !is_shard_name(file)) {
      return make_error(ErrorCode::kCorrupt,
                        "{}: tensor {} is mapped to {}, expected the name of a .safetensors file "
                        "in the same directory",
                        name, field.key, config::brief_json(field.value));
    }
    index.file_of.emplace(field.key, file);
  }
  if (index.file_of.empty()) {
    return make_error(ErrorCode::kCorrupt, "{}: weight_map is empty", name);
  }
  return index;
}

}  // namespace holdfast::checkpoint
