// Faults that show while serving: graphs captured again, prompts answered from old keys, requests
// ended by a commit, old files read again, memory that grows, weights folded into a graph.
#include <dirent.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "base/digest.h"
#include "engine/test_support.h"

namespace holdfast::field {
namespace {

using engine::EngineCore;
using engine::model_a;
using engine::model_b;
using engine::open_core;
using engine::run_together;
using engine::Transcript;

constexpr std::size_t kPrompts = 8;  // as many as decode together
constexpr std::int64_t kTokens = 24;

std::unique_ptr<EngineCore> serving(const std::string& directory) {
  return open_core(engine::test_options(directory));
}

// Greedy, of a length of its own, never ended by an end token.
Request request_of(std::size_t index) {
  Request request;
  for (std::size_t i = 0; i < 5 + 3 * index; ++i) {
    request.prompt_ids.push_back(static_cast<std::int32_t>((i * 131 + index * 37 + 11) % 1000));
  }
  request.max_tokens = kTokens;
  request.ignore_eos = true;
  request.prompt_logprobs = true;
  return request;
}

std::vector<Request> all_requests() {
  std::vector<Request> requests;
  for (std::size_t i = 0; i < kPrompts; ++i) requests.push_back(request_of(i));
  return requests;
}

ReloadOptions by(const std::string& strategy, bool commit_when_ready = true) {
  ReloadOptions options;
  options.commit = strategy;
  options.commit_when_ready = commit_when_ready;
  return options;
}

Result<ReloadReport> reload(EngineCore& core, const std::string& directory,
                            const std::string& strategy) {
  HF_TRY(core.begin_reload(directory, by(strategy)));
  return core.finish_reload();
}

// Begins a reload of B and steps on until it is ready; nothing is committed.
void stage_b(EngineCore& core, const std::string& strategy,
             const std::function<void()>& step_once) {
  ASSERT_TRUE(core.begin_reload(model_b(), by(strategy, false)).ok());
  for (int steps = 0; core.reload_phase() == ReloadPhase::kStaging;) {
    if (steps++ < 6) {
      step_once();
    } else {
      std::this_thread::yield();
    }
  }
  ASSERT_EQ(core.reload_phase(), ReloadPhase::kReady);
}

bool same_answer(const Transcript& a, const Transcript& b) {
  return a.same_tokens(b) && a.prompt_logprobs == b.prompt_logprobs;
}

class FieldServing : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Strategies, FieldServing, testing::Values("remap", "copy"),
                         [](const auto& parameter) { return parameter.param; });

TEST_P(FieldServing, AReloadCapturesNothingAgain) {
  const auto core = serving(model_a());
  const auto captured = [&core] {
    std::vector<std::pair<const device::Graph*, std::vector<std::uintptr_t>>> graphs;
    for (const device::Graph* graph : core->runtime().graphs().graphs()) {
      graphs.push_back({graph, {}});
      for (const auto& entry : graph->manifest().entries) {
        graphs.back().second.push_back(entry.range.begin);
      }
    }
    return graphs;
  };
  const auto before = captured();
  ASSERT_TRUE(reload(*core, model_b(), GetParam()).ok());
  EXPECT_EQ(captured(), before);
  ASSERT_FALSE(reload(*core, engine::model_a_bf16(), GetParam()).ok());
  EXPECT_EQ(captured(), before);
  ASSERT_TRUE(reload(*core, model_a(), GetParam()).ok());
  EXPECT_EQ(captured(), before);
  EXPECT_TRUE(core->census()->rehomed.empty());
}

// The prompt is in the engine's memory when the weights change: finished, and in flight.
TEST_P(FieldServing, APromptThatTheOldWeightsSawIsComputedAnewUnderTheNewOnes) {
  const auto cold = run_together(*serving(model_b()), all_requests());
  const auto core = serving(model_a());
  const auto old = run_together(*core, all_requests());
  const RequestId in_flight = core->submit(request_of(0)).value();
  std::map<std::uint64_t, Transcript> seen;
  const auto step_once = [&] {
    const auto events = core->step();
    ASSERT_TRUE(events.ok()) << events.error().to_string();
    for (const Event& event : *events) seen[event.request.value].add(event);
  };
  stage_b(*core, GetParam(), step_once);
  while (seen[in_flight.value].ids.size() < 8) step_once();
  ASSERT_TRUE(core->commit_reload().ok());
  std::vector<RequestId> again;
  for (const Request& request : all_requests()) again.push_back(core->submit(request).value());
  while (!core->idle()) step_once();
  ASSERT_TRUE(core->finish_reload().ok());
  for (std::size_t i = 0; i < kPrompts; ++i) {
    EXPECT_TRUE(same_answer(seen[again[i].value], cold[i])) << "prompt " << i;
    EXPECT_NE(old[i].prompt_logprobs, cold[i].prompt_logprobs) << "prompt " << i;
  }
  // Who was in flight went on, and kept the keys that it had.
  const Transcript& kept = seen[in_flight.value];
  EXPECT_EQ(kept.ids.size(), static_cast<std::size_t>(kTokens));
  EXPECT_EQ(kept.prompt_logprobs, old[0].prompt_logprobs);
  EXPECT_EQ(kept.epochs.front(), 1u);
  EXPECT_EQ(kept.epochs.back(), 2u);
}

TEST_P(FieldServing, ACommitEndsNoRequestInFlightAndLabelsEachToken) {
  const auto core = serving(model_a());
  const auto undisturbed = run_together(*core, all_requests());
  std::map<std::uint64_t, Transcript> seen;
  std::vector<RequestId> ids;
  for (const Request& request : all_requests()) ids.push_back(core->submit(request).value());
  const auto step_once = [&] {
    const auto events = core->step();
    ASSERT_TRUE(events.ok()) << events.error().to_string();
    for (const Event& event : *events) seen[event.request.value].add(event);
  };
  stage_b(*core, GetParam(), step_once);
  const auto all_have_begun = [&] {
    return std::all_of(ids.begin(), ids.end(),
                       [&](RequestId id) { return seen[id.value].ids.size() >= 3; });
  };
  while (!all_have_begun()) step_once();
  std::vector<std::size_t> before;
  for (const RequestId id : ids) before.push_back(seen[id.value].ids.size());
  ASSERT_TRUE(core->commit_reload().ok());
  while (!core->idle()) step_once();
  ASSERT_TRUE(core->finish_reload().ok());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Transcript& transcript = seen[ids[i].value];
    EXPECT_EQ(transcript.reason, FinishReason::kLength) << i;
    ASSERT_EQ(transcript.ids.size(), static_cast<std::size_t>(kTokens)) << i;
    for (std::size_t at = 0; at < transcript.ids.size(); ++at) {
      EXPECT_EQ(transcript.epochs[at], at < before[i] ? 1u : 2u) << i << " token " << at;
      if (at < before[i]) {
        EXPECT_EQ(transcript.ids[at], undisturbed[i].ids[at]) << i << " token " << at;
      }
    }
  }
}

