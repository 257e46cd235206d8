#include "loadgen/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace holdfast::loadgen {
namespace {

// Label number k was made from directory k in turn.
std::optional<std::string> directory_of(const BenchOptions& options, const RunResult& result,
                                        const std::string& version) {
  const auto at = std::find(result.versions.begin(), result.versions.end(), version);
  if (at == result.versions.end()) return std::nullopt;
  const auto index = static_cast<std::size_t>(at - result.versions.begin());
  return options.reload_dirs[index % options.reload_dirs.size()];
}

// Whether nothing that a span leans on was made by other weights than its own. Under `continue`
// keys and values outlive a commit, and it may have come while the prompt was being computed: only
// a request that was sent after the span's weights had been committed is sure.
bool can_be_made_again(const BenchOptions& options, const RunResult& result,
                       const Outcome& outcome, const VersionSpan& span) {
  if (options.in_flight == "recompute") return true;
  if (span.start > 0) return false;
  const bool keys_outlive = options.in_flight.empty() || options.in_flight == "continue";
  if (!keys_outlive || span.version == result.versions.front()) return true;
  for (const ReloadOutcome& reload : result.reloads) {
    if (reload.version == span.version) return outcome.sent_s >= reload.ended_s;
  }
  return false;
}

bool within(const VersionSpan& span, const Outcome& outcome) {
  return span.start >= 0 && span.start < span.end &&
         span.end <= static_cast<std::int64_t>(outcome.ids.size());
}

}  // namespace

std::vector<ReferenceJob> plan_references(const BenchOptions& options, const RunResult& result) {
  std::vector<std::size_t> usable;
  for (std::size_t i = 0; i < result.outcomes.size(); ++i) {
    const Outcome& outcome = result.outcomes[i];
    if (outcome.completed() && !outcome.spans.empty() &&
        can_be_made_again(options, result, outcome, outcome.spans.front())) {
      usable.push_back(i);
    }
  }
  const std::size_t count =
      std::min(usable.size(), static_cast<std::size_t>(options.verify_spans));
  std::vector<ReferenceJob> out;
  for (std::size_t k = 0; k < count; ++k) {
    const std::size_t stream = usable[k * usable.size() / count];
    const Outcome& outcome = result.outcomes[stream];
    for (const VersionSpan& span : outcome.spans) {
      if (!can_be_made_again(options, result, outcome, span)) break;
      const std::optional<std::string> directory = directory_of(options, result, span.version);
      if (!directory || !within(span, outcome)) break;
      ReferenceJob job{.stream = stream, .span = span, .directory = *directory, .request = {}};
      job.request.prompt = outcome.prompt;
      job.request.prompt.insert(job.request.prompt.end(), outcome.ids.begin(),
                                outcome.ids.begin() + span.start);
      job.request.max_tokens = span.end - span.start;
      out.push_back(std::move(job));
    }
  }
  return out;
}

SpanCheck compare_with_reference(const ReferenceJob& job, const RunResult& result,
                                 const Outcome& reference) {
  SpanCheck out{.stream = job.stream, .span = job.span, .directory = job.directory, .error = {}};
  if (!reference.completed()) {
    out.error = fmt::format("the reference run failed: {}", reference.error);
    return out;
  }
  const std::vector<std::int32_t>& ids = result.outcomes[job.stream].ids;
  const auto count = static_cast<std::size_t>(job.span.end - job.span.start);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t had = ids[static_cast<std::size_t>(job.span.start) + i];
    if (i < reference.ids.size() && reference.ids[i] == had) continue;
    out.error = fmt::format(
        "token {} of version {} is {}, and {} at rest makes {}",
        static_cast<std::size_t>(job.span.start) + i, job.span.version, had, job.directory,
        i < reference.ids.size() ? std::to_string(reference.ids[i]) : "no token");
    break;
  }
  return out;
}

}  // namespace holdfast::loadgen
