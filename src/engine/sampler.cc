#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/assert.h"
#include "base/error.h"
#include "base/rng.h"
#include "ops/choose_math.h"

namespace holdfast::engine {

namespace {

constexpr float kDropped = -std::numeric_limits<float>::infinity();

std::int32_t argmax(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<std::int32_t>(best);
}

Error not_finite(std::size_t id, float logit) {
  if (std::isnan(logit)) {  // its sign says nothing
    return make_error(ErrorCode::kCorrupt, "the logit of token {} is NaN", id);
  }
  return make_error(ErrorCode::kCorrupt, "the logit of token {} is {}", id, logit);
}

Status check_finite(std::span<const float> logits) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) return not_finite(i, logits[i]);
  }
  return {};
}

double draw_of(const SampleInput& input) {
  return base::to_unit_interval(base::counter_draw(input.sampling.seed, input.output_index));
}

// Whether step 1 to 4 of Sampler::sample leave the logits as they are.
bool changes_nothing(const SampleInput& input) {
  const Sampling& sampling = input.sampling;
  return sampling.allowed_token_ids.empty() && sampling.logit_bias.empty() &&
         sampling.repetition_penalty == 1.0f && sampling.frequency_penalty == 0.0f &&
         sampling.presence_penalty == 0.0f && input.masked[0].empty() && input.masked[1].empty();
}

// Whether the draw is over all tokens, as choose has it. Depends on the request alone.
bool draws_over_all(const SampleInput& input) {
  const Sampling& sampling = input.sampling;
  return changes_nothing(input) && sampling.top_k == 0 && sampling.top_p >= 1.0f &&
         sampling.min_p == 0.0f;
}

// What a softmax divides by: log p(id) = (logits[id] - largest) - log_total.
struct Softmax {
  explicit Softmax(std::span<const float> logits) {
    const float most = *std::max_element(logits.begin(), logits.end());
    const ops::ChooseRow row{.logits = logits.data(), .vocab = std::ssize(logits)};
    largest = static_cast<double>(most);
    log_total = std::log(ops::choose_total(row, most));
  }
  explicit Softmax(const ops::Choice& choice)
      : largest(static_cast<double>(choice.largest)), log_total(std::log(choice.total)) {}
  double log_of(float logit) const { return static_cast<double>(logit) - largest - log_total; }

  double largest = 0;
  double log_total = 0;
};

// A dropped token stays dropped, and no other becomes one.
void set(float& logit, double value) {
  constexpr double kMost = static_cast<double>(std::numeric_limits<float>::max());
  if (logit != kDropped) logit = static_cast<float>(std::clamp(value, -kMost, kMost));
}

// Likeliest first, ties to the lower id.
auto likelier(std::span<const float> values) {
  return [values](std::int32_t a, std::int32_t b) {
    return values[a] != values[b] ? values[a] > values[b] : a < b;
  };
}

}  // namespace

double log_probability(std::span<const float> logits, std::int32_t id) {
  return Softmax(logits).log_of(logits[static_cast<std::size_t>(id)]);
}

Sampler::Sampler(std::int64_t vocab_size) {
  const auto size = static_cast<std::size_t>(vocab_size);
  kept_.reserve(size);
  order_.reserve(size);
  seen_.reserve(size);
  changed_.resize(size);
  weights_.resize(size);
  counts_.resize(size);
  is_seen_.resize(size);
}

Result<Sampled> Sampler::sample(std::span<const float> logits, const SampleInput& input) {
  if (const auto row = choosable(input)) {
    return chosen(ops::choose_row({.logits = logits.data(),
                                   .vocab = std::ssize(logits),
                                   .temperature = row->temperature,
                                   .draw = row->draw}));
  }
  HF_TRY(check_finite(logits));
  const Sampling& sampling = input.sampling;
  const bool is_greedy = sampling.temperature == 0.0f;
  const bool is_raw = input.mode == LogprobsMode::kRaw;
  const std::span<const float> changed = change(logits, input);
  if (!is_greedy || !is_raw) {
    keep(changed, sampling, is_greedy ? 1.0 : static_cast<double>(sampling.temperature));
  }
  Sampled sampled{.id = is_greedy ? argmax(changed) : draw(changed, input)};
  HF_ASSERT(changed[static_cast<std::size_t>(sampled.id)] != kDropped, "every token is dropped");
  if (!is_raw) {
    fill_processed(sampled, changed, input);
    return sampled;
  }
  fill_raw(sampled, logits, input.top_logprobs);
  return sampled;
}

