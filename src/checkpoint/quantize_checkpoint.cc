#include "holdfast/quantize.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <deque>
#include <filesystem>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <unordered_map>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/new_directory.h"
#include "checkpoint/new_shards.h"
#include "checkpoint/quantize_plan.h"

namespace holdfast::checkpoint {
namespace {

using config::ExpertTensor;
using config::TensorRole;

constexpr std::uint64_t kCopyBytes = 4u << 20;  // at once
constexpr std::size_t kMaxOtherFiles = 256;
constexpr const char* kConfigName = "config.json";

// Where in which new file a tensor goes.
struct Place {
  int fd = -1;
  const std::string* path = nullptr;
  std::uint64_t offset = 0;
};

// The new checkpoint's shards, opened, and their tensors by name.
struct NewTensors {
  std::deque<NewShardFile> files;
  std::unordered_map<std::string, Place> places;
};
Result<NewTensors> create_shards(const std::vector<NewShard>& shards, NewDirectory& directory) {
  NewTensors out;
  for (const NewShard& shard : shards) {
    HF_ASSIGN(NewShardFile created, create_shard(shard, directory));
    const NewShardFile& file = out.files.emplace_back(std::move(created));
    for (const TensorEntry& entry : shard.entries) {
      out.places[entry.name] = {file.fd.get(), &file.path, file.data_begin + entry.begin};
    }
  }
  return out;
}

// A piece of a tensor that is copied, or one expert of one layer.
struct Task {
  const LocatedTensor* copy = nullptr;
  std::uint64_t offset = 0, bytes = 0;  // of `copy`
  std::int64_t layer = 0, expert = 0;
};

// Copies are cut into pieces, experts are not.
std::deque<Task> tasks_of(const QuantizePlan& plan, const Checkpoint& source) {
  std::deque<Task> tasks;
  for (const std::int64_t layer : plan.layers) {
    for (std::int64_t expert = 0; expert < plan.source.expert_count; ++expert) {
      tasks.push_back({.layer = layer, .expert = expert});
    }
  }
  for (const ExpectedTensor& tensor : plan.tensors) {
    if (plan.made.contains(tensor.name)) continue;
    const LocatedTensor* from = source.find(tensor.name);
    const std::uint64_t bytes = from->entry->end - from->entry->begin;
    for (std::uint64_t at = 0; at < bytes; at += kCopyBytes) {
      tasks.push_back({.copy = from, .offset = at, .bytes = std::min(kCopyBytes, bytes - at)});
    }
  }
  return tasks;
}

// One thread's buffers, and what it does with them.
class Worker {
 public:
  Worker(const QuantizePlan& plan, const Checkpoint& source, const NewTensors& to)
      : plan_(plan), source_(source), to_(to) {}

  Status run(const Task& task) {
    return task.copy != nullptr ? copy(task) : quantize_expert(task.layer, task.expert);
  }

 private:
  Status copy(const Task& task) {
    values_.resize(std::max<std::size_t>(values_.size(), task.bytes));
    const auto bytes = std::span(values_).first(task.bytes);
    HF_TRY(task.copy->file->read(*task.copy->entry, task.offset, bytes));
    const Place& place = to_.places.at(task.copy->entry->name);
    return write_exactly(place.fd, place.offset + task.offset, bytes, *place.path);
  }

  Status quantize_expert(std::int64_t layer, std::int64_t expert) {
    std::vector<const ExpertTensor*> weights;
    for (const ExpertTensor& tensor : plan_.source_tensors) {
      if (tensor.role == TensorRole::kWeight) weights.push_back(&tensor);
    }
    // Those before the down projection share a global scale, where there is one, and so are read
    // twice instead of being held together.
    std::optional<float> shared;
    for (const ExpertTensor* tensor : weights) {
      if (!shares_global_scale(plan_.target.expert_format)) break;
      if (tensor->projection == config::Projection::kDown) continue;
      HF_ASSIGN(const Loaded loaded, load(*tensor, layer, expert));
      shared = std::max(shared.value_or(0.0f), loaded.amax);
    }
    for (const ExpertTensor* tensor : weights) {
      HF_ASSIGN(const Loaded loaded, load(*tensor, layer, expert));
      const bool alone = tensor->projection == config::Projection::kDown || !shared;
      const config::MatrixAmax amax{loaded.amax, alone ? loaded.amax : *shared};
      HF_TRY(quantize(loaded.values, amax, tensor->projection, {.layer = layer, .expert = expert}));
    }
    return {};
  }

