#include "loadgen/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

namespace holdfast::loadgen {
namespace {

// "" when all is well.
using Rule = std::function<std::string(const Outcome&)>;

Check check_streams(std::string name, const RunResult& result, const Rule& rule) {
  Check out{.name = std::move(name), .first_failure = {}};
  for (std::size_t i = 0; i < result.outcomes.size(); ++i) {
    ++out.checked;
    const std::string failure = rule(result.outcomes[i]);
    if (failure.empty()) continue;
    if (out.failed++ == 0) out.first_failure = fmt::format("stream {}: {}", i, failure);
  }
  return out;
}

std::string ended_by_itself(const Outcome& outcome) {
  if (!outcome.completed()) return outcome.error.empty() ? "no [DONE]" : outcome.error;
  if (outcome.finish_reason == "stop" || outcome.finish_reason == "length") return {};
  return fmt::format("finish_reason is \"{}\"", outcome.finish_reason);
}

std::string all_arrived(const Outcome& outcome, bool nothing_stops) {
  if (!outcome.completed()) return "it did not end";
  const auto arrived = static_cast<std::int64_t>(outcome.token_times_s.size());
  if (outcome.usage_completion_tokens != arrived) {
    return fmt::format("{} tokens arrived, usage says {}", arrived,
                       outcome.usage_completion_tokens);
  }
  const bool short_of = nothing_stops && arrived != outcome.asked_tokens;
  if (short_of || arrived > outcome.asked_tokens) {
    return fmt::format("{} tokens arrived of {}", arrived, outcome.asked_tokens);
  }
  return {};
}

std::string spans_cover(const Outcome& outcome) {
  const auto tokens = static_cast<std::int64_t>(outcome.token_times_s.size());
  std::int64_t reached = 0;
  for (const VersionSpan& span : outcome.spans) {
    if (span.start != reached || span.end <= span.start) {
      return fmt::format("span [{}, {}) of version {} follows token {}", span.start, span.end,
                         span.version, reached);
    }
    reached = span.end;
  }
  if (reached == tokens) return {};
  return fmt::format("the spans cover {} of {} tokens", reached, tokens);
}

// Holds what is known of all streams: an epoch's label.
class VersionRule {
 public:
  explicit VersionRule(const std::vector<std::string>& labels) {
    for (std::size_t i = 0; i < labels.size(); ++i) order_.emplace(labels[i], i);
  }
  std::string operator()(const Outcome& outcome) {
    const VersionSpan* before = nullptr;
    for (const VersionSpan& span : outcome.spans) {
      const auto [label, is_new] = labels_.emplace(span.epoch, span.version);
      if (span.epoch != 0 && !is_new && label->second != span.version) {
        return fmt::format("epoch {} is called {} here and {} elsewhere", span.epoch, span.version,
                           label->second);
      }
      if (!order_.empty() && !order_.contains(span.version)) {
        return fmt::format("version {} is none that this run has loaded", span.version);
      }
      if (before != nullptr && goes_back(*before, span)) {
        return fmt::format("version {} (epoch {}) comes after {} (epoch {})", span.version,
                           span.epoch, before->version, before->epoch);
      }
      before = &span;
    }
    return {};
  }

 private:
  bool goes_back(const VersionSpan& before, const VersionSpan& after) const {
    if (after.epoch < before.epoch) return true;
    return !order_.empty() && order_.at(after.version) < order_.at(before.version);
  }
  std::map<std::string, std::size_t> order_;
  std::map<std::uint64_t, std::string> labels_;
};

Check check_reloads(const BenchOptions& options, const RunResult& result) {
  Check out{.name = "every reload was done", .first_failure = {}};
  out.checked = static_cast<std::size_t>(options.reloads);
  for (std::size_t i = 0; i < out.checked; ++i) {
    const bool begun = i < result.reloads.size();
    if (begun && result.reloads[i].error.empty()) continue;
    if (out.failed++ > 0) continue;
    out.first_failure = fmt::format("reload {}: {}", i + 1,
                                    begun ? result.reloads[i].error : "the run ended before it");
  }
  return out;
}

Check check_references(const RunResult& result) {
  Check out{.name = "spans made again at rest have the same tokens", .first_failure = {}};
  for (const SpanCheck& span : result.spans) {
    ++out.checked;
    if (span.error.empty() || out.failed++ > 0) continue;
    out.first_failure = fmt::format("stream {}: {}", span.stream, span.error);
  }
  return out;
}

}  // namespace

std::vector<Check> check_run(const BenchOptions& options, const RunResult& result) {
  std::vector<Check> out;
  out.push_back(check_streams("every stream ended by itself", result, ended_by_itself));
  const bool nothing_stops = options.ignore_eos;
  out.push_back(check_streams("every token arrived", result, [&](const Outcome& outcome) {
    return all_arrived(outcome, nothing_stops);
  }));
  out.push_back(check_streams("every token has a version", result, spans_cover));
  VersionRule versions(result.versions);
  out.push_back(check_streams("versions never go back", result, std::ref(versions)));
  if (options.reloads > 0) out.push_back(check_reloads(options, result));
  if (options.verify_spans > 0) out.push_back(check_references(result));
  return out;
}

}  // namespace holdfast::loadgen
