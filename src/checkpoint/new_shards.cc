#include "checkpoint/new_shards.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <system_error>

#include "base/error.h"

namespace holdfast::checkpoint {
namespace {

// Config, index and directory entries, generously.
constexpr std::uint64_t kSmallFilesBytes = 8u << 20;

}  // namespace

Result<std::vector<NewShard>> lay_out_shards(std::vector<ExpectedTensor> tensors,
                                             std::uint64_t max_bytes, ShardNumbers numbers) {
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  std::vector<NewShard> shards;
  for (ExpectedTensor& tensor : tensors) {
    HF_ASSIGN(const std::uint64_t bytes, tensor::byte_size(tensor.dtype, tensor.shape));
    if (shards.empty() || shards.back().bytes + bytes > max_bytes) shards.emplace_back();
    NewShard& shard = shards.back();
    shard.entries.push_back({tensor.name, tensor.dtype, tensor.shape, shard.bytes,
                             shard.bytes + bytes});
    shard.bytes += bytes;
    shard.tensors.push_back(std::move(tensor));
  }
  const std::size_t first = numbers == ShardNumbers::kFromZero ? 0 : 1;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + first,
                                       shards.size() - 1 + first);
  }
  return shards;
}

std::string shard_index_json(std::span<const NewShard> shards) {
  std::uint64_t total = 0;
  std::string map;
  for (const NewShard& shard : shards) {
    total += shard.bytes;
    for (const TensorEntry& entry : shard.entries) {
      map += fmt::format("{}\n  \"{}\": \"{}\"", map.empty() ? "" : ",", entry.name, shard.file);
    }
  }
  return fmt::format("{{\n \"metadata\": {{\n  \"total_size\": {}\n }},\n \"weight_map\": {{{}\n"
                     " }}\n}}\n", total, map);
}

Result<NewShardFile> create_shard(const NewShard& shard, NewDirectory& directory) {
  std::string path = directory.path_of(shard.file);
  HF_ASSIGN(const auto head, make_safetensors_head(path, shard.entries, {{"format", "pt"}}));
  HF_ASSIGN(FileDescriptor fd, directory.create_file(shard.file, head.size() + shard.bytes));
  HF_TRY(write_exactly(fd.get(), 0, head, path));
  return NewShardFile{std::move(fd), std::move(path), head.size()};
}

Status check_space(std::span<const NewDirectory> directories, std::uint64_t bytes_each) {
  std::map<dev_t, std::uint64_t> needed;
  for (const NewDirectory& directory : directories) {
    struct stat status{};
    struct statvfs system{};
    if (::stat(directory.path().c_str(), &status) != 0 ||
        ::statvfs(directory.path().c_str(), &system) != 0) {
      return os_error(directory.path(), "cannot ask for the free space", errno);
    }
    const std::uint64_t wanted = needed[status.st_dev] += bytes_each + kSmallFilesBytes;
    const std::uint64_t free = std::uint64_t{system.f_bavail} * system.f_frsize;
    if (system.f_blocks == 0 || wanted <= free) continue;  // 0: it cannot say
    return make_error(ErrorCode::kResourceExhausted,
                      "{}: {} bytes are needed and its file system has {} free; free {} more, or "
                      "name a directory elsewhere",
                      directory.path(), wanted, free, wanted - free);
  }
  return {};
}

Status check_apart(const std::string& directory, const std::string& next) {
  std::error_code failed;
  const auto whole = [&failed](const std::string& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path + "/"), failed);
  };
  const auto a = whole(directory), b = whole(next);
  const auto first = *a.lexically_relative(b).begin();
  const auto second = *b.lexically_relative(a).begin();
  if (failed || (first == ".." && second == "..")) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "the directories {} and {} are one, or one lies in the other; give two", next,
                    directory);
}

}  // namespace holdfast::checkpoint
