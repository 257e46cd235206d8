// Source: where a transaction's bytes come from. Read by one staging thread, or by several if it
// says that it can be.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "config/model_config.h"
#include "holdfast/result.h"
#include "storage/slot.h"

namespace holdfast::reload {

// Rows [begin, begin + count) of a tensor's first axis.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::int64_t end() const { return begin + count; }
  friend bool operator==(const RowRange&, const RowRange&) = default;
};

struct SourceTensor {
  std::string name = {};
  tensor::DType dtype = tensor::DType::kBF16;
  tensor::Shape shape = {};  // of the whole tensor, also when only `rows` of it come
  // How its bytes are laid out; anything but what the parameter expects is refused.
  std::string layout = std::string(storage::kCheckpointLayout);
  // Which part of a sharded tensor this is; this engine accepts 0 of 1 alone.
  std::int64_t shard_index = 0;
  std::int64_t shard_count = 1;
  // Only these rows come; offsets of read() count from the first of them. Several entries of one
  // name may share a tensor's rows.
  std::optional<RowRange> rows = {};
};

class Source {
 public:
  virtual ~Source() = default;
  virtual std::string describe() const = 0;  // "checkpoint models/gptoss-tiny-B"
  virtual const config::ModelConfig& config() const = 0;
  virtual std::span<const SourceTensor> tensors() const = 0;
  // Copies bytes [offset, offset + to.size()) of tensor `index`. Errors: kIo, kCorrupt.
  virtual Status read(std::size_t index, std::uint64_t offset, std::span<std::byte> to) = 0;
  // Whether several threads may read at once.
  virtual bool reads_concurrently() const { return false; }
  // Where all that could be read of the tensor lies, and stays until the transaction has ended, if
  // the source has it in memory: a device may then fetch it there, instead of read(). Else empty.
  virtual std::span<const std::byte> memory(std::size_t) const { return {}; }
  // So many bytes of it were fetched. Any thread if reads_concurrently().
  virtual void fetched(std::size_t, std::uint64_t) {}
  // Called when all has been read: whether what was read is still what was promised (a file
  // replaced or truncated meanwhile is an error).
  virtual Status finish() = 0;
};

// Reads from an open checkpoint.
std::unique_ptr<Source> make_checkpoint_source(
    std::shared_ptr<const checkpoint::Checkpoint> checkpoint);

// A tensor that lies in this process, and stays there until the transaction has ended.
struct MemoryPiece {
  SourceTensor tensor;
  std::span<const std::byte> bytes;  // all of it
};
std::unique_ptr<Source> make_memory_source(
    std::string description, config::ModelConfig config,
    std::shared_ptr<const std::vector<MemoryPiece>> pieces);

// What a trainer that pushes its bytes announces: a manifest to plan from. read() is refused: the
// bytes come by Transaction::put.
struct Manifest {
  std::string description;
  config::ModelConfig config;
  std::vector<SourceTensor> tensors;
};
std::unique_ptr<Source> make_manifest_source(Manifest manifest);

}  // namespace holdfast::reload
