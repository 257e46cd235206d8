#include "reload/source.h"

#include <vector>

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

  Status finish() override {
    for (const auto& file : checkpoint_->files()) HF_TRY(file->check_unchanged());
    return {};
  }

 private:
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
  std::vector<SourceTensor> tensors_;
};

}  // namespace

std::unique_ptr<Source> make_checkpoint_source(
    std::shared_ptr<const checkpoint::Checkpoint> checkpoint) {
  return std::make_unique<CheckpointSource>(std::move(checkpoint));
}

}  // namespace holdfast::reload
