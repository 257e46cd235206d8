#include "serve/status_json.h"

#include <map>

#include "holdfast/version.h"
#include "serve/json_writer.h"

namespace holdfast::serve {
namespace {

void write_stats(JsonWriter& out, const EngineStats& stats) {
  out.key("requests").begin_object();
  out.field("running", stats.running).field("waiting", stats.waiting).end_object();
  out.key("kv").begin_object();
  out.field("pages", stats.kv_pages).field("used", stats.kv_pages_used);
  out.field("cached", stats.kv_pages_cached).end_object();
  out.key("counters").begin_object();
  out.field("steps", stats.steps).field("prompt_tokens", stats.prompt_tokens);
  out.field("generated_tokens", stats.generated_tokens).field("preemptions", stats.preemptions);
  out.field("prefix_queries", stats.prefix_queries).field("prefix_hits", stats.prefix_hits);
  out.field("commits", stats.commits).field("roll_backs", stats.roll_backs).end_object();
  out.field("last_step_rows", stats.last_step_rows);
}

void write_open_reload(JsonWriter& out, const ReloadStatus& reload) {
  out.key("reload").begin_object();
  out.field("id", reload.id).field("phase", reload_phase_name(reload.phase));
  out.field("source", reload.source).field("version", reload.version);
  out.field("strategy", reload.strategy).field("pushed", reload.pushed);
  out.field("bytes_expected", reload.bytes_expected).field("bytes_arrived", reload.bytes_arrived);
  out.array("awaited", reload.awaited).field("awaited_count", reload.awaited_count);
  out.field("deadline_left_ms", reload.deadline_left_ms).field("error", reload.error);
  out.end_object();
}

void write_record(JsonWriter& out, const ReloadRecord& record) {
  const ReloadReport& report = record.report;
  out.begin_object();
  out.field("id", report.id).field("source", report.source).field("scope", report.scope);
  out.field("version", report.version).field("state", report.state);
  out.field("strategy", report.strategy);
  out.field("from_epoch", report.from_epoch).field("to_epoch", report.to_epoch);
  out.field("began_unix_ms", record.began_unix_ms).field("ended_unix_ms", record.ended_unix_ms);
  out.field("stage_ms", report.stage_ms).field("prepare_ms", report.prepare_ms);
  out.field("pause_us", report.pause_us).field("verify_ms", report.verify_ms);
  out.field("source_bytes", report.source_bytes).field("versioned_bytes", report.versioned_bytes);
  out.field("slots_moved", report.slots_moved).field("slots_changed", report.slots_changed);
  out.array("warnings", report.warnings).field("error", report.error).end_object();
}

}  // namespace

std::optional<ThroughputWindow::Rates> ThroughputWindow::sample(double now_s,
                                                                const EngineStats& stats) {
  const std::lock_guard lock(mutex_);
  const Sample now{now_s, stats.generated_tokens, stats.prompt_tokens, stats.steps};
  // The newest that is too old stays only until one within the window is old enough.
  while (samples_.size() >= 2 && samples_[0].now_s < now_s - kMost_s &&
         samples_[1].now_s <= now_s - kLeast_s) {
    samples_.pop_front();
  }
  std::optional<Rates> out;
  if (!samples_.empty() && samples_.front().now_s <= now_s - kLeast_s) {
    const Sample& then = samples_.front();
    const double window_s = now_s - then.now_s;
    const auto rate = [&](std::uint64_t after, std::uint64_t before) {
      return static_cast<double>(after - before) / window_s;
    };
    out = Rates{.window_s = window_s,
                .generated_tokens_per_s = rate(now.generated_tokens, then.generated_tokens),
                .prompt_tokens_per_s = rate(now.prompt_tokens, then.prompt_tokens),
                .steps_per_s = rate(now.steps, then.steps)};
  }
  // However often somebody asks, no more are kept than the window needs.
  if (samples_.empty() || samples_.back().now_s <= now_s - kLeast_s / 4) samples_.push_back(now);
  return out;
}

std::string state_name(const HostSnapshot& snapshot) {
  if (snapshot.failed) return "failed";
  if (snapshot.poisoned) return "poisoned";
  if (snapshot.draining) return "draining";
  if (snapshot.sleeping) return "sleeping";
  if (snapshot.paused) return "paused";
  if (snapshot.pausing) return "pausing";
  return "serving";
}

std::string status_json(const StatusInput& input) {
  const HostSnapshot& snapshot = input.snapshot;
  JsonWriter out;
  out.begin_object();
  out.field("now_unix_ms", input.now_unix_ms).field("uptime_s", input.uptime_s);
  out.field("holdfast_version", version()).field("model", input.model);
  out.field("state", state_name(snapshot)).field("failure", snapshot.failure);
  out.field("epoch", snapshot.epoch);
  out.field("version", snapshot.version.empty() ? std::string("default") : snapshot.version);
  out.field("connections", input.connections);
  write_stats(out, snapshot.stats);
  out.key("throughput");
  if (input.rates) {
    out.begin_object().field("window_s", input.rates->window_s);
    out.field("generated_tokens_per_s", input.rates->generated_tokens_per_s);
    out.field("prompt_tokens_per_s", input.rates->prompt_tokens_per_s);
    out.field("steps_per_s", input.rates->steps_per_s).end_object();
  } else {
    out.null();
  }
  out.field("paused_seconds", snapshot.paused_seconds);
  out.field("step_gap_us_max_at_commit", snapshot.step_gap_us_max_at_commit);
  write_open_reload(out, snapshot.reload);
  out.key("reloads").begin_array();
  for (const ReloadRecord& record : snapshot.reloads) write_record(out, record);
  out.end_array().end_object();
  return out.take();
}

std::string census_summary_json(const CensusReport& census) {
  struct Count {
    std::uint64_t slots = 0, bytes = 0;
  };
  std::map<std::string, Count> classes;
  for (const CensusEntry& slot : census.slots) {
    ++classes[slot.slot_class].slots;
    classes[slot.slot_class].bytes += slot.bytes;
  }
  JsonWriter out;
  out.begin_object();
  out.field("epoch", census.epoch).field("captured_addresses", census.captured_addresses);
  out.array("homeless", census.homeless).array("rehomed", census.rehomed);
  out.key("classes").begin_array();
  for (const auto& [name, count] : classes) {
    out.begin_object().field("class", name);
    out.field("slots", count.slots).field("bytes", count.bytes).end_object();
  }
  out.end_array().end_object();
  return out.take();
}

}  // namespace holdfast::serve
