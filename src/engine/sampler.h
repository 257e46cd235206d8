// Sampler: from the logits of one position to a token and its log probabilities. On the host, in a
// fixed order of operations, so that a token depends only on the logits, the request, and the
// tokens before it. Owned by the engine; engine thread (it keeps its workspace).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "holdfast/engine.h"
#include "holdfast/result.h"
#include "ops/ops.h"

namespace holdfast::engine {

// log of the softmax of `logits` at `id`, in float64, terms added in the order of
// ops/choose_math.h.
double log_probability(std::span<const float> logits, std::int32_t id);

// What a token depends on besides the logits. Borrows.
struct SampleInput {
  const Sampling& sampling;
  std::uint64_t output_index = 0;
  std::span<const std::int32_t> prompt = {};  // the tokens before, which penalties look at
  std::span<const std::int32_t> output = {};
  // Tokens that may not come: those that would end a request before its min_tokens.
  std::array<std::span<const std::int32_t>, 2> masked = {};
  LogprobsMode mode = LogprobsMode::kRaw;
  std::optional<std::int32_t> top_logprobs = {};  // as in Request
};

struct Sampled {
  std::int32_t id = 0;
  float logprob = 0;
  std::int32_t rank = 0;               // 0: not asked for
  std::vector<TokenLogprob> top = {};  // likeliest first, ties to the lower id
};

// What ops::choose needs to take a token; temperature 0: the largest.
struct ChoiceInput {
  float temperature = 0;
  double draw = 0;
};

class Sampler {
 public:
  explicit Sampler(std::int64_t vocab_size);

  // First the logits are changed, each step in float64 rounded to float32, and kept finite:
  // 1. tokens other than allowed_token_ids are dropped; 2. logit_bias is added, in its order;
  // 3. penalties, as request.h has them; 4. masked tokens are dropped.
  // Temperature 0 takes the largest, ties to the lower id. Else, with p = softmax(logits / T):
  // 1. top_k keeps the k largest (ties to the lower id); 2. top_p keeps the shortest run of the
  // largest whose share of what step 1 kept reaches top_p; 3. min_p keeps p >= min_p * max p;
  // then one draw over what is left, in order of ids, with the uniform number
  // counter_draw(seed, output_index). A draw over all tokens adds as ops::choose does.
  // Processed log probabilities are of what is left, at temperature 1 when it is 0. A rank is the
  // place in the order of `top`. Errors: kCorrupt when a logit is NaN or infinite: the numbers
  // behind it are broken and any token would be a lie. Asserts that a token is left.
  Result<Sampled> sample(std::span<const float> logits, const SampleInput& input);
  Result<Sampled> sample(std::span<const float> logits, const Sampling& sampling,
                         std::uint64_t output_index) {
    return sample(logits, {.sampling = sampling, .output_index = output_index});
  }

  // What ops::choose has to be given so that `chosen` of its choice is what `sample` returns, bit
  // by bit; empty when that takes more than choose can. Depends on no logits.
  static std::optional<ChoiceInput> choosable(const SampleInput& input);
  // Errors: as sample.
  static Result<Sampled> chosen(const ops::Choice& choice);

  // What the model itself says of `id`; `top` as Request::top_logprobs. Errors: as sample.
  Result<Sampled> score(std::span<const float> logits, std::int32_t id,
                        std::optional<std::int32_t> top);

 private:
  std::span<const float> change(std::span<const float> logits, const SampleInput& input);
  void penalize(const SampleInput& input);
  void keep(std::span<const float> logits, const Sampling& sampling, double temperature);
  std::int32_t draw(std::span<const float> logits, const SampleInput& input) const;
  void fill_raw(Sampled& sampled, std::span<const float> logits, std::optional<std::int32_t> top);
  void fill_processed(Sampled& sampled, std::span<const float> logits, const SampleInput& input);
  template <typename LogOf>
  void fill_top(Sampled& sampled, std::span<const float> values, std::int32_t count,
                const LogOf& log_of);
  double kept_total() const;

  std::vector<float> changed_;
  std::vector<std::int32_t> order_;
  std::vector<std::int32_t> kept_;     // ascending, after keep
  std::vector<double> weights_;        // by id; the largest is 1
  std::vector<std::int32_t> counts_;   // by id, of output tokens; all 0 between calls
  std::vector<std::uint8_t> is_seen_;  // by id; all 0 between calls
  std::vector<std::int32_t> seen_;
};

}  // namespace holdfast::engine
