// Ctrl-C as something that a command asks about between steps, so that it can end in order: files
// that are not finished go, a reply stops. The process's one thread that reads input and steps.
#pragma once

namespace holdfast::cli {

// From now on SIGINT and SIGTERM only take note. Reads of stdin end early when one comes.
void catch_interrupts();
bool interrupted();
// Forgets the interrupt that was noted.
void clear_interrupt();
// Blocks until `fd` can be read (or has ended), or until an interrupt, also one that came before
// the call; false then.
bool wait_for_input(int fd);

}  // namespace holdfast::cli
