// StopSignals: SIGTERM and SIGINT as something that the main thread waits for. One at a time in a
// process; its functions belong to the main thread, except where said.
#pragma once

#include <atomic>
#include <chrono>

namespace holdfast::serve {

// Something that another thread reports once.
class Notice {
 public:
  Notice();
  ~Notice();
  Notice(const Notice&) = delete;
  Notice& operator=(const Notice&) = delete;
  void set();  // any thread
  int fd() const { return fd_; }

 private:
  int fd_;
};

class StopSignals {
 public:
  StopSignals() = default;
  // The signals end the process again.
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // From now on the signals only take note. The third one ends the process as if never caught.
  void catch_signals();
  int count() const;  // of signals so far
  void wait();        // until a signal
  // True once `notice` is set; false at a further signal, or at `until`.
  bool wait_for(const Notice& notice, std::chrono::steady_clock::time_point until);

 private:
  Notice woken_;
};

}  // namespace holdfast::serve
