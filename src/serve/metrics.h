// Metrics: counters and histograms under vLLM's names where they mean the same, and holdfast_* for
// reloads, in Prometheus text form. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "serve/host.h"

namespace holdfast::serve {

// One request that has ended; times in seconds, negative when they never came.
struct RequestTimes {
  double time_to_first_token = -1;
  double end_to_end = 0;
  double per_output_token = -1;  // mean over tokens after the first
  std::int64_t prompt_tokens = 0, output_tokens = 0;
  std::int64_t max_tokens = 0, choices = 1;
  FinishReason finish_reason = FinishReason::kStop;
};

class Metrics {
 public:
  explicit Metrics(std::string model_name);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void on_request(const RequestTimes& times);
  void on_inter_token(double seconds);
  void on_step(double seconds, std::uint64_t rows);
  void on_reload(const ReloadReport& report);
  void on_answer(const std::string& method, const std::string& path, int status, double seconds);
  void on_rejected();  // a request over the queue's limit
  // Prometheus text exposition, version 0.0.4; gauges are taken from `snapshot`.
  std::string text(const HostSnapshot& snapshot, std::size_t connections);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast::serve
