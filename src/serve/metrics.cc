#include "serve/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace holdfast::serve {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::map<std::string, std::string>;
using Buckets = prometheus::Histogram::BucketBoundaries;

// A path comes from outside, and each new one is a series that lives for ever: past so many, and
// where no route answered, they are counted together.
constexpr std::size_t kMaxPathSeries = 512;
constexpr std::string_view kOtherPath = "other";

Buckets token_buckets() {
  return {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
}
Buckets latency_buckets() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 600};
}
Buckets step_buckets() {
  return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5};
}
Buckets choice_buckets() { return {1, 2, 5, 10, 20, 50, 100}; }
Buckets pause_buckets() {
  return {0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5};
}

// The first word of "corrupt: shard 3: ..." when it is an error code's name: a label must not be
// free text.
std::string reason_of(const std::string& error) {
  constexpr auto last = static_cast<int>(ErrorCode::kPoisoned);
  for (int code = 0; code <= last; ++code) {
    const std::string_view name = error_code_name(static_cast<ErrorCode>(code));
    if (error.compare(0, name.size(), name) == 0 && error.compare(name.size(), 1, ":") == 0) {
      return std::string(name);
    }
  }
  return "other";
}

MetricFamily family(std::string name, std::string help, MetricType type) {
  return {.name = std::move(name), .help = std::move(help), .type = type, .metric = {}};
}

void add_value(MetricFamily& to, double value, const Labels& labels) {
  ClientMetric metric;
  for (const auto& [name, text] : labels) metric.label.push_back({name, text});
  if (to.type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  to.metric.push_back(std::move(metric));
}

// One value of a snapshot under a name of its own.
struct Reading {
  const char* name;
  const char* help;
  MetricType type;
  double value;
};

std::vector<Reading> engine_readings(const EngineStats& stats) {
  const auto number = [](auto value) { return static_cast<double>(value); };
  const std::int64_t pages = stats.kv_pages;
  const double usage = pages > 0 ? number(stats.kv_pages_used) / number(pages) : 0;
  const MetricType gauge = MetricType::Gauge, counter = MetricType::Counter;
  return {
      {"vllm:num_requests_running", "Requests that run.", gauge, number(stats.running)},
      {"vllm:num_requests_waiting", "Requests that wait.", gauge, number(stats.waiting)},
      {"vllm:kv_cache_usage_perc", "Share of the KV pages that running requests use; 1 is all.",
       gauge, usage},
      {"vllm:prefix_cache_queries_total", "Prompt tokens that were looked up in the prefix cache.",
       counter, number(stats.prefix_queries)},
      {"vllm:prefix_cache_hits_total", "Prompt tokens whose keys and values were cached.", counter,
       number(stats.prefix_hits)},
      {"vllm:num_preemptions_total", "Requests put back to waiting for want of KV pages.", counter,
       number(stats.preemptions)},
      {"vllm:prompt_tokens_total", "Prompt tokens that were computed.", counter,
       number(stats.prompt_tokens)},
      {"vllm:generation_tokens_total", "Tokens that were generated.", counter,
       number(stats.generated_tokens)},
  };
}

std::vector<Reading> host_readings(const HostSnapshot& now, std::size_t connections) {
  const auto number = [](auto value) { return static_cast<double>(value); };
  const MetricType gauge = MetricType::Gauge, counter = MetricType::Counter;
  return {
      {"holdfast_epoch", "Epoch of the weights that serve.", gauge, number(now.epoch)},
      {"holdfast_poisoned", "1 while the weights are not to be trusted and no token is given.",
       gauge, number(now.poisoned)},
      {"holdfast_failed", "1 once the engine has ended with an error.", gauge, number(now.failed)},
      {"holdfast_paused", "1 while no step runs because of a pause.", gauge, number(now.paused)},
      {"holdfast_draining", "1 while no new request is accepted.", gauge, number(now.draining)},
      {"holdfast_paused_seconds_total", "Time spent paused.", counter, now.paused_seconds},
      {"holdfast_commit_gap_seconds_max", "Longest time between two steps over a commit.", gauge,
       number(now.step_gap_us_max_at_commit) * 1e-6},
      {"holdfast_steps_total", "Steps of the engine.", counter, number(now.stats.steps)},
      {"holdfast_kv_pages_cached", "KV pages kept for equal prefixes.", gauge,
       number(now.stats.kv_pages_cached)},
      {"holdfast_http_connections", "Open HTTP connections.", gauge, number(connections)},
  };
}

}  // namespace

