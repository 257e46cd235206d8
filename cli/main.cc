#include <fmt/format.h>

#include <optional>
#include <string>

#include "cli/command_line.h"
#include "cli/output.h"
#include "holdfast/version.h"

namespace holdfast::cli {
namespace {

int run(const CommandLine& line) {
  if (line.command == "generate") return run_generate(line);
  if (line.command == "score") return run_score(line);
  if (line.command == "tokenize") return run_tokenize(line);
  if (line.command == "chat") return run_chat(line);
  if (line.command == "inspect") return run_inspect(line);
  if (line.command == "drill") return run_drill_command(line);
  if (line.command == "census") return run_census(line);
  if (line.command == "plan") return run_plan(line);
  if (line.command == "verify") return run_verify(line);
  if (line.command == "serve") return run_serve(line);
  if (line.command == "bench") return run_bench_command(line);
  if (line.command == "make-checkpoint") return run_make_checkpoint(line);
  if (line.command == "quantize") return run_quantize(line);
  const Status status = write_file("", fmt::format("holdfast {}\n", version()));
  return status.ok() ? kExitDone : report_failure(status.error());
}

}  // namespace
}  // namespace holdfast::cli

int main(int argc, char** argv) {
  holdfast::cli::prepare_standard_streams();
  holdfast::cli::CommandLine line;
  const std::optional<int> finished = holdfast::cli::parse_command_line(argc, argv, line);
  return finished ? *finished : holdfast::cli::run(line);
}