std::optional<ChoiceInput> Sampler::choosable(const SampleInput& input) {
  const bool is_greedy = input.sampling.temperature == 0.0f;
  if (input.mode != LogprobsMode::kRaw || input.top_logprobs || !changes_nothing(input)) {
    return std::nullopt;
  }
  if (is_greedy) return ChoiceInput{};
  if (!draws_over_all(input)) return std::nullopt;
  return ChoiceInput{.temperature = input.sampling.temperature, .draw = draw_of(input)};
}

Result<Sampled> Sampler::chosen(const ops::Choice& choice) {
  if (choice.broken >= 0) return not_finite(static_cast<std::size_t>(choice.broken), choice.logit);
  return Sampled{.id = choice.id,
                 .logprob = static_cast<float>(Softmax(choice).log_of(choice.logit))};
}

Result<Sampled> Sampler::score(std::span<const float> logits, std::int32_t id,
                               std::optional<std::int32_t> top) {
  HF_TRY(check_finite(logits));
  Sampled scored{.id = id};
  fill_raw(scored, logits, top);
  return scored;
}

// ------------------------------------------------------------------------------ logits

std::span<const float> Sampler::change(std::span<const float> logits, const SampleInput& input) {
  const Sampling& sampling = input.sampling;
  const bool has_penalty = sampling.repetition_penalty != 1.0f ||
                           sampling.frequency_penalty != 0.0f || sampling.presence_penalty != 0.0f;
  if (changes_nothing(input)) return logits;
  if (sampling.allowed_token_ids.empty()) {
    std::copy(logits.begin(), logits.end(), changed_.begin());
  } else {
    std::fill(changed_.begin(), changed_.end(), kDropped);
    for (const std::int32_t id : sampling.allowed_token_ids) changed_[id] = logits[id];
  }
  for (const auto& [id, bias] : sampling.logit_bias) {
    set(changed_[id], static_cast<double>(changed_[id]) + static_cast<double>(bias));
  }
  if (has_penalty) penalize(input);
  for (const auto& ids : input.masked) {
    for (const std::int32_t id : ids) changed_[id] = kDropped;
  }
  return changed_;
}

void Sampler::penalize(const SampleInput& input) {
  const Sampling& sampling = input.sampling;
  const auto see = [this](std::int32_t id) {
    if (is_seen_[id] == 0) seen_.push_back(id);
    is_seen_[id] = 1;
  };
  if (sampling.repetition_penalty != 1.0f) {
    for (const std::int32_t id : input.prompt) see(id);
  }
  for (const std::int32_t id : input.output) {
    see(id);
    ++counts_[id];
  }
  const auto repetition = static_cast<double>(sampling.repetition_penalty);
  const auto frequency = static_cast<double>(sampling.frequency_penalty);
  const auto presence = static_cast<double>(sampling.presence_penalty);
  for (const std::int32_t id : seen_) {
    const auto logit = static_cast<double>(changed_[id]);
    double penalized = logit > 0 ? logit / repetition : logit * repetition;
    if (counts_[id] > 0) penalized -= counts_[id] * frequency + presence;
    set(changed_[id], penalized);
    is_seen_[id] = 0;
    counts_[id] = 0;
  }
  seen_.clear();
}

// ------------------------------------------------------------------------------ the draw

double Sampler::kept_total() const {
  double sum = 0;
  for (const std::int32_t id : kept_) sum += weights_[id];
  return sum;
}

