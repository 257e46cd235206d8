// `holdfast bench`: its flags, and how they are parsed. Values; one thread.
#pragma once

#include <string>

#include "loadgen/bench.h"

namespace CLI {
class App;
}

namespace holdfast::cli {

struct CommandLine;

struct BenchFlags {
  loadgen::BenchOptions options;
  std::string dataset = "random";
  std::string save_result, report;  // files; empty: none
};

// Adds the sub-command `bench` to `root`; what it parses goes into `line`.
void add_bench(CLI::App& root, CommandLine& line);

}  // namespace holdfast::cli
