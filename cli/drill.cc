#include "holdfast/drill.h"

#include <memory>
#include <string>

#include "cli/command_line.h"
#include "cli/output.h"

namespace holdfast::cli {
namespace {

constexpr std::size_t kShownKeys = 12;

const char* yes_no(bool value) { return value ? "yes" : "NO"; }

void append_row(std::string& out, std::string_view name, std::string_view value) {
  out += fmt::format("  {:<38} {}\n", name, value);
}

void append_count(std::string& out, std::string_view title, const DrillCount& count) {
  out += fmt::format("{}\n", title);
  append_row(out, "slots, stable, moved",
             fmt::format("{}, {}, {}", count.total, count.stable, count.moved));
  append_row(out, "values kept by the identity reload", yes_no(count.values_preserved));
  append_row(out, "values intact after pressure", yes_no(count.values_intact_post_pressure));
  append_row(out, "captured at first load, after reload",
             fmt::format("{}, {}", count.registered_at_first_load, count.registered_after_reload));
}

void append_moved(std::string& out, const std::vector<std::string>& keys) {
  for (std::size_t i = 0; i < keys.size() && i < kShownKeys; ++i) {
    out += fmt::format("    moved: {}\n", keys[i]);
  }
  if (keys.size() > kShownKeys) {
    out += fmt::format("    ... and {} more\n", keys.size() - kShownKeys);
  }
}

void append_refusal(std::string& out, const DrillReport& report) {
  out += report.poisoned ? "poisoned reload\n" : "refused reload\n";
  if (report.poisoned) {
    append_row(out, "emits nothing while poisoned", yes_no(report.emits_nothing));
  } else {
    append_row(out, "refused cleanly: the old weights serve", yes_no(report.refused_cleanly));
  }
  append_row(out, "the next reload is committed", yes_no(report.recovered));
}

std::string report_text(const DrillReport& report) {
  if (!report.not_injected.empty()) {  // nothing was compared that could say anything
    return fmt::format("{}\n  {}\n", report.verdict(), report.not_injected);
  }
  std::string out;
  append_count(out, "experts' constants", report.constants);
  append_count(out, "all slots", report.slots);
  append_moved(out, report.slots.moved_keys);  // the constants are among them
  out += "tokens\n";
  append_row(out, "equal after reloading A over A", yes_no(report.tokens_match_identity));
  append_row(out, "equal to a cold engine on B", yes_no(report.tokens_match_pre_pressure));
  append_row(out, "the same after pressure", yes_no(report.tokens_match_post_pressure));
  append_row(out, "logprobs equal bit for bit", yes_no(report.logprobs_match));
  append_row(out, "every token has its epoch", yes_no(report.versions_match));
  append_row(out, "live reload: tokens before, after",
             fmt::format("{}, {}", report.live_tokens_before, report.live_tokens_after));
  if (!report.replay_error.empty()) append_row(out, "replay error", report.replay_error);
  if (!report.refusal.empty()) append_refusal(out, report);
  out += "cost\n";
  append_row(out, "load, capture",
             fmt::format("{:.0f} ms, {:.0f} ms", report.load_ms, report.capture_ms));
  append_row(out, "reload: staging, pause",
             fmt::format("{:.0f} ms, {:.0f} us", report.stage_ms, report.pause_us));
  append_row(out, "weights, peak, extra of a reload",
             fmt::format("{}, {}, {}", readable_bytes(report.weights_bytes),
                         readable_bytes(report.peak_bytes),
                         readable_bytes(report.declared_peak_bytes)));
  append_row(out, "whole drill", fmt::format("{:.1f} s", report.total_ms / 1000));
  out += fmt::format("\n{}\n", report.verdict());
  for (const std::string& reason : report.reasons) out += fmt::format("  {}\n", reason);
  return out;
}

Result<int> drill(const CommandLine& flags) {
  DrillOptions options;
  options.from = flags.drill.from;
  options.to = flags.drill.to;
  options.inject = flags.inject;
  options.commit = flags.model.commit;
  options.label = flags.drill.label;
  options.prompts = flags.drill.prompts;
  options.max_tokens = flags.drill.max_tokens;
  options.threads = flags.model.threads;
  options.device = flags.model.device;
  options.kernels = flags.model.kernels;
  options.experts = flags.model.experts;
  options.expert_activations = flags.model.expert_activations;
  options.quantize_experts = flags.model.quantize_experts;
  options.quantize_group_size = flags.model.quantize_group;
  const auto progress = std::make_shared<ProgressLine>(flags.quiet);
  options.progress = [progress](const std::string& line) { progress->show(line); };
  Result<DrillReport> report = run_drill(options);
  progress->clear();
  if (!report.ok()) return report.error();
  // `--json -` gives stdout to the JSON alone.
  const std::string& json_file = flags.drill.json_file;
  if (!json_file.empty()) HF_TRY(write_file(json_file, report->json + "\n"));
  if (json_file != "-") HF_TRY(write_file("", report_text(*report)));
  if (!report->not_injected.empty()) return kExitUsage;
  return report->green ? kExitDone : kExitFailed;
}

}  // namespace

int run_drill_command(const CommandLine& line) {
  const Result<int> code = drill(line);
  return code.ok() ? *code : report_failure(code.error());
}

}  // namespace holdfast::cli
