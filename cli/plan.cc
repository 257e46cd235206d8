#include "cli/command_line.h"
#include "cli/output.h"
#include "cli/session.h"
#include "holdfast/engine.h"

namespace holdfast::cli {
namespace {

Status plan(const CommandLine& flags) {
  HF_ASSIGN(const std::unique_ptr<Engine> engine, open_engine(flags.model, flags.quiet));
  HF_ASSIGN(const PlanReport report,
            engine->plan_reload(flags.reload.to, flags.reload.options));
  std::string text = flags.json ? report.json : report.text;
  if (text.empty() || text.back() != '\n') text += '\n';
  return write_file(flags.output, text);
}

}  // namespace

int run_plan(const CommandLine& line) {
  const Status status = plan(line);
  return status.ok() ? kExitDone : report_failure(status.error());
}

}  // namespace holdfast::cli