// ------------------------------------------------------------------------------ files and memory

class FieldFiles : public testing::Test {
 protected:
  FieldFiles()
      : directory_(std::filesystem::path(testing::TempDir()) /
                   ("holdfast-field-" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(directory_);
    std::filesystem::copy(model_a(), directory_);
  }
  ~FieldFiles() override { std::filesystem::remove_all(directory_); }

  // The bytes of `from`'s files in the files that are there: same names, same inodes.
  void overwrite_with(const std::string& from) const {
    for (const auto& entry : std::filesystem::directory_iterator(from)) {
      std::ifstream in(entry.path(), std::ios::binary);
      std::ofstream out(directory_ / entry.path().filename(), std::ios::binary);
      ASSERT_TRUE(in && out) << entry.path();
      out << in.rdbuf();
      ASSERT_TRUE(out.good()) << entry.path();
    }
  }

  std::filesystem::path directory_;
};

TEST_F(FieldFiles, ReplacedUnderTheirNamesAreReadAnew) {
  const auto cold = serving(model_b());
  const auto cold_census = cold->census().value();
  const auto cold_answers = run_together(*cold, all_requests());
  const auto core = serving(directory_.string());
  const auto old_answers = run_together(*core, all_requests());
  overwrite_with(model_b());
  EXPECT_TRUE(run_together(*core, all_requests())[0].same_tokens(old_answers[0]))
      << "what is loaded does not hang on the files";
  ASSERT_TRUE(reload(*core, directory_.string(), "remap").ok());
  const auto census = core->census().value();
  ASSERT_EQ(census.slots.size(), cold_census.slots.size());
  for (std::size_t i = 0; i < census.slots.size(); ++i) {
    EXPECT_EQ(census.slots[i].digest, cold_census.slots[i].digest) << census.slots[i].name;
  }
  const auto answers = run_together(*core, all_requests());
  for (std::size_t i = 0; i < kPrompts; ++i) {
    EXPECT_TRUE(same_answer(answers[i], cold_answers[i])) << "prompt " << i;
  }
}

std::size_t count_entries(const char* directory) {
  DIR* const open = ::opendir(directory);
  if (open == nullptr) return 0;
  std::size_t count = 0;
  while (::readdir(open) != nullptr) ++count;
  ::closedir(open);
  return count;
}

// A sanitizer keeps what was freed, and finds leaks in its own way.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kResidentBytesCount = false;
#else
constexpr bool kResidentBytesCount = true;
#endif

std::uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t all_pages = 0, resident_pages = 0;
  statm >> all_pages >> resident_pages;
  return resident_pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

TEST(FieldMemory, ManyReloadsLeaveMemoryDescriptorsAndThreadsAsTheyWere) {
  constexpr int kWarmUp = 16, kReloads = 64;
  const std::size_t descriptors = count_entries("/proc/self/fd");
  const std::size_t threads = count_entries("/proc/self/task");
  {
    const auto core = serving(model_a());
    std::uint64_t warm = 0, weights = 0;
    std::size_t live = 0;
    for (int i = 0; i < kWarmUp + kReloads; ++i) {
      const auto report =
          reload(*core, i % 2 == 0 ? model_b() : model_a(), i % 4 < 2 ? "remap" : "copy");
      ASSERT_TRUE(report.ok()) << report.error().to_string();
      weights = report->versioned_bytes;
      if (i == kWarmUp) {
        warm = resident_bytes();
        live = core->runtime().device().usage().live_bytes;
      }
    }
    EXPECT_EQ(core->runtime().device().usage().live_bytes, live);
    ASSERT_GT(weights, 0u);
    // A leak of a thirtieth of the weights at each reload would be twice this.
    if (kResidentBytesCount) {
      EXPECT_LT(resident_bytes(), warm + weights);
    }
  }
  EXPECT_EQ(count_entries("/proc/self/fd"), descriptors);
  // A thread that was joined stays listed until the kernel has done with it.
  for (int i = 0; i < 100'000 && count_entries("/proc/self/task") > threads; ++i) {
    std::this_thread::yield();
  }
  EXPECT_EQ(count_entries("/proc/self/task"), threads);
}

// ------------------------------------------------------------------------------ what graphs read

// Digests of the logits of every position of a prompt.
std::vector<base::Digest> scored(EngineCore& core) {
  std::vector<base::Digest> digests;
  Request request = request_of(3);
  request.max_tokens = 0;
  request.prompt_logprobs = false;
  request.prompt_logits = [&digests](std::int64_t, std::span<const float> logits) {
    digests.push_back(base::digest_of(std::as_bytes(logits)));
  };
  run_together(core, {request});
  return digests;
}

// Other bytes of the same kind, finite where floats are: a quarter for float32, and elsewhere one
// bit of each byte.
void disturb(storage::Registry& registry, const storage::Slot& slot) {
  const tensor::TensorView view = registry.view(slot.id);
  if (view.dtype == tensor::DType::kF32) {
    std::fill_n(view.as<float>(), view.shape.element_count(), 0.25f);
  } else {
    for (std::byte& byte : view.span()) byte ^= std::byte{1};
  }
}

// The flip: a graph that folded a weight, or reads a copy of it, does not see that it changes.
TEST(FieldCoupling, TheGraphsReadEveryVersionedSlotWhereTheCensusSaysItIs) {
  const auto core = serving(model_a());
  ASSERT_TRUE(reload(*core, model_b(), "remap").ok());
  storage::Registry& registry = core->runtime().registry();
  const auto before = scored(*core);
  ASSERT_FALSE(before.empty());
  for (const storage::Slot& slot : registry.slots()) {
    if (!storage::is_versioned(slot.spec.slot_class)) continue;
    device::Arena& arena = registry.arena_of(slot.id);
    const auto bytes = registry.view(slot.id).span();
    const std::vector<std::byte> kept(bytes.begin(), bytes.end());
    ASSERT_TRUE(arena.protect(device::Protection::kReadWrite).ok());
    disturb(registry, slot);
    EXPECT_FALSE(scored(*core) == before) << slot.spec.name;
    std::memcpy(bytes.data(), kept.data(), kept.size());
    ASSERT_TRUE(arena.protect(device::Protection::kReadOnly).ok());
  }
  EXPECT_TRUE(scored(*core) == before);
}

}  // namespace
}  // namespace holdfast::field
