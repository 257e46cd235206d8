// NewShard: the safetensors files of a checkpoint that is about to be written, and what is checked
// before a byte of it is. Values; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/new_directory.h"
#include "holdfast/result.h"

namespace holdfast::checkpoint {

struct NewShard {
  std::string file;                     // "model.safetensors" when it is the only one
  std::vector<ExpectedTensor> tensors;  // by name
  std::vector<TensorEntry> entries;     // where each lies
  std::uint64_t bytes = 0;              // of all
};
// model-00000-of-00002 ... -00002-of-00002, as openai/gpt-oss-20b has them, or model-00001-of-00003
// ... as everybody else.
enum class ShardNumbers : std::uint8_t { kFromZero, kFromOne };

// By name, as the publishers' tools write them, each shard filled until the next tensor would not
// fit. A tensor is never cut. Errors: kInvalidArgument for shapes whose bytes cannot be counted.
Result<std::vector<NewShard>> lay_out_shards(std::vector<ExpectedTensor> tensors,
                                             std::uint64_t max_bytes, ShardNumbers numbers);
// model.safetensors.index.json
std::string shard_index_json(std::span<const NewShard> shards);

struct NewShardFile {
  FileDescriptor fd;
  std::string path;
  std::uint64_t data_begin = 0;  // file offset of the tensors
};
// Creates the file with its head. Errors: those of NewDirectory::create_file and
// make_safetensors_head.
Result<NewShardFile> create_shard(const NewShard& shard, NewDirectory& directory);

// Whether `bytes` of tensors, and small files beside them, fit in each; two directories may share a
// file system. Errors: kResourceExhausted naming the bytes needed and free, kIo.
Status check_space(std::span<const NewDirectory> directories, std::uint64_t bytes_each);

// Neither may be the other, nor lie in it: a checkpoint's directory is its own. Errors:
// kInvalidArgument.
Status check_apart(const std::string& directory, const std::string& next);

}  // namespace holdfast::checkpoint
