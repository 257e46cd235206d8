#include "engine/progress_source.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace holdfast::engine {

namespace {

class ProgressSource final : public reload::Source {
 public:
  ProgressSource(std::unique_ptr<reload::Source> inner, std::function<void(double)> progress)
      : inner_(std::move(inner)), progress_(std::move(progress)) {
    for (const reload::SourceTensor& tensor : inner_->tensors()) {
      const auto bytes = tensor::byte_size(tensor.dtype, tensor.shape);
      if (bytes) total_bytes_ += *bytes;
    }
  }

  std::string describe() const override { return inner_->describe(); }
  const config::ModelConfig& config() const override { return inner_->config(); }
  std::span<const reload::SourceTensor> tensors() const override { return inner_->tensors(); }

  Status read(std::size_t index, std::uint64_t offset, std::span<std::byte> to) override {
    HF_TRY(inner_->read(index, offset, to));
    note(to.size());
    return {};
  }

  bool reads_concurrently() const override { return inner_->reads_concurrently(); }
  std::span<const std::byte> memory(std::size_t index) const override {
    return inner_->memory(index);
  }
  void fetched(std::size_t index, std::uint64_t bytes) override {
    inner_->fetched(index, bytes);
    note(bytes);
  }
  Status finish() override { return inner_->finish(); }

 private:
  void note(std::uint64_t bytes) {
    const std::uint64_t read_bytes = read_bytes_ += bytes;
    const double fraction = std::min(
        1.0, static_cast<double>(read_bytes) / static_cast<double>(std::max<std::uint64_t>(
                                                    total_bytes_, 1)));
    const int percent = static_cast<int>(fraction * 100.0);
    if (percent <= reported_percent_) return;
    const std::lock_guard lock(mutex_);  // one report at a time, each higher than the last
    if (percent > reported_percent_) {
      reported_percent_ = percent;
      progress_(fraction);
    }
  }

  std::unique_ptr<reload::Source> inner_;
  std::function<void(double)> progress_;
  std::uint64_t total_bytes_ = 0;
  std::atomic<std::uint64_t> read_bytes_{0};
  std::mutex mutex_;
  std::atomic<int> reported_percent_{0};
};

}  // namespace

std::unique_ptr<reload::Source> make_progress_source(std::unique_ptr<reload::Source> inner,
                                                     std::function<void(double)> progress) {
  return std::make_unique<ProgressSource>(std::move(inner), std::move(progress));
}

}  // namespace holdfast::engine
