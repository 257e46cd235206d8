// `holdfast quantize`: its flags, and how they are parsed. Values; one thread.
#pragma once

#include "holdfast/quantize.h"

namespace CLI {
class App;
}

namespace holdfast::cli {

struct CommandLine;

struct QuantizeFlags {
  QuantizeOptions options;
};

// Adds the sub-command `quantize` to `root`; what it parses goes into `line`.
void add_quantize(CLI::App& root, CommandLine& line);

}  // namespace holdfast::cli
