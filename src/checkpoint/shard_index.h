// ShardIndex: model.safetensors.index.json, which says the shard of every tensor. A value; any
// thread.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "holdfast/result.h"

namespace holdfast::checkpoint {

inline constexpr std::size_t kMaxIndexBytes = 64u << 20;

struct ShardIndex {
  std::map<std::string, std::string> file_of;  // tensor name to file name within the directory
};

// `name` goes first in every message. Errors: kCorrupt, also for a file name that leads out of the
// directory or does not end in .safetensors.
Result<ShardIndex> parse_shard_index(std::string_view json, const std::string& name);

}  // namespace holdfast::checkpoint
