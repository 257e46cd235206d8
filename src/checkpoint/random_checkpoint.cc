#include "holdfast/random_checkpoint.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/new_directory.h"
#include "checkpoint/new_shards.h"
#include "checkpoint/random_model.h"
#include "checkpoint/random_values.h"

namespace holdfast::checkpoint {
namespace {

constexpr std::uint64_t kChunkBytes = 1u << 20;
static_assert(kChunkBytes % RandomTensor::kAlignment == 0);
constexpr int kMaxWriters = static_cast<int>(kMaxRandomBufferBytes / kChunkBytes);

// A tensor, and where in which file it goes.
struct Extent {
  RandomTensor values;
  int fd;
  std::string path;
  std::uint64_t offset, bytes;
  std::uint64_t first_chunk;  // of all chunks
};

// Many threads, each with one buffer, take chunks in turn until all are written or one has failed.
class Writers {
 public:
  Writers(std::deque<Extent> extents, const RandomCheckpointOptions& options)
      : extents_(std::move(extents)), options_(options) {
    for (Extent& extent : extents_) {
      extent.first_chunk = chunk_count_;
      chunk_count_ += (extent.bytes + kChunkBytes - 1) / kChunkBytes;
    }
  }

  // Errors: the first that any thread met.
  Status run(int threads) {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back([this] { work(false); });
    work(true);
    others.clear();  // joins
    if (failure_) return *failure_;
    return {};
  }

 private:
  void work(bool is_caller) {
    std::vector<std::byte> buffer(kChunkBytes);
    for (;;) {
      const std::uint64_t chunk = next_chunk_.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= chunk_count_ || failed_.load(std::memory_order_relaxed)) return;
      const Status wanted = is_caller ? report(chunk) : Status();
      if (!wanted.ok()) return fail(wanted.error());
      if (const Status done = write(chunk, buffer); !done.ok()) return fail(done.error());
    }
  }

  // What the caller's thread does besides. Errors: kCancelled.
  Status report(std::uint64_t chunk) const {
    if (options_.cancelled && options_.cancelled()) {
      return Error(ErrorCode::kCancelled, "interrupted");
    }
    if (options_.progress) {
      options_.progress(static_cast<double>(chunk) / static_cast<double>(chunk_count_));
    }
    return {};
  }

  Status write(std::uint64_t chunk, std::span<std::byte> buffer) const {
    const auto after = std::upper_bound(
        extents_.begin(), extents_.end(), chunk,
        [](std::uint64_t at, const Extent& extent) { return at < extent.first_chunk; });
    const Extent& extent = *(after - 1);
    const std::uint64_t begin = (chunk - extent.first_chunk) * kChunkBytes;
    const auto bytes = buffer.first(std::min(extent.bytes - begin, kChunkBytes));
    extent.values.fill(begin, bytes);
    return write_exactly(extent.fd, extent.offset + begin, bytes, extent.path);
  }

  void fail(const Error& error) {
    failed_.store(true, std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
  }

  std::deque<Extent> extents_;
  const RandomCheckpointOptions& options_;
  std::uint64_t chunk_count_ = 0;
  std::atomic<std::uint64_t> next_chunk_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::optional<Error> failure_;
};

// The shards' heads and space; their tensors go into `extents`, and the files into `open_files`.
struct Opened {
  std::deque<Extent> extents;
  std::vector<FileDescriptor> files;
};
Status open_shards(const std::vector<NewShard>& shards, std::uint64_t seed, bool is_next,
                   NewDirectory& directory, Opened& opened) {
  for (const NewShard& shard : shards) {
    HF_ASSIGN(NewShardFile file, create_shard(shard, directory));
    for (std::size_t i = 0; i < shard.tensors.size(); ++i) {
      const TensorEntry& entry = shard.entries[i];
      opened.extents.push_back({RandomTensor(shard.tensors[i], seed, is_next), file.fd.get(),
                                file.path, file.data_begin + entry.begin,
                                entry.end - entry.begin, 0});
    }
    opened.files.push_back(std::move(file.fd));
  }
  return {};
}

Status write_small_files(const std::vector<NewShard>& shards, const RandomModel& model,
                         NewDirectory& directory) {
  if (shards.size() > 1) {
    HF_TRY(directory.write_text("model.safetensors.index.json", shard_index_json(shards)));
  }
  HF_TRY(directory.write_text("generation_config.json", model.generation_json));
  return directory.write_text("config.json", model.config_json);  // with it, it is a model
}

int writer_count(int asked) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(asked > 0 ? asked : cores, 1, kMaxWriters);
}

}  // namespace
}  // namespace holdfast::checkpoint

namespace holdfast {

Result<RandomCheckpointReport> make_random_checkpoint(const RandomCheckpointOptions& options) {
  using namespace checkpoint;
  HF_ASSIGN(const RandomModel model, random_model(options.like, options.scale));
  HF_ASSIGN(const config::ModelConfig config,
            config::parse_model_config(model.config_json, model.generation_json));
  HF_ASSIGN(const auto dialect, choose_dialect(config));
  HF_ASSIGN(const auto shards, lay_out_shards(dialect->expected(config), options.max_shard_bytes,
                                               ShardNumbers::kFromZero));
  RandomCheckpointReport report;
  report.shards = shards.size();
  for (const NewShard& shard : shards) {
    report.tensors += shard.entries.size();
    report.bytes += shard.bytes;
  }
  std::vector<NewDirectory> directories;
  directories.reserve(2);
  for (const std::string* path : {&options.directory, &options.next}) {
    if (path == &options.next) {
      if (path->empty()) continue;
      HF_TRY(check_apart(options.directory, options.next));
    }
    HF_ASSIGN(NewDirectory directory, NewDirectory::create(*path));
    directories.push_back(std::move(directory));
  }
  HF_TRY(check_space(directories, report.bytes));
  Opened opened;
  for (NewDirectory& directory : directories) {
    const bool is_next = &directory != &directories.front();
    HF_TRY(open_shards(shards, options.seed, is_next, directory, opened));
  }
  HF_TRY(Writers(std::move(opened.extents), options).run(writer_count(options.threads)));
  for (NewDirectory& directory : directories) HF_TRY(write_small_files(shards, model, directory));
  for (NewDirectory& directory : directories) directory.keep();
  return report;
}

}  // namespace holdfast
