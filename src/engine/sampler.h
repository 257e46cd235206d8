// Sampler: from the logits of one position to a token. On the host, in a fixed order of operations,
// so that a token depends only on the logits, the parameters, and (seed, output index).
// Owned by the engine; engine thread (it keeps its workspace).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "holdfast/engine.h"
#include "holdfast/result.h"

namespace holdfast::engine {

// Errors: kInvalidArgument naming the field, its value and the range.
Status check_sampling(const Sampling& sampling);

// log of the softmax of `logits` at `id`, in float64, terms added in index order.
double log_probability(std::span<const float> logits, std::int32_t id);

struct Sampled {
  std::int32_t id = 0;
  float logprob = 0;  // of the raw distribution
};

class Sampler {
 public:
  explicit Sampler(std::int64_t vocab_size);

  // temperature 0: the largest logit, ties to the lower id. Else, with p = softmax(logits / T):
  // 1. top_k keeps the k largest (ties to the lower id); 2. top_p keeps the shortest run of the
  // largest whose share of what step 1 kept reaches top_p; 3. min_p keeps p >= min_p * max p;
  // then one draw over what is left, in order of ids, with the uniform number
  // counter_draw(seed, output_index). Errors: kDevice when a logit is NaN or infinite: the numbers
  // behind it are broken and any token would be a lie.
  Result<Sampled> sample(std::span<const float> logits, const Sampling& sampling,
                         std::uint64_t output_index);

 private:
  std::int32_t draw(std::span<const float> logits, const Sampling& sampling,
                    std::uint64_t output_index);
  std::vector<std::int32_t> kept_;
  std::vector<double> weights_;  // by id
};

}  // namespace holdfast::engine
