#include "cli/interrupt.h"

#include <csignal>

namespace holdfast::cli {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;  // a signal handler can write nothing else
void on_signal(int) { g_interrupted = 1; }

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // no SA_RESTART: a blocked read ends
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return g_interrupted != 0; }
void clear_interrupt() { g_interrupted = 0; }

}  // namespace holdfast::cli
