// Checkpoint: a validated index over the safetensors files of one model directory: config, shards,
// and the exact two-way account of tensors that the model's dialect expects. Knows no device.
// Immutable after open; any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/safetensors.h"
#include "config/model_config.h"
#include "holdfast/result.h"

namespace holdfast::checkpoint {

inline constexpr std::size_t kMaxShards = 4096;

// A tensor that a dialect expects. `name` is both the published name and the name of the model's
// parameter that it fills, or of that parameter's part.
struct ExpectedTensor {
  std::string name;
  tensor::DType dtype = tensor::DType::kBF16;
  tensor::Shape shape;
  bool may_lack = false;   // a second name of another one
  bool any_float = false;  // f16, f32 and bf16 alike: rounded once to bf16 as it loads
};

// A tensor of the checkpoint and the file that holds it.
struct LocatedTensor {
  const TensorEntry* entry = nullptr;
  const SafetensorsFile* file = nullptr;
};

// What `inspect` reports: every defect at once instead of the first.
struct Account {
  std::vector<ExpectedTensor> missing;
  struct Unknown {
    std::string name;
    std::string file;                  // within the directory
    // Up to 3 known names, nearest first; of the first few only, and of none that is stored twice.
    std::vector<std::string> nearest;
    // Of a layer that is here once plain and once quantised: so, in words. Else empty.
    std::string stored_twice;
  };
  std::vector<Unknown> unknown;
  // "model.norm.weight in model.safetensors: shape [255], expected [256]"
  std::vector<std::string> mismatched;
  bool complete() const { return missing.empty() && unknown.empty() && mismatched.empty(); }
};

// How a publisher names and lays out tensors.
class Dialect {
 public:
  virtual ~Dialect() = default;
  virtual std::string_view name() const = 0;  // "gpt-oss mxfp4 (Hugging Face)"
  virtual std::vector<ExpectedTensor> expected(const config::ModelConfig& config) const = 0;
};
// The dialect for a config (by architecture and expert format). Errors: kUnsupported when they do
// not go together, kInvalidArgument for dimensions that the format cannot hold.
Result<std::unique_ptr<Dialect>> choose_dialect(const config::ModelConfig& config);

class Checkpoint {
 public:
  // Reads config.json, generation_config.json (optional), and model.safetensors, or the shards that
  // the index names, or without an index the one .safetensors file or all NAME-*-of-N.safetensors;
  // validates every shard, and accounts for every tensor. Any defect is an error that names the
  // file or tensor and both values; nothing is half open. Errors: those of parse_model_config and
  // SafetensorsFile::open; kCorrupt when index and shards contradict each other; kMismatch when
  // tensors are missing, unknown, or of another dtype or shape than the config asks for.
  static Result<std::unique_ptr<Checkpoint>> open(const std::string& directory);
  // As open, but tensors that are missing, unknown or mismatched are left to account().
  static Result<std::unique_ptr<Checkpoint>> open_for_inspection(const std::string& directory);

  const std::string& directory() const { return directory_; }
  const config::ModelConfig& config() const { return config_; }
  const Dialect& dialect() const { return *dialect_; }
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }
  const Account& account() const { return account_; }
  // All tensors in (file, offset) order.
  const std::vector<LocatedTensor>& tensors() const { return tensors_; }
  const LocatedTensor* find(std::string_view name) const;  // nullptr when absent
  std::uint64_t total_bytes() const;

 private:
  Checkpoint() = default;
  std::string directory_;
  config::ModelConfig config_;
  std::unique_ptr<Dialect> dialect_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<LocatedTensor> tensors_;
  std::unordered_map<std::string, std::size_t> index_by_name_;
  Account account_;
};

// Up to `count` of `known` by edit distance to `name`, nearest first, equals by name. Bounded work:
// names are cut at kMaxTensorNameBytes.
std::vector<std::string> nearest_names(std::string_view name,
                                       const std::vector<std::string>& known, std::size_t count);

}  // namespace holdfast::checkpoint
