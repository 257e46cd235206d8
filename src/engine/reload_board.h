// ReloadBoard: where the open reload stands, written by whichever thread moves it and read by any.
// Owned by the reloader. Any thread; every call is short, whatever the reload is doing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "holdfast/reload.h"
#include "reload/source.h"

namespace holdfast::engine {

// How many awaited tensors a status names.
inline constexpr std::size_t kNamedAwaited = 8;

class ReloadBoard {
 public:
  // `on_change` may be empty; it is called by announce() alone.
  explicit ReloadBoard(std::function<void()> on_change) : on_change_(std::move(on_change)) {}

  ReloadPhase phase() const { return phase_.load(std::memory_order_acquire); }
  // `deadline_ns`: of the clock that status() is told; 0: none.
  void begin(ReloadStatus opened, std::int64_t deadline_ns);
  // What will come, tensor by tensor; entries of one name are one tensor.
  void expect(std::string strategy, std::span<const reload::SourceTensor> tensors);
  // Bytes of the source's tensor number `index`, or of the one of that name, came. Bytes beyond
  // what was expected of it (read again, to be compared) do not count.
  void arrived(std::size_t index, std::uint64_t bytes);
  void arrived(const std::string& tensor, std::uint64_t bytes);
  void relabel(std::string version);
  void move_to(ReloadPhase phase, std::string error = {});
  // Something other than the phase that the engine thread should look at.
  void mark_changed() { changed_.store(true, std::memory_order_release); }
  // Calls on_change if anything has changed since the last call. Without any lock held.
  void announce();

  ReloadStatus status(std::int64_t now_ns) const;

 private:
  struct Awaited {
    std::string name;
    std::uint64_t expected = 0;
    std::uint64_t arrived = 0;
  };
  void add(Awaited& tensor, std::uint64_t bytes);

  const std::function<void()> on_change_;
  std::atomic<ReloadPhase> phase_{ReloadPhase::kNone};
  std::atomic<bool> changed_{false};
  mutable std::mutex mutex_;
  ReloadStatus status_;
  std::int64_t deadline_ns_ = 0;
  std::vector<Awaited> tensors_;
  std::vector<std::size_t> of_source_;  // by the source's number: index into tensors_
  std::unordered_map<std::string, std::size_t> by_name_;
};

// Presents `inner`, and tells `board` what is read. `board` must outlive it.
std::unique_ptr<reload::Source> make_counted_source(std::unique_ptr<reload::Source> inner,
                                                    ReloadBoard& board);

}  // namespace holdfast::engine
