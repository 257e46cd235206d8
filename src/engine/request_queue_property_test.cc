// The queue under random requests, commits and failures, over a made-up model whose keys and values
// can be checked: what lies in a KV slot is a word of all tokens up to it and of the weights that
// computed them, and the logits of a position follow from the word in its slot. So a token is right
// only if every page that its sequence reads holds what the sequence itself would have computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/rng.h"
#include "engine/request_queue.h"

namespace holdfast::engine {
namespace {

constexpr std::int64_t kVocab = 8;
constexpr std::int64_t kContext = 96;

std::uint64_t word_after(std::uint64_t before, std::int32_t token, std::uint64_t epoch) {
  return base::mix64(before ^ base::mix64(static_cast<std::uint64_t>(token) * 977 + epoch));
}

std::vector<float> logits_of(std::uint64_t word) {
  std::vector<float> logits;
  for (std::uint64_t i = 0; i < kVocab; ++i) {
    logits.push_back(static_cast<float>(base::mix64(word + i) % 1000) / 100.0f);
  }
  return logits;
}

class RandomQueue {
 public:
  explicit RandomQueue(std::uint64_t seed) : rng_(seed), queue_(draw_settings(), {kVocab, {}}) {
    for (auto& example : examples_) {
      for (int i = 0; i < 70; ++i) example.push_back(static_cast<std::int32_t>(below(kVocab)));
    }
  }

  void run(int events) {
    for (int i = 0; i < events && !testing::Test::HasFatalFailure(); ++i) event();
    queue_.hold_admission(false);
    for (int steps = 0; !queue_.idle() && !testing::Test::HasFatalFailure(); ++steps) {
      ASSERT_LT(steps, 20000) << "requests run on for ever";
      step();
    }
    for (const auto& [id, known] : requests_) EXPECT_TRUE(known.ended) << id;
    EXPECT_EQ(queue_.stats().kv_pages_used, 0);
    preemptions += queue_.stats().preemptions;
    hits += queue_.stats().prefix_hits;
  }

  static inline std::uint64_t preemptions = 0, hits = 0, tokens = 0;

 private:
  struct Known {
    Request request;
    std::vector<std::int32_t> output;
    std::int64_t limit = 0;
    std::vector<std::int64_t> told;  // prompt positions
    bool ended = false;
    bool mixed = false;  // it went on over a commit with the keys and values that it had
  };

  std::uint64_t below(std::uint64_t bound) { return rng_.next_below(bound); }

  Settings draw_settings() {
    Settings settings;
    settings.max_context = kContext;
    settings.max_sequences = 1 + static_cast<std::int64_t>(below(6));
    settings.prefill_chunk = 1 + static_cast<std::int64_t>(below(40));
    settings.max_rows = std::max(settings.max_sequences, settings.prefill_chunk);
    settings.page_count = kContext / kPageSize + static_cast<std::int64_t>(below(8));
    settings.max_waiting = 12;
    settings.prefix_cache = below(4) != 0;
    slots_.resize(static_cast<std::size_t>(settings.page_count * kPageSize));
    return settings;
  }

  void event() {
    const std::uint64_t draw = below(100);
    if (draw < 25) return submit();
    if (draw < 28) return cancel();
    if (draw < 31) return commit();
    if (draw < 33) return roll_back();
    if (draw < 34) return queue_.forget_prefixes();
    if (draw < 36) return queue_.hold_admission(below(2) == 0);
    if (draw < 37) return failing_step();
    step();
  }

  void submit() {
    Known known;
    const auto& example = examples_[below(examples_.size())];
    const auto shared = static_cast<std::ptrdiff_t>(below(example.size()));
    known.request.prompt_ids.assign(example.begin(), example.begin() + shared);
    for (std::uint64_t i = below(6) + (shared == 0 ? 1 : 0); i > 0; --i) {
      known.request.prompt_ids.push_back(static_cast<std::int32_t>(below(kVocab)));
    }
    known.request.max_tokens = static_cast<std::int64_t>(below(60));
    known.request.priority = static_cast<std::int64_t>(below(3));
    known.request.ignore_eos = true;
    if (below(4) == 0) known.request.cache_salt = "salt";
    known.request.prompt_logprobs = below(8) == 0;
    const auto prompt = static_cast<std::int64_t>(known.request.prompt_ids.size());
    known.limit = std::min(known.request.max_tokens, kContext - prompt + 1);
    const bool listens = below(6) == 0;
    const std::uint64_t expected_id = ++last_id_;
    if (listens) {
      known.request.prompt_logits = [this, expected_id](std::int64_t position,
                                                        std::span<const float> logits) {
        Known& told = requests_.at(expected_id);
        EXPECT_EQ(position, static_cast<std::int64_t>(told.told.size()));
        told.told.push_back(position);
        EXPECT_EQ(logits.size(), static_cast<std::size_t>(kVocab));
      };
    }
    requests_.emplace(expected_id, known);
    const auto id = queue_.submit(known.request);
    if (!id.ok()) {
      EXPECT_EQ(id.error().code(), ErrorCode::kResourceExhausted);
      requests_.erase(expected_id);
      --last_id_;
      return;
    }
    ASSERT_EQ(id->value, expected_id);
  }

  void cancel() {
    if (below(10) == 0) {
      queue_.cancel_all(below(2) == 0);
    } else if (last_id_ > 0) {
      const std::uint64_t id = 1 + below(last_id_);
      EXPECT_EQ(queue_.cancel({id}).ok(), !requests_.at(id).ended);
    }
    take_events(true);
  }

