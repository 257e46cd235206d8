#include "checkpoint/shard_names.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>

#include "base/error.h"

namespace holdfast::checkpoint {
namespace {

constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kOf = "-of-";

// NAME-NUMBER-of-TOTAL.safetensors
struct ShardName {
  std::string_view stem;
  int number = 0;
  int total = 0;
};

std::optional<int> to_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value < 0) {
    return std::nullopt;
  }
  return value;
}

std::optional<ShardName> parse(std::string_view name) {
  const std::string_view stem = name.substr(0, name.size() - kSuffix.size());
  const std::size_t of = stem.rfind(kOf);
  if (of == stem.npos || of == 0) return std::nullopt;
  const std::size_t dash = stem.rfind('-', of - 1);
  if (dash == stem.npos) return std::nullopt;
  const auto number = to_number(stem.substr(dash + 1, of - dash - 1));
  const auto total = to_number(stem.substr(of + kOf.size()));
  if (!number || !total) return std::nullopt;
  return ShardName{stem.substr(0, dash), *number, *total};
}

}  // namespace

Result<std::vector<std::string>> shards_without_index(std::vector<std::string> names,
                                                      const std::string& directory) {
  std::sort(names.begin(), names.end());
  if (names.empty()) {
    return make_error(ErrorCode::kNotFound,
                      "{}: holds neither model.safetensors nor model.safetensors.index.json nor "
                      "any other .safetensors file",
                      directory);
  }
  const auto first = parse(names.front());
  std::set<int> numbers;
  for (const std::string& name : names) {
    const auto shard = parse(name);
    const bool alone = names.size() == 1 && !shard;
    if (alone) return names;
    if (!first || !shard || shard->stem != first->stem || shard->total != first->total) {
      return make_error(ErrorCode::kCorrupt,
                        "{}: {} and {} are not shards of one set, and there is no "
                        "model.safetensors.index.json; remove what does not belong to the model",
                        directory, names.front(), name);
    }
    numbers.insert(shard->number);
  }
  const int least = *numbers.begin();
  const int count = first->total + (least == 0 ? 1 : 0);
  if (least > 1 || *numbers.rbegin() != first->total || std::ssize(numbers) != count) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: {} to {} are {} shards of {}, and there is no "
                      "model.safetensors.index.json",
                      directory, names.front(), names.back(), numbers.size(), count);
  }
  return names;
}

}  // namespace holdfast::checkpoint
