#include "engine/progress_source.h"

#include <algorithm>
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
    read_bytes_ += to.size();
    const double fraction = std::min(
        1.0, static_cast<double>(read_bytes_) / static_cast<double>(std::max<std::uint64_t>(
                                                    total_bytes_, 1)));
    const int percent = static_cast<int>(fraction * 100.0);
    if (percent > reported_percent_) {
      reported_percent_ = percent;
      progress_(fraction);
    }
    return {};
  }

  Status finish() override { return inner_->finish(); }

 private:
  std::unique_ptr<reload::Source> inner_;
  std::function<void(double)> progress_;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t read_bytes_ = 0;
  int reported_percent_ = 0;
};

}  // namespace

std::unique_ptr<reload::Source> make_progress_source(std::unique_ptr<reload::Source> inner,
                                                     std::function<void(double)> progress) {
  return std::make_unique<ProgressSource>(std::move(inner), std::move(progress));
}

}  // namespace holdfast::engine
