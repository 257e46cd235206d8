// The formula of router_top_k, as scalar loops.
#include <cmath>
#include <limits>

#include "ops/cpu/kernel_sets.h"

namespace holdfast::ops::cpu {
namespace {

bool contains(const std::int32_t* ids, std::int64_t count, std::int64_t id) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (ids[i] == id) return true;
  }
  return false;
}

float number_or_lowest(float logit) {
  return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
}

// The largest logit that is not among the `taken` ids so far; the lower index wins a tie.
std::int32_t best_remaining(const float* logits, std::int64_t experts, const std::int32_t* ids,
                            std::int64_t taken) {
  std::int64_t best = -1;
  for (std::int64_t e = 0; e < experts; ++e) {
    if (contains(ids, taken, e)) continue;
    if (best < 0 || number_or_lowest(logits[e]) > number_or_lowest(logits[best])) best = e;
  }
  return static_cast<std::int32_t>(best);
}

}  // namespace

// weights = softmax(logits[ids]), or those of softmax(logits); a logit equal to the largest counts
// exp(0) even when both are infinite, so that the weights are always numbers.
void Reference::router_top_k(const RouterTopKKernel& args, device::WorkerPool&) {
  const std::int64_t rows = active_row_count(args.active_rows, args.logits.shape[0]);
  const std::int64_t experts = args.logits.shape[1];
  const std::int64_t k = args.ids.shape[1];
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* logits = args.logits.as<const float>() + r * experts;
    std::int32_t* ids = args.ids.as<std::int32_t>() + r * k;
    float* weights = args.weights.as<float>() + r * k;
    for (std::int64_t i = 0; i < k; ++i) ids[i] = best_remaining(logits, experts, ids, i);
    const float largest = number_or_lowest(logits[ids[0]]);
    const auto share = [largest](float value) {
      const float logit = number_or_lowest(value);
      return logit == largest ? 1.0f : std::exp(logit - largest);
    };
    float sum = 0.0f;
    for (std::int64_t i = 0; i < k; ++i) {
      weights[i] = share(logits[ids[i]]);
      sum += weights[i];
    }
    if (args.over_all != 0) {
      sum = 0.0f;
      for (std::int64_t e = 0; e < experts; ++e) sum += share(logits[e]);
    }
    for (std::int64_t i = 0; i < k; ++i) weights[i] /= sum;
  }
}

}  // namespace holdfast::ops::cpu
