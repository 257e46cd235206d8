// shards_without_index: which files of a directory are the checkpoint when no index says so. Pure;
// any thread.
#pragma once

#include <string>
#include <vector>

#include "holdfast/result.h"

namespace holdfast::checkpoint {

// `names` are the directory's .safetensors files, in any order; `directory` is for messages. The
// one file that there is, or all of NAME-00001-of-00003.safetensors, sorted; numbers may begin at
// 0, and then go up to the total (openai/gpt-oss-20b). Errors: kNotFound when there is none,
// kCorrupt when some of a set are missing or more than one set is there, naming two files.
Result<std::vector<std::string>> shards_without_index(std::vector<std::string> names,
                                                      const std::string& directory);

}  // namespace holdfast::checkpoint
