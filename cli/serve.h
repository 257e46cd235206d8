// `holdfast serve`: its flags, and how they are parsed. Values; one thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
}

namespace holdfast::cli {

struct CommandLine;

struct ServeFlags {
  // Options of serve/serve_options.h that were given as flags: the flag as written, and its text.
  std::vector<std::pair<std::string, std::string>> given;
  std::string config;         // a file; empty: HOLDFAST_CONFIG, or none
  bool print_config = false;  // and do nothing else
};

// Adds the sub-command `serve` to `root`; what it parses goes into `line`.
void add_serve(CLI::App& root, CommandLine& line);

}  // namespace holdfast::cli
