#include "checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "checkpoint/account.h"
#include "checkpoint/file_io.h"
#include "checkpoint/observed_format.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/shard_names.h"
#include "config/expert_tensors.h"

namespace holdfast::checkpoint {
namespace {

constexpr const char* kConfigName = "config.json";
constexpr const char* kGenerationName = "generation_config.json";
constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
// So many expected tensors are compared with the files one by one whatever those hold.
constexpr std::uint64_t kMaxUncomparedTensors = 1u << 16;

std::string join(const std::string& directory, std::string_view name) {
  const bool slash = directory.empty() || directory.back() == '/';
  return fmt::format("{}{}{}", directory, slash ? "" : "/", name);
}

Status check_directory(const std::string& directory) {
  struct stat status{};
  if (::stat(directory.c_str(), &status) != 0) {
    return os_error(directory, "cannot open the model directory", errno);
  }
  if (S_ISDIR(status.st_mode)) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "{}: not a directory; give the directory that holds config.json", directory);
}

// Absent is false; anything else that hinders is an error.
Result<bool> exists(const std::string& path) {
  const auto identity = identify(path);
  if (identity.ok()) return true;
  if (identity.error().code() == ErrorCode::kNotFound) return false;
  return identity.error();
}

Result<config::ModelConfig> read_config(const std::string& directory) {
  HF_ASSIGN(const std::string text,
            read_text(join(directory, kConfigName), config::kMaxConfigBytes));
  std::string generation;
  HF_ASSIGN(const bool has_generation, exists(join(directory, kGenerationName)));
  if (has_generation) {
    HF_ASSIGN(generation, read_text(join(directory, kGenerationName), config::kMaxConfigBytes));
    if (generation.empty()) {
      return make_error(ErrorCode::kCorrupt, "{}: the file is empty",
                        join(directory, kGenerationName));
    }
  }
  auto config = config::parse_model_config(text, generation);
  if (!config.ok()) return config.error().with_context(directory);
  return config;
}

using Files = std::vector<std::unique_ptr<SafetensorsFile>>;

using HolderByName = std::unordered_map<std::string_view, std::size_t>;  // into Files

// The first file of each tensor. Errors: kCorrupt when two files hold it.
Result<HolderByName> find_holders(const Files& files) {
  HolderByName holders;
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (const TensorEntry& entry : files[i]->header().tensors) {
      const auto [found, inserted] = holders.emplace(entry.name, i);
      if (inserted) continue;
      return make_error(ErrorCode::kCorrupt, "tensor {} is in two files: {} and {}", entry.name,
                        files[found->second]->path(), files[i]->path());
    }
  }
  return holders;
}

// Index and shards must say the same, in both directions.
Status check_index(const ShardIndex& index, const Files& files, const std::string& index_path) {
  HF_ASSIGN(const HolderByName holders, find_holders(files));
  for (const auto& [tensor, file] : index.file_of) {
    const auto found = holders.find(tensor);
    if (found == holders.end()) {
      return make_error(ErrorCode::kCorrupt, "{}: tensor {} is mapped to {}, no shard holds it",
                        index_path, tensor, file);
    }
    const std::string& path = files[found->second]->path();
    if (std::string_view(path).substr(path.rfind('/') + 1) != file) {
      return make_error(ErrorCode::kCorrupt,
                        "{}: tensor {} is mapped to {}, which does not hold it; {} does",
                        index_path, tensor, file, path);
    }
  }
  for (const auto& file : files) {
    for (const TensorEntry& entry : file->header().tensors) {
      if (index.file_of.contains(entry.name)) continue;
      return make_error(ErrorCode::kCorrupt, "{}: tensor {} is in the file and not in {}",
                        file->path(), entry.name, index_path);
    }
  }
  return {};
}

Result<Files> open_shards(const std::string& directory) {
  const std::string index_path = join(directory, kIndexName);
  HF_ASSIGN(const std::string text, read_text(index_path, kMaxIndexBytes));
  HF_ASSIGN(const ShardIndex index, parse_shard_index(text, index_path));
  std::map<std::string_view, std::string_view> tensor_of;  // a tensor of each file, for messages
  for (const auto& [tensor, file] : index.file_of) tensor_of.emplace(file, tensor);
  if (tensor_of.size() > kMaxShards) {
    return make_error(ErrorCode::kCorrupt, "{}: names {} shards, the most is {}", index_path,
                      tensor_of.size(), kMaxShards);
  }
  Files files;
  for (const auto& [name, tensor] : tensor_of) {
    auto file = SafetensorsFile::open(join(directory, name));
    if (!file.ok() && file.error().code() == ErrorCode::kNotFound) {
      return make_error(ErrorCode::kNotFound, "{}: tensor {} is mapped to {}, which does not exist",
                        index_path, tensor, name);
    }
    if (!file.ok()) return file.error();
    files.push_back(std::move(*file));
  }
  HF_TRY(check_index(index, files, index_path));
  return files;
}

