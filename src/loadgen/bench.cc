#include "loadgen/bench.h"

#include "loadgen/check.h"
#include "loadgen/measures.h"
#include "loadgen/report.h"
#include "loadgen/run.h"

namespace holdfast::loadgen {

Result<BenchReport> run_bench(const BenchOptions& options) {
  HF_ASSIGN(const RunResult result, run(options));
  const Measures measures = measure(result, options.percentiles);
  std::vector<Check> checks;
  if (options.check) checks = check_run(options, result);
  const ReportInput input{options, result, measures, checks};
  BenchReport out{.table = report_table(input),
                  .json = report_json(input),
                  .html = report_html(input),
                  .passed = true};
  for (const Check& check : checks) out.passed = out.passed && check.passed();
  return out;
}

}  // namespace holdfast::loadgen
