// Checks of a run (`--check`): that no stream was dropped or cut off, and that every token knows
// its weights. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "loadgen/run.h"

namespace holdfast::loadgen {

struct Check {
  std::string name;          // what must be so
  std::size_t checked = 0, failed = 0;
  std::string first_failure;  // of the first stream or reload that fails
  bool passed() const { return failed == 0 && checked > 0; }
};

// One check a rule:
//   every stream ended by itself: [DONE] came, with finish_reason stop or length;
//   every token arrived: as many as usage says, and as asked for when nothing can stop a stream;
//   every token has a version: the spans cover the tokens without gap or overlap;
//   versions never go back within a stream, each epoch has one label, and labels are those of the
//   run's reloads in their order;
//   every reload was done; every span that was made again has the same tokens.
std::vector<Check> check_run(const BenchOptions& options, const RunResult& result);

}  // namespace holdfast::loadgen
