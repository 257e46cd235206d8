// Ctrl-C as something that a command asks about between steps, so that it can end in order: files
// that are not finished go, a reply stops. The process's one thread that reads input and steps.
#pragma once

namespace holdfast::cli {

// From now on SIGINT and SIGTERM only take note. Reads of stdin end early when one comes.
void catch_interrupts();
bool interrupted();
// Forgets the interrupt that was noted.
void clear_interrupt();

}  // namespace holdfast::cli