  struct Loaded {
    tensor::MatrixValues values;
    float amax;
  };
  // Errors: kIo; kCorrupt when a value is not finite.
  Result<Loaded> load(const ExpertTensor& tensor, std::int64_t layer, std::int64_t expert) {
    const ExpertPart part = expert_part(plan_.source, tensor, layer, expert);
    const LocatedTensor* from = source_.find(part.tensor);
    values_.resize(std::max<std::size_t>(values_.size(), part.bytes));
    HF_TRY(from->file->read(*from->entry, part.offset, std::span(values_).first(part.bytes)));
    const tensor::MatrixValues values = config::matrix_values(tensor, values_.data());
    HF_ASSIGN(const float amax, tensor::matrix_amax(values, {0, values.size.rows}));
    if (std::isfinite(amax)) return Loaded{values, amax};
    return make_error(ErrorCode::kCorrupt,
                      "{}: tensor {} has a value of expert {} that is not finite; no scale can be "
                      "chosen for it",
                      from->file->path(), part.tensor, expert);
  }

  Status quantize(const tensor::MatrixValues& values, const config::MatrixAmax& amax,
                  config::Projection projection, const Task& task) {
    std::vector<std::pair<ExpertPart, std::span<std::byte>*>> parts;
    config::MatrixTensors out;
    std::uint64_t bytes = 0;
    for (const ExpertTensor& tensor : plan_.target_tensors) {
      std::span<std::byte>* const role = out.find(tensor.role);
      if (tensor.projection != projection || role == nullptr) continue;
      parts.emplace_back(expert_part(plan_.target, tensor, task.layer, task.expert), role);
      bytes += parts.back().first.bytes;
    }
    made_.resize(std::max<std::size_t>(made_.size(), bytes));
    std::span<std::byte> rest(made_);
    for (const auto& [part, role] : parts) {
      *role = rest.first(part.bytes);
      rest = rest.subspan(part.bytes);
    }
    HF_TRY(quantize_matrix(plan_.target.expert_format, values, amax, out));
    for (const auto& [part, role] : parts) {
      const Place& place = to_.places.at(part.tensor);
      HF_TRY(write_exactly(place.fd, place.offset + part.offset, *role, *place.path));
    }
    return {};
  }

  const QuantizePlan& plan_;
  const Checkpoint& source_;
  const NewTensors& to_;
  std::vector<std::byte> values_, made_;
};

// Threads take tasks in turn until all are done or one has failed.
class Workers {
 public:
  Workers(std::deque<Task> tasks, const QuantizeOptions& options)
      : tasks_(std::move(tasks)), options_(options) {}

  // Errors: the first that any thread met.
  template <typename MakeWorker>
  Status run(int threads, MakeWorker make) {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back([&] { work(make(), false); });
    work(make(), true);
    others.clear();  // joins
    if (failure_) return *failure_;
    return {};
  }

 private:
  void work(Worker worker, bool is_caller) {
    for (;;) {
      const std::size_t task = next_.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks_.size() || failed_.load(std::memory_order_relaxed)) return;
      const Status wanted = is_caller ? report(task) : Status();
      if (!wanted.ok()) return fail(wanted.error());
      if (const Status done = worker.run(tasks_[task]); !done.ok()) return fail(done.error());
    }
  }

  Status report(std::size_t task) const {
    if (options_.cancelled && options_.cancelled()) {
      return Error(ErrorCode::kCancelled, "interrupted");
    }
    if (options_.progress) {
      options_.progress(static_cast<double>(task) / static_cast<double>(tasks_.size()));
    }
    return {};
  }

  void fail(const Error& error) {
    failed_.store(true, std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
  }

  const std::deque<Task> tasks_;
  const QuantizeOptions& options_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::optional<Error> failure_;
};

struct OtherFile {
  std::string name;
  std::uint64_t bytes = 0;
};
// What lies beside the weights and belongs to the model: all regular files of the directory that
// are not hidden, but the config, which is written anew, and weights and their indexes.
Result<std::vector<OtherFile>> other_files(const std::string& directory) {
  std::vector<OtherFile> files;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(directory, failed)) {
    const std::string name = entry.path().filename();
    const std::string kind = entry.path().extension();
    const bool weights = kind == ".safetensors" || kind == ".bin" || kind == ".pt" ||
                         kind == ".pth" || kind == ".gguf" || name.ends_with(".index.json");
    if (!entry.is_regular_file(failed) || weights || name == kConfigName || name[0] == '.') {
      continue;
    }
    files.push_back({name, entry.file_size(failed)});
  }
  if (failed) return os_error(directory, "cannot list", failed.value());
  if (files.size() > kMaxOtherFiles) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: {} files lie beside the weights, at most {} are copied", directory,
                      files.size(), kMaxOtherFiles);
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) {
    return a.name < b.name;
  });
  return files;
}

