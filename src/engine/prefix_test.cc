// Cached prefixes and preemption through the whole engine: they may save work and never change a
// bit, and nothing that other weights made is ever found.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "engine/test_support.h"

namespace holdfast::engine {
namespace {

// Requests whose prompts begin alike, of all lengths, greedy and drawn.
std::vector<Request> draw_requests(base::Rng& rng, std::size_t count) {
  std::vector<std::vector<std::int32_t>> examples(3);
  for (auto& example : examples) {
    for (int i = 0; i < 120; ++i) example.push_back(static_cast<std::int32_t>(rng.next_below(900)));
  }
  std::vector<Request> requests;
  for (std::size_t i = 0; i < count; ++i) {
    Request request;
    const auto& example = examples[rng.next_below(examples.size())];
    const auto shared = static_cast<std::ptrdiff_t>(1 + rng.next_below(example.size()));
    request.prompt_ids.assign(example.begin(), example.begin() + shared);
    for (std::uint64_t extra = rng.next_below(20); extra > 0; --extra) {
      request.prompt_ids.push_back(static_cast<std::int32_t>(rng.next_below(900)));
    }
    request.max_tokens = 1 + static_cast<std::int64_t>(rng.next_below(40));
    request.ignore_eos = true;
    request.priority = static_cast<std::int64_t>(rng.next_below(2));
    if (rng.next_below(3) == 0) request.cache_salt = "salt";
    if (rng.next_below(2) == 0) request.sampling = {.temperature = 0.8f, .seed = rng.next()};
    request.prompt_logprobs = rng.next_below(6) == 0;
    requests.push_back(std::move(request));
  }
  return requests;
}

struct Layout {
  std::int64_t max_sequences = 8, prefill_chunk = 64, kv_tokens = 0;
  bool prefix_cache = true;
};

std::unique_ptr<EngineCore> open_with(const Layout& layout) {
  EngineOptions options = test_options(model_a());
  options.max_context = 192;
  options.max_sequences = layout.max_sequences;
  options.prefill_chunk = layout.prefill_chunk;
  options.kv_tokens = layout.kv_tokens;
  options.prefix_cache = layout.prefix_cache;
  return open_core(options);
}

TEST(Prefixes, CachesChunksPagesBatchesAndPreemptionNeverShowInTheBits) {
  base::Rng rng(17);
  const std::vector<Request> requests = draw_requests(rng, 24);
  const auto alone = run_one_by_one(*open_with({.prefix_cache = false}), requests);
  std::uint64_t hits = 0, preemptions = 0;
  for (const Layout& layout :
       {Layout{}, Layout{.prefill_chunk = 7}, Layout{.max_sequences = 1, .prefill_chunk = 192},
        Layout{.max_sequences = 6, .prefill_chunk = 33, .kv_tokens = 192},
        Layout{.max_sequences = 8, .prefill_chunk = 16, .kv_tokens = 300, .prefix_cache = false},
        Layout{.max_sequences = 24, .prefill_chunk = 64, .kv_tokens = 450}}) {
    const auto core = open_with(layout);
    // Twice: the second time much of it is cached.
    for (int round = 0; round < 2; ++round) {
      std::vector<Request> shuffled;
      std::vector<std::size_t> order(requests.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
      for (std::size_t i = order.size(); i > 1; --i) {
        std::swap(order[i - 1], order[rng.next_below(i)]);
      }
      for (const std::size_t i : order) shuffled.push_back(requests[i]);
      const auto together = run_together(*core, shuffled);
      for (std::size_t i = 0; i < order.size(); ++i) {
        EXPECT_TRUE(together[i].same_tokens(alone[order[i]]))
            << "request " << order[i] << ", chunk " << layout.prefill_chunk << ", kv "
            << layout.kv_tokens;
        EXPECT_EQ(together[i].prompt_logprobs, alone[order[i]].prompt_logprobs);
      }
    }
    const EngineStats stats = core->stats();
    EXPECT_EQ(stats.kv_pages_used, 0);
    EXPECT_EQ(stats.prefix_hits > 0, layout.prefix_cache);
    hits += stats.prefix_hits;
    preemptions += stats.preemptions;
  }
  EXPECT_GT(hits, 1000u);
  EXPECT_GT(preemptions, 10u);
}

TEST(Prefixes, AnEqualPrefixIsComputedOnceAndOnlyUnderItsSalt) {
  const auto core = open_with({});
  base::Rng rng(3);
  Request request = draw_requests(rng, 1).front();
  request.prompt_ids.resize(100, 5);
  request.max_tokens = 4;
  request.prompt_logprobs = false;
  request.cache_salt = "";
  const auto first = run_together(*core, {request}).front();
  EXPECT_EQ(core->stats().prefix_hits, 0u);
  EXPECT_TRUE(run_together(*core, {request}).front().same_tokens(first));
  EXPECT_EQ(core->stats().prefix_hits, 96u);
  EXPECT_EQ(core->stats().prompt_tokens, 104u);
  request.cache_salt = "somebody else's";
  EXPECT_TRUE(run_together(*core, {request}).front().same_tokens(first));
  EXPECT_EQ(core->stats().prefix_hits, 96u);
  core->reset_prefix_cache();
  request.cache_salt = "";
  EXPECT_TRUE(run_together(*core, {request}).front().same_tokens(first));
  EXPECT_EQ(core->stats().prefix_hits, 96u);
  EXPECT_EQ(core->stats().prefix_queries, 400u);
}

// I7: after a commit no page of the old weights is found, not even when they come back.
TEST(Prefixes, NothingThatOtherWeightsMadeIsFoundAfterACommit) {
  const auto core = open_with({});
  base::Rng rng(5);
  std::vector<Request> requests = draw_requests(rng, 6);
  for (Request& request : requests) request.prompt_logprobs = false;
  const auto of_a = run_one_by_one(*core, requests);
  const auto cold_b = [&] {
    EngineOptions options = test_options(model_b());
    options.max_context = 192;
    options.prefix_cache = false;
    return run_one_by_one(*open_core(options), requests);
  }();
  for (const std::string& directory : {model_b(), model_a(), model_b()}) {
    ASSERT_TRUE(core->begin_reload(directory, {}).ok());
    ASSERT_TRUE(core->finish_reload().ok());
    EXPECT_EQ(core->stats().kv_pages_cached, 0);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const std::uint64_t hits_before = core->stats().prefix_hits;
      const Transcript now = run_together(*core, {requests[i]}).front();
      EXPECT_TRUE(now.same_tokens(directory == model_b() ? cold_b[i] : of_a[i])) << i;
      if (i == 0) {
        EXPECT_EQ(core->stats().prefix_hits, hits_before);
      }
    }
  }
}

TEST(Prefixes, TheFirstEventSaysHowMuchOfThePromptWasThere) {
  const auto core = open_with({});
  Request request;
  request.prompt_ids.assign(40, 9);
  request.max_tokens = 2;
  request.ignore_eos = true;
  std::vector<std::int64_t> cached;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(core->submit(request).ok());
    while (!core->idle()) {
      const auto events = core->step();
      for (const Event& event : *events) {
        cached.push_back(event.prompt ? event.prompt->cached_tokens : 0);
      }
    }
  }
  EXPECT_EQ(cached, (std::vector<std::int64_t>{0, 0, 32, 0}));
}

TEST(Prefixes, StatisticsSayWhatIsThereAndWhatWasDone) {
  const auto core = open_with({.max_sequences = 2});
  EXPECT_EQ(core->stats().kv_pages, 2 * 192 / kPageSize);
  Request request;
  request.prompt_ids.assign(40, 7);
  request.max_tokens = 3;
  request.ignore_eos = true;
  for (const char* salt : {"a", "b", "c"}) {
    request.cache_salt = salt;
    ASSERT_TRUE(core->submit(request).ok());
  }
  EXPECT_EQ(core->stats().waiting, 3);
  ASSERT_TRUE(core->step().ok());
  EngineStats stats = core->stats();
  EXPECT_EQ(stats.running, 2);
  EXPECT_EQ(stats.waiting, 1);
  EXPECT_EQ(stats.kv_pages_used, 3 + 2) << "40 of one prompt, 24 of the next";
  EXPECT_EQ(stats.last_step_rows, 64u);
  while (!core->idle()) ASSERT_TRUE(core->step().ok());
  stats = core->stats();
  EXPECT_EQ(stats.kv_pages_used, 0);
  EXPECT_EQ(stats.kv_pages_cached, 3 * 2);
  EXPECT_EQ(stats.prompt_tokens, 120u);
  EXPECT_EQ(stats.generated_tokens, 9u);
  ASSERT_TRUE(core->begin_reload(model_b(), {}).ok());
  ASSERT_TRUE(core->finish_reload().ok());
  EXPECT_EQ(core->stats().commits, 1u);
  EXPECT_EQ(core->stats().roll_backs, 0u);
}

}  // namespace
}  // namespace holdfast::engine
