#include "serve/stop_signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>

namespace holdfast::serve {
namespace {

// What a handler may touch.
volatile std::sig_atomic_t g_count = 0;
std::atomic<int> g_fd{-1};
static_assert(std::atomic<int>::is_always_lock_free);

void raise_fd(int fd) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(fd, &one, sizeof one);
}

void set_handler(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // it may come on any thread, in any system call
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void on_signal(int signal) {
  const int error = errno;
  g_count = g_count + 1;
  if (g_count > 2) {  // whoever sends a third one does not want to wait
    std::signal(signal, SIG_DFL);
    raise(signal);
  }
  raise_fd(g_fd);
  errno = error;
}

}  // namespace

Notice::Notice() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
Notice::~Notice() {
  if (fd_ >= 0) close(fd_);
}
void Notice::set() { raise_fd(fd_); }

StopSignals::~StopSignals() {
  if (g_fd != woken_.fd()) return;
  set_handler(SIG_DFL);
  g_fd = -1;
}

void StopSignals::catch_signals() {
  g_count = 0;
  g_fd = woken_.fd();
  set_handler(on_signal);
}

int StopSignals::count() const { return g_count; }

void StopSignals::wait() {
  Notice never;
  while (wait_for(never, std::chrono::steady_clock::time_point::max())) {
  }
}

bool StopSignals::wait_for(const Notice& notice, std::chrono::steady_clock::time_point until) {
  pollfd waits[2] = {{.fd = woken_.fd(), .events = POLLIN, .revents = 0},
                     {.fd = notice.fd(), .events = POLLIN, .revents = 0}};
  while (true) {
    int milliseconds = -1;
    if (until != std::chrono::steady_clock::time_point::max()) {
      const auto left = until - std::chrono::steady_clock::now();
      const auto whole = std::chrono::ceil<std::chrono::milliseconds>(left).count();
      milliseconds = static_cast<int>(std::clamp<std::int64_t>(whole, 0, 1 << 30));
    }
    const int ready = poll(waits, 2, milliseconds);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    if (waits[1].revents != 0) return true;
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = read(woken_.fd(), &count, sizeof count);
    return false;
  }
}

}  // namespace holdfast::serve