  void commit() {
    auto policy = static_cast<InFlight>(below(5));
    if (policy == InFlight::kDrain && queue_.started() > 0) policy = InFlight::kRecompute;
    previous_epoch_ = epoch_;
    epoch_ = ++last_epoch_;
    queue_.enter_epoch(epoch_);
    queue_.apply(policy);
    restarts_possible_ |= policy == InFlight::kRestart;
    for (auto& [id, known] : requests_) {
      // One that has not begun is none, but nothing here can tell.
      if (policy == InFlight::kContinue) known.mixed = true;
    }
    take_events(policy == InFlight::kAbort);
  }

  void roll_back() {
    if (previous_epoch_ == 0) return;
    epoch_ = std::exchange(previous_epoch_, 0);
    queue_.abort_computed_after(epoch_);
    queue_.enter_epoch(epoch_);
    take_events(true);
  }

  Status plan() {
    return queue_.plan(epoch_,
                       [this](std::int32_t row, std::span<const std::int32_t> pages) -> Status {
                         tables_[row].assign(pages.begin(), pages.end());
                         return {};
                       });
  }

  // The device refused: nothing is lost, and the next step does it again.
  void failing_step() { ASSERT_TRUE(plan().ok()); }

  std::size_t slot_at(const StepRow& row, std::int64_t position) const {
    const auto& table = tables_.at(row.sequence);
    return static_cast<std::size_t>(table.at(static_cast<std::size_t>(position / kPageSize)) *
                                        kPageSize +
                                    position % kPageSize);
  }

  void step() {
    ASSERT_TRUE(plan().ok());
    const bool works = !queue_.batch().rows.empty();
    if (!works && queue_.started() > 0) FAIL() << "requests have started and none advances";
    std::vector<std::uint64_t> wanted;
    std::set<std::int32_t> written;
    for (const StepRow& row : queue_.batch().rows) {
      const auto slot = static_cast<std::size_t>(row.kv_slot);
      ASSERT_EQ(slot, slot_at(row, row.position)) << "the table says otherwise";
      ASSERT_TRUE(written.insert(row.kv_slot).second) << "two rows of one step in one slot";
      const std::uint64_t before =
          row.position == 0 ? 0 : slots_[slot_at(row, row.position - 1)];
      slots_[slot] = word_after(before, row.token, epoch_);
      if (row.wants_logits) wanted.push_back(slots_[slot]);
    }
    if (!works) return take_events(false);
    std::vector<float> logits;
    ASSERT_TRUE(queue_
                    .take_results(
                        {.logits = [&](std::int64_t index) -> Result<std::span<const float>> {
                           logits = logits_of(wanted.at(static_cast<std::size_t>(index)));
                           return std::span<const float>(logits);
                         },
                         .experts = {},
                         .choice = {}},
                        epoch_)
                    .ok());
    take_events(false);
  }

  void take_events(bool may_abort) {
    for (const Event& event : queue_.take_events()) {
      Known& known = requests_.at(event.request.value);
      ASSERT_FALSE(known.ended) << "an event after the last";
      if (event.restarted) {
        ASSERT_TRUE(restarts_possible_);
        known.output.clear();
        known.told.clear();
        known.mixed = false;
        continue;
      }
      if (event.token) check_token(known, event);
      if (!event.finish_reason) continue;
      known.ended = true;
      if (*event.finish_reason == FinishReason::kAbort) {
        ASSERT_TRUE(may_abort);
      } else {
        ASSERT_EQ(static_cast<std::int64_t>(known.output.size()), known.limit);
      }
    }
  }

  void check_token(Known& known, const Event& event) {
    ++tokens;
    ASSERT_EQ(event.token->epoch, epoch_);
    const auto prompt = known.request.prompt_ids.size();
    if (known.output.empty() && known.request.prompt_logprobs) {
      ASSERT_EQ(event.prompt_logprobs.size(), prompt - 1);
    } else {
      ASSERT_TRUE(event.prompt_logprobs.empty());
    }
    std::uint64_t word = 0;
    for (const std::int32_t token : known.request.prompt_ids) {
      word = word_after(word, token, epoch_);
    }
    for (const std::int32_t token : known.output) word = word_after(word, token, epoch_);
    const auto logits = logits_of(word);
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    ASSERT_TRUE(known.mixed || event.token->id == best);
    known.output.push_back(event.token->id);
  }

  base::Rng rng_;
  std::vector<std::uint64_t> slots_;
  RequestQueue queue_;
  std::array<std::vector<std::int32_t>, 2> examples_;
  std::map<std::int32_t, std::vector<std::int32_t>> tables_;
  std::map<std::uint64_t, Known> requests_;
  std::uint64_t last_id_ = 0;
  std::uint64_t epoch_ = 1, previous_epoch_ = 0, last_epoch_ = 1;
  bool restarts_possible_ = false;
};

TEST(QueueProperty, WhateverHappensEveryTokenFollowsFromItsRequestAndTheWeightsOfItsEpoch) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    RandomQueue queue(seed);
    queue.run(250);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(RandomQueue::tokens, 100000u);
  EXPECT_GT(RandomQueue::preemptions, 1000u);
  EXPECT_GT(RandomQueue::hits, 10000u);
}

}  // namespace
}  // namespace holdfast::engine
