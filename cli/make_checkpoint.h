// `holdfast make-checkpoint`: its flags, and how they are parsed. Values; one thread.
#pragma once

#include "holdfast/random_checkpoint.h"

namespace CLI {
class App;
}

namespace holdfast::cli {

struct CommandLine;

struct MakeCheckpointFlags {
  RandomCheckpointOptions options;
};

// Adds the sub-command `make-checkpoint` to `root`; what it parses goes into `line`.
void add_make_checkpoint(CLI::App& root, CommandLine& line);

}  // namespace holdfast::cli
