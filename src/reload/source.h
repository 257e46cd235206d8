// Source: where a transaction's bytes come from. Read by one staging thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "checkpoint/checkpoint.h"
#include "config/model_config.h"
#include "holdfast/result.h"

namespace holdfast::reload {

struct SourceTensor {
  std::string name;
  tensor::DType dtype = tensor::DType::kBF16;
  tensor::Shape shape;
};

class Source {
 public:
  virtual ~Source() = default;
  virtual std::string describe() const = 0;  // "checkpoint models/gptoss-tiny-B"
  virtual const config::ModelConfig& config() const = 0;
  virtual std::span<const SourceTensor> tensors() const = 0;
  // Copies bytes [offset, offset + to.size()) of tensor `index`. Errors: kIo, kCorrupt.
  virtual Status read(std::size_t index, std::uint64_t offset, std::span<std::byte> to) = 0;
  // Called when all has been read: whether what was read is still what was promised (a file
  // replaced or truncated meanwhile is an error).
  virtual Status finish() = 0;
};

// Reads from an open checkpoint.
std::unique_ptr<Source> make_checkpoint_source(
    std::shared_ptr<const checkpoint::Checkpoint> checkpoint);

}  // namespace holdfast::reload
