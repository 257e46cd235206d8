#include "engine/reload_board.h"

#include <algorithm>
#include <utility>

namespace holdfast {

const char* reload_phase_name(ReloadPhase phase) {
  switch (phase) {
    case ReloadPhase::kNone: return "none";
    case ReloadPhase::kStaging: return "staging";
    case ReloadPhase::kReady: return "ready";
    case ReloadPhase::kVerifying: return "verifying";
    case ReloadPhase::kDone: return "done";
    case ReloadPhase::kFailed: return "failed";
  }
  return "none";
}

}  // namespace holdfast

namespace holdfast::engine {

namespace {

constexpr std::int64_t kNsPerMs = 1'000'000;

// The plan has accepted these shapes, so their sizes exist.
std::uint64_t bytes_of(const reload::SourceTensor& tensor) {
  const std::uint64_t all = tensor::byte_size(tensor.dtype, tensor.shape).value();
  if (!tensor.rows || tensor.shape.rank() == 0 || tensor.shape[0] == 0) return all;
  return all / static_cast<std::uint64_t>(tensor.shape[0]) *
         static_cast<std::uint64_t>(tensor.rows->count);
}

class CountedSource final : public reload::Source {
 public:
  CountedSource(std::unique_ptr<reload::Source> inner, ReloadBoard& board)
      : inner_(std::move(inner)), board_(board) {}
  std::string describe() const override { return inner_->describe(); }
  const config::ModelConfig& config() const override { return inner_->config(); }
  std::span<const reload::SourceTensor> tensors() const override { return inner_->tensors(); }
  Status read(std::size_t index, std::uint64_t offset, std::span<std::byte> to) override {
    HF_TRY(inner_->read(index, offset, to));
    board_.arrived(index, to.size());
    return {};
  }
  bool reads_concurrently() const override { return inner_->reads_concurrently(); }
  std::span<const std::byte> memory(std::size_t index) const override {
    return inner_->memory(index);
  }
  void fetched(std::size_t index, std::uint64_t bytes) override {
    inner_->fetched(index, bytes);
    board_.arrived(index, bytes);
  }
  Status finish() override { return inner_->finish(); }

 private:
  std::unique_ptr<reload::Source> inner_;
  ReloadBoard& board_;
};

}  // namespace

void ReloadBoard::begin(ReloadStatus opened, std::int64_t deadline_ns) {
  const std::lock_guard lock(mutex_);
  status_ = std::move(opened);
  status_.phase = ReloadPhase::kStaging;
  deadline_ns_ = deadline_ns;
  tensors_.clear();
  of_source_.clear();
  by_name_.clear();
  phase_.store(ReloadPhase::kStaging, std::memory_order_release);
  mark_changed();
}

void ReloadBoard::expect(std::string strategy, std::span<const reload::SourceTensor> tensors) {
  const std::lock_guard lock(mutex_);
  status_.strategy = std::move(strategy);
  for (const reload::SourceTensor& tensor : tensors) {
    const auto [found, is_new] = by_name_.try_emplace(tensor.name, tensors_.size());
    if (is_new) tensors_.push_back({.name = tensor.name, .expected = 0, .arrived = 0});
    const std::uint64_t bytes = bytes_of(tensor);
    tensors_[found->second].expected += bytes;
    status_.bytes_expected += bytes;
    of_source_.push_back(found->second);
  }
  status_.awaited_count = tensors_.size();
}

// With the lock held.
void ReloadBoard::add(Awaited& tensor, std::uint64_t bytes) {
  const std::uint64_t counted = std::min(bytes, tensor.expected - tensor.arrived);
  if (counted == 0) return;
  tensor.arrived += counted;
  status_.bytes_arrived += counted;
  if (tensor.arrived == tensor.expected) --status_.awaited_count;
}

void ReloadBoard::arrived(std::size_t index, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  add(tensors_[of_source_[index]], bytes);
}

void ReloadBoard::arrived(const std::string& tensor, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = by_name_.find(tensor);
  if (found != by_name_.end()) return add(tensors_[found->second], bytes);
  // Under another of its names: all experts at once, where each was awaited.
  status_.bytes_arrived += std::min(bytes, status_.bytes_expected - status_.bytes_arrived);
}

void ReloadBoard::relabel(std::string version) {
  const std::lock_guard lock(mutex_);
  status_.version = std::move(version);
}

void ReloadBoard::move_to(ReloadPhase phase, std::string error) {
  const std::lock_guard lock(mutex_);
  status_.phase = phase;
  status_.error = std::move(error);
  phase_.store(phase, std::memory_order_release);
  mark_changed();
}

void ReloadBoard::announce() {
  if (changed_.exchange(false, std::memory_order_acq_rel) && on_change_) on_change_();
}

ReloadStatus ReloadBoard::status(std::int64_t now_ns) const {
  const std::lock_guard lock(mutex_);
  ReloadStatus status = status_;
  for (const Awaited& tensor : tensors_) {
    if (status.awaited.size() == std::min<std::size_t>(kNamedAwaited, status.awaited_count)) break;
    if (tensor.arrived < tensor.expected) status.awaited.push_back(tensor.name);
  }
  const bool before_commit =
      status.phase == ReloadPhase::kStaging || status.phase == ReloadPhase::kReady;
  if (before_commit && deadline_ns_ > 0) {
    // One that is over is not none.
    status.deadline_left_ms = std::max<std::int64_t>((deadline_ns_ - now_ns) / kNsPerMs, 1);
  }
  return status;
}

std::unique_ptr<reload::Source> make_counted_source(std::unique_ptr<reload::Source> inner,
                                                    ReloadBoard& board) {
  return std::make_unique<CountedSource>(std::move(inner), board);
}

}  // namespace holdfast::engine