struct Metrics::Impl {
  explicit Impl(std::string name) : labels{{"model_name", std::move(name)}} {
    for (const FinishReason reason :
         {FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort}) {
      success.at(static_cast<std::size_t>(reason)) = &counter(
          "vllm:request_success_total", "Requests that have ended, by why.",
          with({"finished_reason", finish_reason_name(reason)}));
    }
  }

  Labels with(std::pair<std::string, std::string> label) const {
    Labels out = labels;
    out.insert(std::move(label));
    return out;
  }
  prometheus::Counter& counter(const std::string& name, const std::string& help,
                               const Labels& series) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(series);
  }
  prometheus::Histogram& histogram(const std::string& name, const std::string& help,
                                   const Labels& series, Buckets buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(
        series, std::move(buckets));
  }
  prometheus::Histogram& phase(const char* name) {
    return histogram("holdfast_reload_seconds", "Time of a reload's phases.", {{"phase", name}},
                     latency_buckets());
  }
  std::string path_label(const std::string& path, int status);
  std::vector<MetricFamily> snapshot_families(const HostSnapshot& now, std::size_t connections);

  prometheus::Registry registry{prometheus::Registry::InsertBehavior::Merge};
  const Labels labels;
  std::array<prometheus::Counter*, 3> success = {};
  std::mutex paths_mutex;
  std::set<std::string> paths;

  prometheus::Histogram& first_token =
      histogram("vllm:time_to_first_token_seconds", "From a request's arrival to its first token.",
                labels, latency_buckets());
  prometheus::Histogram& inter_token = histogram(
      "vllm:inter_token_latency_seconds", "Between two tokens of one stream.", labels,
      latency_buckets());
  prometheus::Histogram& per_output_token = histogram(
      "vllm:request_time_per_output_token_seconds",
      "Mean time of a request's tokens after the first.", labels, latency_buckets());
  prometheus::Histogram& end_to_end =
      histogram("vllm:e2e_request_latency_seconds", "From a request's arrival to its end.", labels,
                latency_buckets());
  prometheus::Histogram& iteration_tokens = histogram(
      "vllm:iteration_tokens_total", "Tokens (rows) in one step.", labels, token_buckets());
  prometheus::Histogram& prompt_tokens = histogram(
      "vllm:request_prompt_tokens", "Prompt tokens of a request.", labels, token_buckets());
  prometheus::Histogram& output_tokens = histogram(
      "vllm:request_generation_tokens", "Tokens that a request was given.", labels,
      token_buckets());
  prometheus::Histogram& params_n = histogram(
      "vllm:request_params_n", "Choices that a request asked for.", labels, choice_buckets());
  prometheus::Histogram& params_max_tokens =
      histogram("vllm:request_params_max_tokens", "Tokens that a request asked for at most.",
                labels, token_buckets());
  prometheus::Histogram& step_seconds =
      histogram("holdfast_step_seconds", "Time of one step.", {}, step_buckets());
  prometheus::Histogram& stage_seconds = phase("stage");
  prometheus::Histogram& prepare_seconds = phase("prepare");
  prometheus::Histogram& commit_seconds = phase("commit");
  prometheus::Histogram& verify_seconds = phase("verify");
  prometheus::Histogram& pause_seconds =
      histogram("holdfast_pause_seconds", "Time of a commit, in which no step runs.", {},
                pause_buckets());
  prometheus::Counter& reload_bytes = counter(
      "holdfast_reload_bytes_total", "Bytes that reloads have read from their sources.", {});
  prometheus::Counter& commits =
      counter("holdfast_commits_total", "Reloads that were committed.", {});
  prometheus::Counter& rejected =
      counter("holdfast_rejected_total", "Requests refused because the queue was full.", {});
};

std::string Metrics::Impl::path_label(const std::string& path, int status) {
  if (status == 404 || status == 405) return std::string(kOtherPath);
  const std::lock_guard lock(paths_mutex);
  if (paths.contains(path)) return path;
  if (paths.size() >= kMaxPathSeries) return std::string(kOtherPath);
  paths.insert(path);
  return path;
}

