// kill -9 in each state of a reload: nothing that a process was doing to its weights outlives it,
// the checkpoints are only ever read, and the next start comes up on a complete one.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>

#include "device/forwarding_device.h"
#include "engine/engine_core.h"
#include "faulty_source.h"
#include "models.h"
#include "reference.h"

namespace holdfast::sim {
namespace {

// The process kills itself at the n-th call that changes what lies under an address.
class DeadlyDevice final : public device::ForwardingDevice {
 public:
  explicit DeadlyDevice(std::uint64_t& calls_left) : calls_left_(calls_left) {}

  Status protect(device::Memory memory, device::Protection protection) override {
    strike();
    return ForwardingDevice::protect(memory, protection);
  }
  Status exchange_backing(device::Memory a, device::Memory b) override {
    strike();
    return ForwardingDevice::exchange_backing(a, b);
  }
  Status write(std::byte* to, const std::byte* from, std::size_t bytes) override {
    strike();
    return ForwardingDevice::write(to, from, bytes);
  }

 private:
  void strike() {
    if (calls_left_ != kNever && calls_left_-- == 0) ::kill(::getpid(), SIGKILL);
  }
  static constexpr std::uint64_t kNever = ~0ull;

  std::uint64_t& calls_left_;
};

enum class State : std::uint8_t { kStaging, kPrepared, kApplying, kCommitted };

std::string state_name(State state) {
  constexpr const char* kNames[] = {"staging", "prepared", "applying", "committed"};
  return kNames[static_cast<std::size_t>(state)];
}

struct Death {
  State state = State::kStaging;
  std::string strategy;
  std::uint64_t at = 0;  // the read in staging, the call in applying
};

EngineOptions options_for(const std::string& directory) {
  EngineOptions options;
  options.model_directory = directory;
  options.threads = 1;
  options.max_context = 16;
  return options;
}

// Only in the child process. Returns when the death did not come.
void live_and_die(const std::string& from, const std::string& to, const Death& death) {
  std::uint64_t calls_left = ~0ull;
  bool unused = false;
  SourceHooks hooks;
  hooks.abort = [] {};
  hooks.on_read = [&](std::uint64_t read) {
    if (death.state == State::kStaging && read == death.at) ::kill(::getpid(), SIGKILL);
  };
  engine::EngineParts parts;
  parts.device = std::make_unique<DeadlyDevice>(calls_left);
  parts.reloader.on_calling_thread = true;
  parts.reloader.open_source =
      [&](const std::string& directory) -> Result<std::unique_ptr<reload::Source>> {
    HF_ASSIGN(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
              checkpoint::Checkpoint::open(directory));
    return std::unique_ptr<reload::Source>(
        std::make_unique<FaultySource>(reload::make_checkpoint_source(std::move(checkpoint)),
                                       directory, std::nullopt, hooks, unused));
  };
  auto opened = engine::EngineCore::open(options_for(from), std::move(parts));
  if (!opened.ok()) return;
  engine::EngineCore& core = **opened;
  Request request;
  request.prompt_ids = {1, 2, 3};
  if (!core.submit(request).ok() || !core.step().ok()) return;
  ReloadOptions options;
  options.commit = death.strategy;
  options.commit_when_ready = false;
  if (!core.begin_reload(to, options).ok()) return;
  if (core.reload_phase() != ReloadPhase::kReady) return;
  if (death.state == State::kPrepared) ::kill(::getpid(), SIGKILL);
  if (death.state == State::kApplying) calls_left = death.at;
  if (!core.commit_reload().ok()) return;
  // A commit of fewer calls than that dies here, committed and verified.
  if (!core.step().ok()) return;
  ::kill(::getpid(), SIGKILL);
}

void expect_killed(const std::string& from, const std::string& to, const Death& death) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    live_and_die(from, to, death);
    ::_exit(3);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
      << "the child ended by itself: status " << status;
}

void expect_starts(const std::string& directory, const std::vector<base::Digest>& digests) {
  const auto core = engine::EngineCore::open(options_for(directory));
  ASSERT_TRUE(core.ok()) << core.error().to_string();
  EXPECT_EQ(digest_arenas((*core)->runtime().registry()), digests);
  EXPECT_EQ((*core)->epoch(), 1u);
  EXPECT_FALSE((*core)->poisoned());
  Request request;
  request.prompt_ids = {1};
  request.max_tokens = 2;
  request.ignore_eos = true;
  ASSERT_TRUE((*core)->submit(request).ok());
  std::size_t tokens = 0;
  while (!(*core)->idle()) {
    const auto events = (*core)->step();
    ASSERT_TRUE(events.ok()) << events.error().to_string();
    for (const Event& event : *events) tokens += event.token.has_value() ? 1 : 0;
  }
  EXPECT_EQ(tokens, 2u);
}

class Kill : public testing::TestWithParam<State> {};
INSTANTIATE_TEST_SUITE_P(States, Kill,
                         testing::Values(State::kStaging, State::kPrepared, State::kApplying,
                                         State::kCommitted),
                         [](const auto& parameter) { return state_name(parameter.param); });

TEST_P(Kill, LeavesTheCheckpointsAsTheyWereAndTheNextStartComplete) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    base::Rng rng(seed * 4 + static_cast<std::uint64_t>(GetParam()));
    const TempDirectory temp;
    const ModelShape shape = draw_shape(rng);
    const std::string a = temp / "a", b = temp / "b";
    ASSERT_TRUE(write_checkpoint(shape, {.seed = rng.next()}, a).ok());
    ASSERT_TRUE(write_checkpoint(shape, {.seed = rng.next(), .shards = 2}, b).ok());
    const std::string files = digest_of_directory(temp.path());
    Reference cold(options_for(a), [&](std::size_t version) { return version == 0 ? a : b; });
    const auto digests_a = cold.digests(0).value(), digests_b = cold.digests(1).value();
    ASSERT_NE(digests_a, digests_b);

    const Death death{.state = GetParam(),
                      .strategy = rng.next_below(2) == 0 ? "copy" : "remap",
                      .at = rng.next_below(GetParam() == State::kStaging ? 12 : 4)};
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << death.strategy << ", call "
                                    << death.at);
    expect_killed(a, b, death);
    EXPECT_EQ(digest_of_directory(temp.path()), files) << "a checkpoint was written to";
    expect_starts(a, digests_a);
    expect_starts(b, digests_b);
  }
}

}  // namespace
}  // namespace holdfast::sim
