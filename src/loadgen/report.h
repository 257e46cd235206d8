// Reports of a run: a table for people, JSON with the keys of vLLM's bench, a self-contained HTML
// page with SVG charts. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "loadgen/bench.h"
#include "loadgen/check.h"
#include "loadgen/measures.h"

namespace holdfast::loadgen {

struct ReportInput {
  const BenchOptions& options;
  const RunResult& result;
  const Measures& measures;
  const std::vector<Check>& checks;  // empty: none were asked for
};

std::string report_table(const ReportInput& input);
std::string report_json(const ReportInput& input);
std::string report_html(const ReportInput& input);

}  // namespace holdfast::loadgen