Status copy_file(const std::string& from, const OtherFile& file, NewDirectory& directory) {
  HF_ASSIGN(const OpenedFile opened, open_regular(from));
  HF_ASSIGN(const FileDescriptor to, directory.create_file(file.name, opened.identity.bytes));
  std::vector<std::byte> buffer(std::min(kCopyBytes, opened.identity.bytes));
  for (std::uint64_t at = 0; at < opened.identity.bytes; at += buffer.size()) {
    const auto bytes = std::span(buffer).first(
        std::min<std::uint64_t>(buffer.size(), opened.identity.bytes - at));
    HF_TRY(read_exactly(opened.fd.get(), at, bytes, from));
    HF_TRY(write_exactly(to.get(), at, bytes, directory.path_of(file.name)));
  }
  return {};
}

Status write_other_files(const std::vector<NewShard>& shards, const std::string& source,
                         const std::vector<OtherFile>& others, NewDirectory& directory) {
  if (shards.size() > 1) {
    HF_TRY(directory.write_text("model.safetensors.index.json", shard_index_json(shards)));
  }
  for (const OtherFile& file : others) {
    HF_TRY(copy_file((std::filesystem::path(source) / file.name).string(), file, directory));
  }
  return {};
}

// Opens what was written, with holdfast's own checks. A source whose other tensors are not all bf16
// makes a checkpoint that others may take and this engine does not.
Status check_written(const NewDirectory& directory, const Account& source) {
  HF_ASSIGN(const auto written, Checkpoint::open_for_inspection(directory.path()));
  if (written->account().complete() || !source.mismatched.empty()) return {};
  return make_error(ErrorCode::kIo, "{}: what was written is not what was planned: {}",
                    directory.path(), written->account().mismatched.empty()
                                          ? "tensors are missing"
                                          : written->account().mismatched.front());
}

int worker_count(int asked, std::uint64_t bytes_each) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const auto most = std::clamp<std::uint64_t>(kMaxQuantizeBufferBytes / bytes_each, 1, 1024);
  return std::clamp(asked > 0 ? asked : cores, 1, static_cast<int>(most));
}

Result<config::QuantizeTarget> target_of(const QuantizeOptions& options) {
  const auto schemes = quantize_schemes();
  const auto scheme = config::expert_scheme_from_name(options.scheme);
  if (!scheme || std::find(schemes.begin(), schemes.end(), options.scheme) == schemes.end()) {
    return make_error(ErrorCode::kInvalidArgument, "no scheme to quantise to is called {}; known "
                      "are {}", options.scheme, fmt::join(schemes, ", "));
  }
  return config::QuantizeTarget{*scheme, options.group_size, options.zero_points};
}

}  // namespace
}  // namespace holdfast::checkpoint

namespace holdfast {

std::vector<std::string> quantize_schemes() {
  return {"mxfp4", "mxfp8", "nvfp4", "fp8-block", "fp8-channel", "fp8-tensor", "int4"};
}

Result<QuantizeReport> quantize_checkpoint(const QuantizeOptions& options) {
  using namespace checkpoint;
  HF_ASSIGN(const config::QuantizeTarget target, target_of(options));
  HF_ASSIGN(const auto source, Checkpoint::open_for_inspection(options.source));
  const auto config_path = (std::filesystem::path(options.source) / kConfigName).string();
  HF_ASSIGN(const std::string config_json, read_text(config_path, config::kMaxConfigBytes));
  HF_ASSIGN(const QuantizePlan plan, plan_quantize(*source, config_json, target));
  HF_ASSIGN(const auto others, other_files(options.source));
  HF_ASSIGN(const auto shards, lay_out_shards(plan.tensors, options.max_shard_bytes,
                                              ShardNumbers::kFromOne));
  const std::uint64_t bytes_each = std::max(plan.matrix_bytes, kCopyBytes);
  QuantizeReport report{.format = to_text(plan.target.expert_format),
                        .tensors = plan.tensors.size(),
                        .shards = shards.size(),
                        .source_bytes = source->total_bytes(),
                        .expert_bytes = plan.expert_bytes,
                        .threads = worker_count(options.threads, bytes_each)};
  report.buffer_bytes = bytes_each * static_cast<std::uint64_t>(report.threads);
  for (const NewShard& shard : shards) report.bytes += shard.bytes;

  if (!options.directory.empty()) HF_TRY(check_apart(options.source, options.directory));
  HF_ASSIGN(NewDirectory directory, NewDirectory::create(options.directory));
  std::uint64_t needed = report.bytes;
  for (const OtherFile& file : others) needed += file.bytes;
  HF_TRY(check_space(std::span(&directory, 1), needed));
  HF_ASSIGN(const NewTensors to, create_shards(shards, directory));
  HF_TRY(Workers(tasks_of(plan, *source), options).run(report.threads, [&] {
    return Worker(plan, *source, to);
  }));
  for (const auto& file : source->files()) HF_TRY(file->check_unchanged());
  HF_TRY(write_other_files(shards, options.source, others, directory));
  HF_TRY(directory.write_text(kConfigName, plan.config_json));  // with it, it is a model
  HF_TRY(check_written(directory, source->account()));
  directory.keep();
  return report;
}

}  // namespace holdfast