std::vector<MetricFamily> Metrics::Impl::snapshot_families(const HostSnapshot& now,
                                                           std::size_t connections) {
  std::vector<MetricFamily> out;
  for (const Reading& reading : engine_readings(now.stats)) {
    add_value(out.emplace_back(family(reading.name, reading.help, reading.type)), reading.value,
              labels);
  }
  for (const Reading& reading : host_readings(now, connections)) {
    add_value(out.emplace_back(family(reading.name, reading.help, reading.type)), reading.value,
              {});
  }
  add_value(out.emplace_back(family("vllm:cache_config_info", "The KV cache's size, as labels.",
                                    MetricType::Gauge)),
            1, with({"num_gpu_blocks", std::to_string(now.stats.kv_pages)}));
  // vLLM's other states do not exist here: asleep, the weights stay where they are.
  add_value(out.emplace_back(family("vllm:engine_sleep_state", "1 for the state that the engine "
                                    "is in.", MetricType::Gauge)),
            now.sleeping ? 0 : 1, with({"sleep_state", "awake"}));
  const std::string version = now.version.empty() ? "default" : now.version;
  add_value(out.emplace_back(family("holdfast_weight_version_info",
                                    "The weights that serve, as labels.", MetricType::Gauge)),
            1, {{"version", version}, {"epoch", std::to_string(now.epoch)}});
  return out;
}

Metrics::Metrics(std::string model_name) : impl_(std::make_unique<Impl>(std::move(model_name))) {}
Metrics::~Metrics() = default;

void Metrics::on_request(const RequestTimes& times) {
  const auto observe_time = [](prometheus::Histogram& histogram, double seconds) {
    if (seconds >= 0) histogram.Observe(seconds);
  };
  observe_time(impl_->first_token, times.time_to_first_token);
  observe_time(impl_->end_to_end, times.end_to_end);
  observe_time(impl_->per_output_token, times.per_output_token);
  impl_->prompt_tokens.Observe(static_cast<double>(times.prompt_tokens));
  impl_->output_tokens.Observe(static_cast<double>(times.output_tokens));
  impl_->params_n.Observe(static_cast<double>(times.choices));
  impl_->params_max_tokens.Observe(static_cast<double>(times.max_tokens));
  impl_->success.at(static_cast<std::size_t>(times.finish_reason))->Increment();
}

void Metrics::on_inter_token(double seconds) { impl_->inter_token.Observe(seconds); }

void Metrics::on_step(double seconds, std::uint64_t rows) {
  impl_->step_seconds.Observe(seconds);
  impl_->iteration_tokens.Observe(static_cast<double>(rows));
}

void Metrics::on_reload(const ReloadReport& report) {
  impl_->reload_bytes.Increment(static_cast<double>(report.source_bytes));
  impl_->stage_seconds.Observe(report.stage_ms * 1e-3);
  if (report.state == "committed") {
    impl_->commits.Increment();
    impl_->prepare_seconds.Observe(report.prepare_ms * 1e-3);
    impl_->commit_seconds.Observe(report.pause_us * 1e-6);
    impl_->verify_seconds.Observe(report.verify_ms * 1e-3);
    impl_->pause_seconds.Observe(report.pause_us * 1e-6);
    return;
  }
  impl_->counter("holdfast_roll_backs_total", "Reloads that were not committed, by why.",
                 {{"reason", reason_of(report.error)}, {"state", report.state}})
      .Increment();
}

void Metrics::on_answer(const std::string& method, const std::string& path, int status,
                        double seconds) {
  const std::string label = impl_->path_label(path, status);
  impl_->counter("holdfast_http_requests_total", "HTTP requests that were answered.",
                 {{"method", label == kOtherPath ? std::string(kOtherPath) : method},
                  {"path", label},
                  {"status", std::to_string(status)}})
      .Increment();
  impl_->histogram("holdfast_http_request_seconds", "Time from a request to the end of its answer.",
                   {{"path", label}}, latency_buckets())
      .Observe(seconds);
}

void Metrics::on_rejected() { impl_->rejected.Increment(); }

std::string Metrics::text(const HostSnapshot& snapshot, std::size_t connections) {
  std::vector<MetricFamily> families = impl_->registry.Collect();
  for (MetricFamily& one : impl_->snapshot_families(snapshot, connections)) {
    families.push_back(std::move(one));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace holdfast::serve
