#include "reload/source.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"

namespace holdfast::reload {
namespace {

class CheckpointSource final : public Source {
 public:
  explicit CheckpointSource(std::shared_ptr<const checkpoint::Checkpoint> checkpoint)
      : checkpoint_(std::move(checkpoint)) {
    tensors_.reserve(checkpoint_->tensors().size());
    for (const checkpoint::LocatedTensor& located : checkpoint_->tensors()) {
      tensors_.push_back({.name = located.entry->name,
                          .dtype = located.entry->dtype,
                          .shape = located.entry->shape});
    }
  }

  std::string describe() const override { return "checkpoint " + checkpoint_->directory(); }
  const config::ModelConfig& config() const override { return checkpoint_->config(); }
  std::span<const SourceTensor> tensors() const override { return tensors_; }

  Status read(std::size_t index, std::uint64_t offset, std::span<std::byte> to) override {
    const checkpoint::LocatedTensor& located = checkpoint_->tensors()[index];
    return located.file->read(*located.entry, offset, to);
  }

  // A positioned read of the file into the caller's memory.
  bool reads_concurrently() const override { return true; }

  Status finish() override {
    for (const auto& file : checkpoint_->files()) HF_TRY(file->check_unchanged());
    return {};
  }

 private:
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
  std::vector<SourceTensor> tensors_;
};

class MemorySource final : public Source {
 public:
  MemorySource(std::string description, config::ModelConfig config,
               std::shared_ptr<const std::vector<MemoryPiece>> pieces)
      : description_(std::move(description)),
        config_(std::move(config)),
        pieces_(std::move(pieces)) {
    tensors_.reserve(pieces_->size());
    for (const MemoryPiece& piece : *pieces_) tensors_.push_back(piece.tensor);
  }
  std::string describe() const override { return description_; }
  const config::ModelConfig& config() const override { return config_; }
  std::span<const SourceTensor> tensors() const override { return tensors_; }
  Status read(std::size_t index, std::uint64_t offset, std::span<std::byte> to) override {
    const auto from = (*pieces_)[index].bytes.subspan(offset, to.size());
    std::copy(from.begin(), from.end(), to.begin());
    return {};
  }
  bool reads_concurrently() const override { return true; }
  std::span<const std::byte> memory(std::size_t index) const override {
    return (*pieces_)[index].bytes;
  }
  Status finish() override { return {}; }

 private:
  std::string description_;
  config::ModelConfig config_;
  std::shared_ptr<const std::vector<MemoryPiece>> pieces_;
  std::vector<SourceTensor> tensors_;
};

class ManifestSource final : public Source {
 public:
  explicit ManifestSource(Manifest manifest) : manifest_(std::move(manifest)) {}
  std::string describe() const override { return manifest_.description; }
  const config::ModelConfig& config() const override { return manifest_.config; }
  std::span<const SourceTensor> tensors() const override { return manifest_.tensors; }
  Status read(std::size_t index, std::uint64_t, std::span<std::byte>) override {
    return make_error(ErrorCode::kFailedPrecondition,
                      "{} pushes its bytes, so tensor {} cannot be read from it: use put",
                      manifest_.description, manifest_.tensors[index].name);
  }
  Status finish() override { return {}; }

 private:
  Manifest manifest_;
};

}  // namespace

std::unique_ptr<Source> make_checkpoint_source(
    std::shared_ptr<const checkpoint::Checkpoint> checkpoint) {
  return std::make_unique<CheckpointSource>(std::move(checkpoint));
}

std::unique_ptr<Source> make_memory_source(
    std::string description, config::ModelConfig config,
    std::shared_ptr<const std::vector<MemoryPiece>> pieces) {
  return std::make_unique<MemorySource>(std::move(description), std::move(config),
                                        std::move(pieces));
}

std::unique_ptr<Source> make_manifest_source(Manifest manifest) {
  return std::make_unique<ManifestSource>(std::move(manifest));
}

}  // namespace holdfast::reload
