#include "drill/report_json.h"

#include <nlohmann/json.hpp>

namespace holdfast::drill {
namespace {

using Json = nlohmann::ordered_json;

void add_figures(Json& json, const DrillCount& count) {
  json["total"] = count.total;
  json["stable"] = count.stable;
  json["moved"] = count.moved;
  json["values_preserved"] = count.values_preserved;
  json["values_intact_post_pressure"] = count.values_intact_post_pressure;
  json["registered_at_first_load"] = count.registered_at_first_load;
  json["registered_after_reload"] = count.registered_after_reload;
}

}  // namespace

std::string report_json(const DrillReport& report, const DrillOptions& options) {
  Json json;
  json["label"] = report.label;
  json["verdict"] = report.verdict();
  json["green"] = report.green;
  json["reasons"] = report.reasons;
  json["not_injected"] =
      report.not_injected.empty() ? Json(nullptr) : Json(report.not_injected);
  json["from"] = options.from;
  json["to"] = options.to;
  json["inject"] = options.inject.empty() ? Json(nullptr) : Json(options.inject);
  json["commit"] = options.commit;
  add_figures(json, report.constants);
  // A fault that never acted leaves nothing that was compared.
  const auto compared = [&](bool equal) {
    return report.not_injected.empty() ? Json(equal) : Json(nullptr);
  };
  json["tokens_match_identity"] = compared(report.tokens_match_identity);
  json["tokens_match_pre_pressure"] = compared(report.tokens_match_pre_pressure);
  json["tokens_match_post_pressure"] = compared(report.tokens_match_post_pressure);
  json["logprobs_match"] = compared(report.logprobs_match);
  json["versions_match"] = compared(report.versions_match);
  json["replay_error"] = report.replay_error.empty() ? Json(nullptr) : Json(report.replay_error);
  const bool refused = !report.refusal.empty();
  json["strategy"] = report.strategy;
  json["refusal"] = refused ? Json(report.refusal) : Json(nullptr);
  json["poisoned"] = report.poisoned;
  const bool may_serve = refused && !report.poisoned;
  json["refused_cleanly"] = may_serve ? Json(report.refused_cleanly) : Json(nullptr);
  json["emits_nothing"] = report.poisoned ? Json(report.emits_nothing) : Json(nullptr);
  json["recovered"] = refused ? Json(report.recovered) : Json(nullptr);
  json["moved_keys"] = report.constants.moved_keys;
  add_figures(json["slots"], report.slots);
  json["slots"]["moved_keys"] = report.slots.moved_keys;
  json["live_tokens_before"] = report.live_tokens_before;
  json["live_tokens_after"] = report.live_tokens_after;
  json["load_ms"] = report.load_ms;
  json["capture_ms"] = report.capture_ms;
  json["stage_ms"] = report.stage_ms;
  json["pause_us"] = report.pause_us;
  json["total_ms"] = report.total_ms;
  json["weights_bytes"] = report.weights_bytes;
  json["peak_bytes"] = report.peak_bytes;
  json["declared_peak_bytes"] = report.declared_peak_bytes;
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace holdfast::drill
