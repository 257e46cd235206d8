// HostLoop: the loop of the engine thread. Owned by an EngineHost, which posts closures into it;
// everything but post(), wake(), end() and snapshot() runs on the loop's own thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "serve/host.h"

namespace holdfast::serve {

class HostLoop {
 public:
  using Task = std::function<void(HostLoop&)>;
  // What is told to whoever began a reload, once it has ended.
  struct OpenReload {
    std::uint64_t id = 0;
    std::int64_t began_unix_ms = 0;
    std::function<void(Result<ReloadReport>)> done;
  };

  static Result<std::unique_ptr<HostLoop>> open(EngineOptions options, HostObserver observer);
  ~HostLoop();
  HostLoop(const HostLoop&) = delete;
  HostLoop& operator=(const HostLoop&) = delete;

  // --- any thread
  void post(Task task);
  HostSnapshot snapshot() const;
  Engine& engine() { return *engine_; }  // for its functions that any thread may call
  const std::string& model_directory() const { return model_directory_; }
  std::int64_t vocab_size() const { return vocab_size_; }
  const std::vector<std::int32_t>& eos_token_ids() const { return eos_token_ids_; }

  // --- the loop's thread: what EngineHost's functions of these names do
  void submit(Request request, Sink sink, const std::function<void(Result<RequestId>)>& accepted);
  std::size_t cancel_all();
  void pause(PauseMode mode, std::function<void()> done);
  Status resume();
  void sleep();
  void wake_up();
  // A reload that has ended is recorded, and who waits for it is told so.
  void notice_reload();
  // Before a reload begins: one that has ended is noticed first, and one that is to be replaced is
  // given up and recorded.
  void make_room(bool replace_open);
  // One that is still open has been replaced: who waits for it is told so.
  void expect_reload(OpenReload reload);
  Status abort_reload(std::uint64_t id);
  void set_version(std::string version);
  void drain(std::function<void()> done);

 private:
  using Clock = std::chrono::steady_clock;
  enum class Pause : std::uint8_t { kRunning, kPausing, kPaused };

  explicit HostLoop(HostObserver observer) : observer_(std::move(observer)) {}
  void wake();  // any thread
  void run();
  void run_tasks();
  bool wait();  // false: the host ends
  bool can_step() const;
  void step();
  void between_steps();
  void take(Result<std::vector<Event>> events);
  void dispatch(std::vector<Event> events);
  void abort_sinks();
  void on_step_error(const Error& error);
  void notice_epoch();
  const std::string& version_of(const Event& event) const;
  void measure_step(Clock::time_point began, std::uint64_t epoch_before);
  void enter_pause();
  void reach_pause();
  void end_pause();
  void finish_drain();
  void record_ended();
  void tell(std::string_view state) const;
  void tell(std::string_view state, const std::string& why) const;
  void publish();
  void end();

  HostObserver observer_;
  std::string model_directory_;
  std::int64_t vocab_size_ = 0;  // the engine's config changes with a commit; these do not
  std::vector<std::int32_t> eos_token_ids_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool reload_changed_ = false;
  bool ending_ = false;
  HostSnapshot snapshot_;

  std::unique_ptr<Engine> engine_;
  std::unordered_map<std::uint64_t, Sink> sinks_;
  Pause pause_ = Pause::kRunning;
  bool boundary_due_ = false;  // no boundary has come since the last step
  bool quiet_before_ = false;  // no request ran at the last boundary, while pausing
  bool sleeping_ = false, draining_ = false, failed_ = false, poisoned_ = false;
  std::string failure_;
  int retries_ = 0;
  bool not_finite_ = false;  // told once, until a step goes well
  std::vector<std::function<void()>> pausing_, draining_done_;
  std::optional<OpenReload> reload_;
  std::uint64_t noticed_reload_ = 0, recorded_reload_ = 0;
  std::vector<ReloadRecord> records_;
  std::uint64_t epoch_ = 0;
  std::string version_;
  std::map<std::uint64_t, std::string> versions_;  // by epoch, since a roll-back goes back
  Clock::time_point paused_since_ = {}, last_step_end_ = {};
  bool steps_in_a_row_ = false;  // last_step_end_ is of the step just before
  double paused_seconds_ = 0;
  std::uint64_t longest_gap_us_ = 0;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace holdfast::serve