void Sampler::keep(std::span<const float> logits, const Sampling& sampling, double temperature) {
  const auto larger = likelier(logits);
  const double largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  kept_.resize(logits.size());
  std::iota(kept_.begin(), kept_.end(), 0);
  if (logits.data() == changed_.data()) {
    std::erase_if(kept_, [logits](std::int32_t id) { return logits[id] == kDropped; });
  }
  for (const std::int32_t id : kept_) {
    weights_[id] = std::exp((static_cast<double>(logits[id]) - largest) / temperature);
  }
  const auto top_k = static_cast<std::size_t>(sampling.top_k);
  if (top_k > 0 && top_k < kept_.size()) {
    std::nth_element(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(top_k - 1),
                     kept_.end(), larger);
    kept_.resize(top_k);
  }
  if (sampling.top_p < 1.0f) {
    std::sort(kept_.begin(), kept_.end(), larger);
    const double wanted = static_cast<double>(sampling.top_p) * kept_total();
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
}

std::int32_t Sampler::draw(std::span<const float> logits, const SampleInput& input) const {
  HF_ASSERT(!kept_.empty(), "every token is dropped");
  if (draws_over_all(input)) {
    return ops::choose_row({.logits = logits.data(),
                            .vocab = std::ssize(logits),
                            .temperature = input.sampling.temperature,
                            .draw = draw_of(input)})
        .id;
  }
  const double target = draw_of(input) * kept_total();
  double reached = 0;
  for (const std::int32_t id : kept_) {
    reached += weights_[id];
    if (reached > target) return id;
  }
  return kept_.back();
}

// ------------------------------------------------------------------------------ log probabilities

void Sampler::fill_raw(Sampled& sampled, std::span<const float> logits,
                       std::optional<std::int32_t> top) {
  const Softmax softmax(logits);
  sampled.logprob =
      static_cast<float>(softmax.log_of(logits[static_cast<std::size_t>(sampled.id)]));
  if (!top) return;
  fill_top(sampled, logits, *top, [&softmax](float logit) { return softmax.log_of(logit); });
}

// After keep, of the same logits.
void Sampler::fill_processed(Sampled& sampled, std::span<const float> logits,
                             const SampleInput& input) {
  const double largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  const double log_total = std::log(kept_total());
  const double temperature = input.sampling.temperature == 0.0f
                                 ? 1.0
                                 : static_cast<double>(input.sampling.temperature);
  const auto log_of = [=](float logit) {
    return (static_cast<double>(logit) - largest) / temperature - log_total;
  };
  sampled.logprob = static_cast<float>(log_of(logits[static_cast<std::size_t>(sampled.id)]));
  if (!input.top_logprobs) return;
  // What keep has dropped counts as dropped from here on. Weights are no longer needed.
  std::fill(weights_.begin(), weights_.end(), static_cast<double>(kDropped));
  for (const std::int32_t id : kept_) weights_[id] = static_cast<double>(logits[id]);
  std::transform(weights_.begin(), weights_.end(), changed_.begin(),
                 [](double weight) { return static_cast<float>(weight); });
  fill_top(sampled, changed_, *input.top_logprobs, log_of);
}

template <typename LogOf>
void Sampler::fill_top(Sampled& sampled, std::span<const float> values, std::int32_t count,
                       const LogOf& log_of) {
  const auto before = likelier(values);
  sampled.rank = 1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sampled.rank += before(static_cast<std::int32_t>(i), sampled.id) ? 1 : 0;
  }
  const std::size_t size =
      count < 0 ? values.size() : std::min(static_cast<std::size_t>(count), values.size());
  if (size == 0) return;
  order_.resize(values.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto middle = order_.begin() + static_cast<std::ptrdiff_t>(size);
  std::partial_sort(order_.begin(), middle, order_.end(), before);
  sampled.top.reserve(size);
  for (auto id = order_.begin(); id != middle; ++id) {
    sampled.top.push_back({.id = *id, .logprob = static_cast<float>(log_of(values[*id]))});
  }
}

}  // namespace holdfast::engine
