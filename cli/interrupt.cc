#include "cli/interrupt.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace holdfast::cli {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;  // a signal handler can write nothing else
// What the handler writes a byte into, so that a poll ends also when the signal came just before
// it, or on another thread.
int g_wake[2] = {-1, -1};

void on_signal(int) {
  const int error = errno;
  g_interrupted = 1;
  if (g_wake[1] >= 0) {
    [[maybe_unused]] const auto written = write(g_wake[1], "", 1);  // a full pipe wakes, too
  }
  errno = error;
}

}  // namespace

void catch_interrupts() {
  if (g_wake[0] < 0 && pipe2(g_wake, O_CLOEXEC | O_NONBLOCK) != 0) g_wake[0] = g_wake[1] = -1;
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // no SA_RESTART: a blocked read ends
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return g_interrupted != 0; }

void clear_interrupt() {
  // In this order: a signal between the two leaves its note and no byte, which wait_for_input sees.
  g_interrupted = 0;
  char byte = 0;
  while (g_wake[0] >= 0 && read(g_wake[0], &byte, 1) == 1) {
  }
}

bool wait_for_input(int fd) {
  pollfd waits[2] = {{.fd = fd, .events = POLLIN, .revents = 0},
                     {.fd = g_wake[0], .events = POLLIN, .revents = 0}};  // -1 is left out
  while (!interrupted()) {
    const int ready = poll(waits, 2, -1);
    if (ready > 0 && waits[1].revents == 0) return true;
    if (ready < 0 && errno != EINTR) return true;  // the read will say what is wrong
  }
  return false;
}

}  // namespace holdfast::cli