// Names of the directory's .safetensors files, up to one more than a checkpoint may have.
std::vector<std::string> safetensors_names(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end;
       !error && entry != end && names.size() <= kMaxShards; entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") names.push_back(entry->path().filename());
  }
  return names;
}

Result<Files> open_files(const std::string& directory) {
  HF_ASSIGN(const bool single, exists(join(directory, kSingleName)));
  HF_ASSIGN(const bool sharded, exists(join(directory, kIndexName)));
  if (single && sharded) {
    return make_error(ErrorCode::kCorrupt, "{}: holds both {} and {}; remove the one that is stale",
                      directory, kSingleName, kIndexName);
  }
  if (sharded) return open_shards(directory);
  std::vector<std::string> names{kSingleName};
  if (!single) {
    HF_ASSIGN(names, shards_without_index(safetensors_names(directory), directory));
  }
  Files files;
  for (const std::string& name : names) {
    HF_ASSIGN(auto file, SafetensorsFile::open(join(directory, name)));
    files.push_back(std::move(file));
  }
  HF_TRY(find_holders(files));  // no tensor twice
  return files;
}

// A small config may describe millions of tensors: before any list of them is made, their number is
// held against what the files have.
Status check_experts_count(const config::ModelConfig& config, std::size_t located,
                           const std::string& directory) {
  HF_ASSIGN(const auto experts, config::expert_tensors(config));
  std::int64_t in_layer = 0;
  for (const config::ExpertTensor& tensor : experts) {
    in_layer += tensor.per_expert ? config.expert_count : 1;
  }
  const auto described = static_cast<std::uint64_t>(in_layer * config.layer_count);
  if (described <= kMaxUncomparedTensors || described <= 2 * std::uint64_t{located}) return {};
  return make_error(ErrorCode::kMismatch,
                    "{}: config.json describes {} tensors of experts ({} layers, {} experts), the "
                    "files hold {} tensors in all",
                    directory, described, config.layer_count, config.expert_count, located);
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::open_for_inspection(const std::string& directory) {
  HF_TRY(check_directory(directory));
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->directory_ = directory;
  HF_ASSIGN(checkpoint->config_, read_config(directory));
  HF_ASSIGN(checkpoint->files_, open_files(directory));
  for (const auto& file : checkpoint->files_) {
    for (const TensorEntry& entry : file->header().tensors) {
      checkpoint->index_by_name_.emplace(entry.name, checkpoint->tensors_.size());
      checkpoint->tensors_.push_back({&entry, file.get()});
    }
  }
  const auto entry_of = [&](const std::string& name) {
    const LocatedTensor* found = checkpoint->find(name);
    return found == nullptr ? nullptr : found->entry;
  };
  config::ModelConfig& config = checkpoint->config_;
  config.expert_format = observe_format(config, entry_of);
  config.plain_dtype = observe_plain_dtype(config, entry_of);
  config.cache_scales = observe_cache_scales(config, entry_of);
  config.quantized_modules = observe_quantized_modules(config, entry_of);
  HF_TRY(check_experts_count(checkpoint->config_, checkpoint->tensors_.size(), directory));
  HF_ASSIGN(checkpoint->dialect_, choose_dialect(checkpoint->config_));
  checkpoint->account_ =
      take_account(checkpoint->dialect_->expected(checkpoint->config_), checkpoint->tensors_);
  return checkpoint;
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::string& directory) {
  HF_ASSIGN(auto checkpoint, open_for_inspection(directory));
  if (!checkpoint->account_.complete()) {
    return describe_defects(checkpoint->account_, directory);
  }
  return checkpoint;
}

const LocatedTensor* Checkpoint::find(std::string_view name) const {
  const auto found = index_by_name_.find(std::string(name));
  return found == index_by_name_.end() ? nullptr : &tensors_[found->second];
}

std::uint64_t Checkpoint::total_bytes() const {
  std::uint64_t bytes = 0;
  for (const LocatedTensor& tensor : tensors_) bytes += tensor.entry->end - tensor.entry->begin;
  return bytes;
}

}  // namespace holdfast::checkpoint
