#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"

namespace holdfast::engine {

namespace {

Error out_of_range(const char* field, double value, const char* range) {
  return make_error(ErrorCode::kInvalidArgument, "sampling field {} is {}, expected {}", field,
                    value, range);
}

std::int32_t argmax(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<std::int32_t>(best);
}

}  // namespace

Status check_sampling(const Sampling& sampling) {
  // Written so that a NaN fails.
  if (!(sampling.temperature >= 0.0f && sampling.temperature <= 100.0f)) {
    return out_of_range("temperature", static_cast<double>(sampling.temperature), "0 to 100");
  }
  if (!(sampling.top_p > 0.0f && sampling.top_p <= 1.0f)) {
    return out_of_range("top_p", static_cast<double>(sampling.top_p), "above 0, up to 1");
  }
  if (sampling.top_k < 0) {
    return out_of_range("top_k", sampling.top_k, "0 (off) or more");
  }
  if (!(sampling.min_p >= 0.0f && sampling.min_p <= 1.0f)) {
    return out_of_range("min_p", static_cast<double>(sampling.min_p), "0 to 1");
  }
  return {};
}

double log_probability(std::span<const float> logits, std::int32_t id) {
  const double largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit) - largest);
  return static_cast<double>(logits[static_cast<std::size_t>(id)]) - largest - std::log(total);
}

Sampler::Sampler(std::int64_t vocab_size) {
  kept_.reserve(static_cast<std::size_t>(vocab_size));
  weights_.resize(static_cast<std::size_t>(vocab_size));
}

Result<Sampled> Sampler::sample(std::span<const float> logits, const Sampling& sampling,
                                std::uint64_t output_index) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      return make_error(ErrorCode::kDevice, "the logit of token {} is {}", i, logits[i]);
    }
  }
  const std::int32_t id =
      sampling.temperature == 0.0f ? argmax(logits) : draw(logits, sampling, output_index);
  return Sampled{.id = id, .logprob = static_cast<float>(log_probability(logits, id))};
}

std::int32_t Sampler::draw(std::span<const float> logits, const Sampling& sampling,
                           std::uint64_t output_index) {
  const auto larger = [logits](std::int32_t a, std::int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  const double largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  const double temperature = static_cast<double>(sampling.temperature);
  kept_.resize(logits.size());
  std::iota(kept_.begin(), kept_.end(), 0);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weights_[i] = std::exp((static_cast<double>(logits[i]) - largest) / temperature);
  }
  const auto total = [this] {
    double sum = 0;
    for (const std::int32_t id : kept_) sum += weights_[id];
    return sum;
  };

  const auto top_k = static_cast<std::size_t>(sampling.top_k);
  if (top_k > 0 && top_k < kept_.size()) {
    std::nth_element(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(top_k - 1),
                     kept_.end(), larger);
    kept_.resize(top_k);
  }
  if (sampling.top_p < 1.0f) {
    std::sort(kept_.begin(), kept_.end(), larger);
    const double wanted = static_cast<double>(sampling.top_p) * total();
    double reached = 0;
    std::size_t count = 0;
    while (count < kept_.size() && (count == 0 || reached < wanted)) {
      reached += weights_[kept_[count++]];
    }
    kept_.resize(count);
  }
  // The largest weight is exactly 1.
  const double least = static_cast<double>(sampling.min_p);
  std::erase_if(kept_, [this, least](std::int32_t id) { return weights_[id] < least; });

  std::sort(kept_.begin(), kept_.end());
  const double target =
      base::to_unit_interval(base::counter_draw(sampling.seed, output_index)) * total();
  double reached = 0;
  for (const std::int32_t id : kept_) {
    reached += weights_[id];
    if (reached > target) return id;
  }
  return kept_.back();
}

}  // namespace holdfast::engine
