// Reloads whose bytes the caller pushes: any order, any chunks, any thread; what is refused and
// goes on, what ends the reload, and that the weights are untouched then.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "base/digest.h"
#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "engine/push_manifest.h"
#include "engine/test_support.h"
#include "engine/test_weights.h"

namespace holdfast::engine {
namespace {

using Bytes = std::span<const std::byte>;

const checkpoint::Checkpoint& checkpoint_b() {
  static const auto checkpoint = checkpoint::Checkpoint::open(model_b()).value();
  return *checkpoint;
}
Bytes bytes_of(const checkpoint::LocatedTensor& located) {
  return located.file->data(*located.entry);
}
Bytes bytes_of_b(const std::string& name) { return bytes_of(*checkpoint_b().find(name)); }

struct Piece {
  std::string tensor;
  std::uint64_t offset = 0;
  Bytes bytes;
};

// All of B in pieces of whole elements, of at most `most` bytes, in an order drawn from `seed`.
std::vector<Piece> pieces_of_b(std::size_t most, std::uint64_t seed) {
  std::vector<Piece> pieces;
  base::Rng rng(seed);
  for (const checkpoint::LocatedTensor& located : checkpoint_b().tensors()) {
    const Bytes bytes = bytes_of(located);
    const auto element =
        static_cast<std::size_t>(std::max(tensor::dtype_bits(located.entry->dtype) / 8, 1));
    for (std::size_t at = 0; at < bytes.size(); at += pieces.back().bytes.size()) {
      const std::size_t drawn = (1 + rng.next_below(most / element)) * element;
      pieces.push_back({.tensor = located.entry->name,
                        .offset = at,
                        .bytes = bytes.subspan(at, std::min(drawn, bytes.size() - at))});
    }
  }
  for (std::size_t i = pieces.size(); i > 1; --i) {
    std::swap(pieces[i - 1], pieces[rng.next_below(i)]);
  }
  return pieces;
}

Status push_all(EngineCore& core, std::uint64_t id, std::span<const Piece> pieces) {
  for (const Piece& piece : pieces) {
    HF_TRY(core.push(id, piece.tensor, piece.offset, piece.bytes));
  }
  return {};
}
// In whole tensors.
Status push_b(EngineCore& core, std::uint64_t id, const std::string& except = "") {
  for (const checkpoint::LocatedTensor& located : checkpoint_b().tensors()) {
    if (located.entry->name == except) continue;
    HF_TRY(core.push(id, located.entry->name, 0, bytes_of(located)));
  }
  return {};
}

const std::vector<std::byte>& cold_b() {
  static const auto all = weights(*open_core(test_options(model_b())));
  return all;
}

void expect_error(const Status& status, ErrorCode code, const std::string& text) {
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), code) << status.error().to_string();
  EXPECT_NE(status.error().message().find(text), std::string::npos) << status.error().to_string();
}
template <typename Value>
void expect_error(const Result<Value>& result, ErrorCode code, const std::string& text) {
  ASSERT_FALSE(result.ok());
  expect_error(Status(result.error()), code, text);
}

std::vector<TensorInfo> announced(const EngineCore& core) {
  return loadable_tensors(core.runtime().registry());
}

// An engine on A, and what must be as before whenever a push has failed.
struct Pushed : testing::Test {
  void open(const base::Clock* clock = nullptr, bool on_one_thread = false) {
    EngineParts parts;
    parts.clock = clock;
    parts.reloader.on_calling_thread = on_one_thread;
    core = EngineCore::open(test_options(model_a()), std::move(parts)).value();
    before = weights(*core);
    live_bytes = core->runtime().device().usage().live_bytes;
  }
  std::uint64_t begin(const ReloadOptions& options = {}) {
    return core->begin_push({}, options).value();
  }
  void expect_untouched(ErrorCode why) {
    EXPECT_EQ(core->reload_phase(), ReloadPhase::kFailed);
    expect_error(core->finish_reload(), why, "");
    EXPECT_EQ(core->last_reload()->state, "rolled_back");
    EXPECT_EQ(weights(*core), before);
    EXPECT_EQ(core->epoch(), 1u);
    EXPECT_EQ(core->runtime().device().usage().live_bytes, live_bytes);
  }
  // And the next one succeeds.
  void expect_next_succeeds() {
    const std::uint64_t id = begin();
    ASSERT_TRUE(push_b(*core, id).ok());
    ASSERT_TRUE(core->end_push(id).ok());
    ASSERT_TRUE(core->finish_reload().ok());
    EXPECT_EQ(weights(*core), cold_b());
  }
  std::unique_ptr<EngineCore> core;
  std::vector<std::byte> before;
  std::size_t live_bytes = 0;
};

// Time that moves when told to; a thread that is watched stops in its next look at it.
class GateClock final : public base::Clock {
 public:
  std::int64_t now_ns() const override {
    std::unique_lock lock(mutex_);
    if (std::this_thread::get_id() == watched_) {
      inside_ = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return open_; });
    }
    return now_ns_;
  }
  void advance_ms(std::int64_t ms) {
    const std::lock_guard lock(mutex_);
    now_ns_ += ms * 1'000'000;
  }
  void watch_this_thread() {
    const std::lock_guard lock(mutex_);
    watched_ = std::this_thread::get_id();
  }
  void wait_inside() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return inside_; });
  }
  void open_gate() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::thread::id watched_;
  mutable bool inside_ = false;
  bool open_ = false;
  std::int64_t now_ns_ = 1;
};

// ------------------------------------------------------------------------------ it arrives

class PushedWith : public Pushed, public testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Strategies, PushedWith, testing::Values("remap", "copy"),
                         [](const auto& parameter) { return parameter.param; });

TEST_P(PushedWith, AnyOrderAndChunkingEqualsAColdLoadInEveryByte) {
  open();
  for (const std::size_t most : {64u, 1000u, 1u << 14}) {
    const std::uint64_t id = begin({.commit = GetParam(), .version = "step-7"});
    ASSERT_TRUE(push_all(*core, id, pieces_of_b(most, most)).ok());
    ASSERT_TRUE(core->end_push(id).ok());
    EXPECT_EQ(core->reload_phase(), ReloadPhase::kReady);
    const auto report = core->finish_reload();
    ASSERT_TRUE(report.ok()) << report.error().to_string();
    EXPECT_EQ(report->id, id);
    EXPECT_EQ(report->state, "committed");
    EXPECT_EQ(report->strategy, GetParam());
    EXPECT_EQ(report->version, "step-7");
    EXPECT_EQ(report->slots_moved, 0u);
    EXPECT_LE(report->measured_peak_bytes, report->declared_peak_bytes);
    EXPECT_LE(report->measured_host_peak_bytes, report->declared_host_peak_bytes);
    EXPECT_EQ(weights(*core), cold_b());
    EXPECT_TRUE(core->verify()->defects.empty());
    ASSERT_TRUE(core->begin_reload(model_a(), {}).ok());
    ASSERT_TRUE(core->finish_reload().ok());
    EXPECT_EQ(weights(*core), before);
  }
}

TEST_P(PushedWith, SeveralThreadsTakeTurnsAndTheBitsAreTheSame) {
  open();
  const auto pieces = pieces_of_b(4096, 5);
  const std::uint64_t id = begin({.commit = GetParam()});
  constexpr std::size_t kThreads = 4;
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = t; i < pieces.size(); i += kThreads) {
        const Piece& piece = pieces[i];
        if (!core->push(id, piece.tensor, piece.offset, piece.bytes).ok()) ++failures;
      }
    });
  }
  while (core->reload_status().awaited_count > 0 && failures == 0) std::this_thread::yield();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  ASSERT_TRUE(core->end_push(id).ok());
  ASSERT_TRUE(core->finish_reload().ok());
  EXPECT_EQ(weights(*core), cold_b());
}

TEST_P(PushedWith, RequestsRunWhileBytesComeAndTheirTokensAreTheOldWeightsUntilTheCommit) {
  open();
  const auto prompts = read_reference_prompts("gptoss-tiny-A");
  const Transcript undisturbed = run_together(*core, {greedy_request(prompts[2])}).front();
  ASSERT_TRUE(core->submit(greedy_request(prompts[2])).ok());
  Transcript live;
  const std::uint64_t id = begin({.commit = GetParam(), .commit_when_ready = false});
  std::thread pusher([&] {
    EXPECT_TRUE(push_all(*core, id, pieces_of_b(1 << 14, 3)).ok());
    EXPECT_TRUE(core->end_push(id).ok());
  });
  const auto step = [&] {
    const auto events = core->step();
    ASSERT_TRUE(events.ok()) << events.error().to_string();
    for (const Event& event : *events) live.add(event);
  };
  while (live.ids.size() < 20) step();
  pusher.join();
  ASSERT_EQ(core->reload_phase(), ReloadPhase::kReady);
  const std::size_t old = live.ids.size();
  ASSERT_TRUE(core->commit_reload().ok());
  while (!live.ended) step();
  ASSERT_EQ(live.ids.size(), undisturbed.ids.size());
  for (std::size_t i = 0; i < live.ids.size(); ++i) {
    EXPECT_EQ(live.epochs[i], i < old ? 1u : 2u) << "token " << i;
    if (i < old) {
      EXPECT_EQ(live.ids[i], undisturbed.ids[i]) << "token " << i;
    }
  }
  EXPECT_NE(live.ids, undisturbed.ids) << "the new weights show";
  ASSERT_TRUE(core->finish_reload().ok());
}

TEST_F(Pushed, WhatIsLoadableIsWhatTheCheckpointHas) {
  open();
  std::map<std::string, std::pair<std::string, std::vector<std::int64_t>>> found, wanted;
  for (const TensorInfo& tensor : announced(*core)) {
    found[tensor.name] = {tensor.dtype, tensor.shape};
  }
  for (const checkpoint::LocatedTensor& located : checkpoint_b().tensors()) {
    const auto dims = located.entry->shape.dims();
    wanted[located.entry->name] = {
        std::string(tensor::safetensors_dtype_name(located.entry->dtype)),
        {dims.begin(), dims.end()}};
  }
  EXPECT_EQ(found, wanted);
  const std::uint64_t id = core->begin_push(announced(*core), {}).value();
  ASSERT_TRUE(push_b(*core, id).ok());
  ASSERT_TRUE(core->end_push(id).ok());
  ASSERT_TRUE(core->finish_reload().ok());
  EXPECT_EQ(weights(*core), cold_b());
}

TEST_F(Pushed, OneExpertIsItsRowsAndEqualsThatExpertFromADirectory) {
  const ReloadOptions options{.scope = {.experts = {{1, 3}}}};
  const auto other = open_core(test_options(model_a()));
  ASSERT_TRUE(other->begin_reload(model_b(), options).ok());
  ASSERT_TRUE(other->finish_reload().ok());
  open();
  const std::uint64_t id = begin(options);
  const ReloadStatus opened = core->reload_status();
  EXPECT_LT(opened.bytes_expected, core->last_reload().value_or(ReloadReport{}).source_bytes +
                                       before.size() / 10);
  const std::string layer = "model.layers.1.mlp.experts.";
  std::uint64_t pushed = 0;
  for (const checkpoint::LocatedTensor& located : checkpoint_b().tensors()) {
    const std::string& name = located.entry->name;
    if (!name.starts_with(layer)) continue;
    const Bytes all = bytes_of(located);
    const auto row = all.size() / static_cast<std::size_t>(located.entry->shape[0]);
    expect_error(core->push(id, name, 2 * row, all.subspan(2 * row, row)), ErrorCode::kMismatch,
                 "outside of the scope (experts 1/3)");
    ASSERT_TRUE(core->push(id, name, 3 * row, all.subspan(3 * row, row)).ok());
    pushed += row;
  }
  expect_error(core->push(id, "model.norm.weight", 0, bytes_of_b("model.norm.weight")),
               ErrorCode::kMismatch,
               "tensor model.norm.weight is outside of the scope (experts 1/3); add its layer, its "
               "expert or its name");
  EXPECT_EQ(core->reload_status().bytes_arrived, pushed);
  EXPECT_EQ(core->reload_status().bytes_expected, pushed);
  ASSERT_TRUE(core->end_push(id).ok());
  ASSERT_TRUE(core->finish_reload().ok());
  EXPECT_EQ(weights(*core), weights(*other));
  EXPECT_NE(weights(*core), before);
}

TEST_F(Pushed, TheStatusSaysWhatCameAndWhatIsAwaited) {
  open();
  EXPECT_EQ(core->reload_status().phase, ReloadPhase::kNone);
  EXPECT_EQ(core->reload_status().id, 0u);
  const std::uint64_t id = begin({.deadline_ms = 60'000, .version = "v9"});
  ReloadStatus status = core->reload_status();
  EXPECT_EQ(status.id, id);
  EXPECT_STREQ(reload_phase_name(status.phase), "staging");
  EXPECT_TRUE(status.pushed);
  EXPECT_EQ(status.version, "v9");
  EXPECT_EQ(status.strategy, "remap");
  EXPECT_EQ(status.bytes_arrived, 0u);
  EXPECT_EQ(status.awaited_count, checkpoint_b().tensors().size());
  EXPECT_EQ(status.awaited.size(), kNamedAwaited);
  EXPECT_GT(status.deadline_left_ms, 0);
  EXPECT_LE(status.deadline_left_ms, 60'000);
  ASSERT_TRUE(push_b(*core, id, "model.norm.weight").ok());
  const Bytes last = bytes_of_b("model.norm.weight");
  ASSERT_TRUE(core->push(id, "model.norm.weight", 0, last.first(2)).ok());
  status = core->reload_status();
  EXPECT_EQ(status.awaited, std::vector<std::string>{"model.norm.weight"});
  EXPECT_EQ(status.awaited_count, 1u);
  EXPECT_EQ(status.bytes_expected - status.bytes_arrived, last.size() - 2);
  ASSERT_TRUE(core->push(id, "model.norm.weight", 2, last.subspan(2)).ok());
  ASSERT_TRUE(core->end_push(id).ok());
  const auto report = core->finish_reload().value();
  status = core->reload_status();
  EXPECT_EQ(status.phase, ReloadPhase::kDone);
  EXPECT_EQ(status.id, report.id);
  EXPECT_EQ(status.bytes_arrived, status.bytes_expected);
  EXPECT_EQ(status.bytes_arrived, report.source_bytes);
  EXPECT_EQ(status.deadline_left_ms, 0);
}

TEST_F(Pushed, AReloadFromADirectoryHasItsIdAndItsStatusFromTheStart) {
  open();
  for (const char* const commit : {"remap", "copy", "stream"}) {
    ASSERT_TRUE(core->begin_reload(model_b(), {.commit = commit}).ok());
    const std::uint64_t id = core->reload_status().id;
    EXPECT_GT(id, 0u);
    expect_error(core->push(id, "model.norm.weight", 0, bytes_of_b("model.norm.weight")),
                 ErrorCode::kFailedPrecondition, "itself");
    EXPECT_EQ(core->finish_reload().value().id, id);
    const ReloadStatus status = core->reload_status();
    EXPECT_EQ(status.id, id);
    EXPECT_FALSE(status.pushed);
    EXPECT_EQ(status.strategy, commit);
    EXPECT_EQ(status.bytes_arrived, status.bytes_expected);
    EXPECT_EQ(status.awaited_count, 0u);
  }
  ASSERT_TRUE(core->begin_reload("/nowhere", {}).ok());
  expect_error(core->finish_reload(), ErrorCode::kNotFound, "/nowhere");
  EXPECT_EQ(core->reload_status().error, core->last_reload()->error);
  EXPECT_EQ(core->reload_status().id, core->last_reload()->id);
}

TEST_F(Pushed, EveryChangeOfPhaseIsToldWithNoLockHeld) {
  EngineOptions options = test_options(model_a());
  EngineCore* engine = nullptr;
  std::mutex mutex;
  std::vector<ReloadPhase> phases;
  options.on_reload_change = [&] {
    // Each of these would wait for ever for a lock that the caller holds.
    const ReloadPhase phase = engine->reload_status().phase;
    static_cast<void>(engine->last_reload());
    static_cast<void>(engine->push(99, "x", 0, {}));
    const std::lock_guard lock(mutex);
    phases.push_back(phase);
  };
  core = EngineCore::open(options).value();
  engine = core.get();
  const std::uint64_t id = begin();
  ASSERT_TRUE(push_b(*core, id).ok());
  ASSERT_TRUE(core->end_push(id).ok());
  ASSERT_TRUE(core->finish_reload().ok());
  const std::uint64_t failing = begin();
  ASSERT_FALSE(core->end_push(failing).ok());
  ASSERT_TRUE(core->begin_reload(model_b(), {}).ok());
  ASSERT_TRUE(core->finish_reload().ok());
  core.reset();
  for (const ReloadPhase phase :
       {ReloadPhase::kStaging, ReloadPhase::kReady, ReloadPhase::kDone, ReloadPhase::kFailed}) {
    EXPECT_NE(std::find(phases.begin(), phases.end(), phase), phases.end())
        << reload_phase_name(phase);
  }
  EXPECT_EQ(phases.back(), ReloadPhase::kDone);
}

// ------------------------------------------------------------------------------ refused

TEST_F(Pushed, WhatIsWrongWithTheAnnouncedTensorsIsSaidAtOnceAndNothingIsOpen) {
  open();
  const auto refused = [&](const std::function<void(std::vector<TensorInfo>&)>& change,
                           ErrorCode code, const std::string& text) {
    auto tensors = announced(*core);
    change(tensors);
    expect_error(core->begin_push(tensors, {}), code, text);
    EXPECT_EQ(core->reload_phase(), ReloadPhase::kNone);
  };
  using Tensors = std::vector<TensorInfo>;
  const std::string t2_name = "tensor " + announced(*core)[2].name;
  refused([](Tensors& t) { t[2].dtype = "U8"; }, ErrorCode::kMismatch, "dtype u8, expected");
  refused([](Tensors& t) { t[2].dtype = "bf16"; }, ErrorCode::kInvalidArgument, "\"bf16\"");
  refused([](Tensors& t) { t[2].shape.push_back(1); }, ErrorCode::kMismatch, "shape");
  refused([](Tensors& t) { t[2].shape = {-1}; }, ErrorCode::kInvalidArgument, t2_name);
  refused([](Tensors& t) { t[2].name = "model.nrom.weight"; }, ErrorCode::kMismatch, "nearest");
  refused([](Tensors& t) { t.push_back(t[2]); }, ErrorCode::kMismatch, "comes twice");
  refused([](Tensors& t) { t.pop_back(); }, ErrorCode::kNotFound, "is missing");
  EXPECT_EQ(weights(*core), before);
  expect_next_succeeds();
}

TEST_F(Pushed, OptionsThatNeedASourceThatIsReadAreRefused) {
  open();
  const auto invalid = ErrorCode::kInvalidArgument;
  expect_error(core->begin_push({}, {.commit = "stream"}), invalid, "\"stream\"");
  expect_error(core->begin_push({}, {.commit = "stream"}), invalid, "use \"remap\" or \"copy\"");
  expect_error(core->begin_push({}, {.apply_constants = true}), invalid, "apply_constants");
  expect_error(core->begin_push({}, {.inject = "short-read"}), invalid, "inject");
  expect_error(core->begin_push({}, {.commit = "auto", .max_extra_bytes = 1}),
               ErrorCode::kResourceExhausted, "no strategy keeps within 1 extra bytes");
  EXPECT_EQ(core->reload_phase(), ReloadPhase::kNone);
  begin({.commit = "auto"});
  EXPECT_EQ(core->reload_status().strategy, "remap");
}

TEST_F(Pushed, AFragmentThatIsRefusedChangesNothingAndThePushGoesOn) {
  open();
  const std::uint64_t id = begin();
  const std::string name = "model.norm.weight";
  const Bytes bytes = bytes_of_b(name);
  expect_error(core->push(id, "model.nrom.weight", 0, bytes), ErrorCode::kNotFound, name);
  expect_error(core->push(id, name, 2, bytes), ErrorCode::kMismatch, name);
  expect_error(core->push(id, name, 1, bytes.first(2)), ErrorCode::kMismatch, "elements of 2");
  expect_error(core->push(id, name, ~std::uint64_t{0}, bytes), ErrorCode::kMismatch, name);
  expect_error(core->push(id, name, 0, {}), ErrorCode::kMismatch, name);
  expect_error(core->push(id + 1, name, 0, bytes), ErrorCode::kFailedPrecondition,
               std::to_string(id + 1));
  ASSERT_TRUE(core->push(id, name, 0, bytes.first(4)).ok());
  expect_error(core->push(id, name, 2, bytes.first(4)), ErrorCode::kCorrupt, "a second time");
  ASSERT_TRUE(core->push(id, name, 4, bytes.subspan(4)).ok());
  ASSERT_TRUE(push_b(*core, id, name).ok());
  ASSERT_TRUE(core->end_push(id).ok());
  ASSERT_TRUE(core->finish_reload().ok());
  EXPECT_EQ(weights(*core), cold_b());
}

TEST_F(Pushed, ALateFragmentIsRefusedByItsIdAndTheOpenPushGoesOn) {
  open();
  const std::uint64_t first = begin();
  ASSERT_TRUE(core->abort_reload().ok());
  const std::uint64_t second = begin();
  EXPECT_NE(first, second);
  const std::string name = "model.norm.weight";
  const Status late = core->push(first, name, 0, bytes_of_b(name));
  expect_error(late, ErrorCode::kFailedPrecondition, "for reload " + std::to_string(first));
  expect_error(late, ErrorCode::kFailedPrecondition, std::to_string(second) + " (staging)");
  expect_error(core->end_push(first), ErrorCode::kFailedPrecondition, "it came late");
  ASSERT_TRUE(push_b(*core, second).ok());
  ASSERT_TRUE(core->end_push(second).ok());
  expect_error(core->push(second, name, 0, bytes_of_b(name)), ErrorCode::kFailedPrecondition,
               "takes nothing any more: it is ready");
  expect_error(core->end_push(second), ErrorCode::kFailedPrecondition, "ready");
  ASSERT_TRUE(core->finish_reload().ok());
  expect_error(core->push(second, name, 0, bytes_of_b(name)), ErrorCode::kFailedPrecondition,
               "done");
  EXPECT_EQ(weights(*core), cold_b());
}

TEST_F(Pushed, OneAtATime) {
  open();
  begin();
  expect_error(core->begin_push({}, {}), ErrorCode::kFailedPrecondition, "still staging");
  expect_error(core->begin_reload(model_b(), {}), ErrorCode::kFailedPrecondition, "pushed tensors");
  ASSERT_TRUE(core->abort_reload().ok());
  expect_untouched(ErrorCode::kCancelled);
  ASSERT_TRUE(core->begin_reload(model_b(), {}).ok());
  ASSERT_TRUE(core->finish_reload().ok());
  EXPECT_EQ(weights(*core), cold_b());
}

// ------------------------------------------------------------------------------ it fails

TEST_F(Pushed, WhatNeverCameIsNamedAtTheEndAndTheWeightsAreUntouched) {
  open();
  const std::uint64_t id = begin();
  const std::string name = "model.layers.1.self_attn.sinks";
  ASSERT_TRUE(push_b(*core, id, name).ok());
  const Status ended = core->end_push(id);
  expect_error(ended, ErrorCode::kCorrupt, "1 tensors are not whole: " + name);
  expect_error(ended, ErrorCode::kCorrupt, "tensor " + name + ": bytes [0, ");
  expect_untouched(ErrorCode::kCorrupt);
  EXPECT_EQ(core->reload_status().awaited, std::vector<std::string>{name});
  const std::uint64_t empty = begin();
  expect_error(core->end_push(empty), ErrorCode::kCorrupt, "0 of ");
  expect_untouched(ErrorCode::kCorrupt);
  expect_next_succeeds();
}

TEST_F(Pushed, AValueThatIsNoNumberEndsTheReload) {
  open();
  const std::uint64_t id = begin();
  std::vector<std::byte> bytes(bytes_of_b("model.norm.weight").begin(),
                               bytes_of_b("model.norm.weight").end());
  const std::uint16_t nan = 0x7FC0;
  std::memcpy(bytes.data() + 6, &nan, sizeof nan);
  expect_error(core->push(id, "model.norm.weight", 0, bytes), ErrorCode::kCorrupt, "element 3");
  expect_error(core->push(id, "model.norm.weight", 0, bytes), ErrorCode::kFailedPrecondition,
               "element 3");
  expect_untouched(ErrorCode::kCorrupt);
  expect_next_succeeds();
}

TEST_F(Pushed, AnAbortInTheMiddleDropsWhatCame) {
  open();
  const auto pieces = pieces_of_b(4096, 8);
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, pieces.size() / 2,
                                  pieces.size()}) {
    const std::uint64_t id = begin();
    ASSERT_TRUE(push_all(*core, id, std::span(pieces).first(count)).ok());
    ASSERT_TRUE(core->abort_reload().ok());
    expect_untouched(ErrorCode::kCancelled);
    expect_error(core->end_push(id), ErrorCode::kFailedPrecondition, "failed");
  }
  const std::uint64_t ready = begin({.commit_when_ready = false});
  ASSERT_TRUE(push_all(*core, ready, pieces).ok());
  ASSERT_TRUE(core->end_push(ready).ok());
  ASSERT_TRUE(core->abort_reload().ok());
  expect_untouched(ErrorCode::kCancelled);
  expect_next_succeeds();
}

TEST_F(Pushed, AnAbortEndsAPushThatIsUnderWayAndWaitsForIt) {
  GateClock clock;
  open(&clock);
  const std::uint64_t id = begin();
  const std::string name = "model.embed_tokens.weight";
  Status last;
  std::thread pusher([&] {
    clock.watch_this_thread();
    // Once it has come it is refused again and again, until the abort is seen.
    do {
      last = core->push(id, name, 0, bytes_of_b(name));
    } while (last.ok() || last.error().code() == ErrorCode::kCorrupt);
  });
  clock.wait_inside();
  std::thread aborter([&] { EXPECT_TRUE(core->abort_reload().ok()); });
  EXPECT_EQ(core->reload_status().id, id) << "the status does not wait for a push";
  clock.open_gate();
  aborter.join();
  EXPECT_EQ(core->reload_phase(), ReloadPhase::kFailed);
  pusher.join();
  EXPECT_TRUE(last.error().code() == ErrorCode::kCancelled ||
              last.error().code() == ErrorCode::kFailedPrecondition)
      << last.error().to_string();
  expect_untouched(ErrorCode::kCancelled);
}

TEST_F(Pushed, AnEngineThatGoesAwayDropsAnOpenPush) {
  for (const bool pushed : {false, true}) {
    open();
    const std::uint64_t id = begin();
    if (pushed) {
      ASSERT_TRUE(push_b(*core, id).ok());
    }
    core.reset();
  }
}

TEST_F(Pushed, APushAfterTheDeadlineFailsAndEndsTheReload) {
  GateClock clock;
  open(&clock, true);
  const std::string name = "model.norm.weight";
  const std::uint64_t id = begin({.deadline_ms = 1000});
  ASSERT_TRUE(core->push(id, name, 0, bytes_of_b(name).first(2)).ok());
  clock.advance_ms(400);
  EXPECT_EQ(core->reload_status().deadline_left_ms, 600);
  clock.advance_ms(601);
  expect_error(core->push(id, name, 2, bytes_of_b(name).subspan(2)), ErrorCode::kDeadlineExceeded,
               "deadline");
  expect_untouched(ErrorCode::kDeadlineExceeded);
  // Nobody pushes: the next step notices.
  begin({.deadline_ms = 1000});
  ASSERT_TRUE(core->step().ok());
  EXPECT_EQ(core->reload_phase(), ReloadPhase::kStaging);
  clock.advance_ms(1001);
  ASSERT_TRUE(core->step().ok());
  expect_untouched(ErrorCode::kDeadlineExceeded);
  // Nobody commits.
  const std::uint64_t ready = begin({.deadline_ms = 1000, .commit_when_ready = false});
  ASSERT_TRUE(push_b(*core, ready).ok());
  ASSERT_TRUE(core->end_push(ready).ok());
  clock.advance_ms(1001);
  ASSERT_TRUE(core->step().ok());
  expect_untouched(ErrorCode::kDeadlineExceeded);
}

TEST_F(Pushed, ADeadlineEndsAPushOfSomebodyWhoIsGoneWithoutAnyStep) {
  GateClock clock;
  open(&clock);
  const std::uint64_t id = begin({.deadline_ms = 10});
  const std::string name = "model.norm.weight";
  ASSERT_TRUE(core->push(id, name, 0, bytes_of_b(name)).ok());
  clock.advance_ms(11);
  expect_error(core->finish_reload(), ErrorCode::kDeadlineExceeded, "");
  expect_untouched(ErrorCode::kDeadlineExceeded);
  expect_next_succeeds();
}

TEST_F(Pushed, OnOneThreadNobodyCanPushWhileItWaits) {
  open(nullptr, true);
  const std::uint64_t id = begin();
  expect_error(core->finish_reload(), ErrorCode::kFailedPrecondition, std::to_string(id));
  ASSERT_TRUE(push_b(*core, id).ok());
  ASSERT_TRUE(core->end_push(id).ok());
  ASSERT_TRUE(core->finish_reload().ok());
  EXPECT_EQ(weights(*core), cold_b());
}

// ------------------------------------------------------------------------------ digests

// A file of the digests of B's tensors, with that of `wrong` of other bytes.
std::string digests_of_b(const std::string& name, const std::string& wrong = "") {
  const std::string path = (temp_root() / name).string();
  std::ofstream out(path);
  const char* separator = "{";
  for (const checkpoint::LocatedTensor& located : checkpoint_b().tensors()) {
    const Bytes bytes = bytes_of(located);
    const bool right = located.entry->name != wrong;
    out << separator << '"' << located.entry->name << "\": \""
        << base::digest_of(right ? bytes : bytes.first(1)).to_hex() << '"';
    separator = ", ";
  }
  out << "}";
  return path;
}

TEST_F(Pushed, DigestsArePromisedInAFileAndChecked) {
  open();
  const std::string resident = "model.norm.weight";
  const std::string transient = "model.layers.1.mlp.experts.down_proj_blocks";
  for (const std::string& wrong : {resident, transient}) {
    const std::uint64_t id = begin({.digests_file = digests_of_b("wrong.json", wrong)});
    Status status = push_all(*core, id, pieces_of_b(4096, 4));
    if (status.ok()) status = core->end_push(id);
    expect_error(status, ErrorCode::kCorrupt, wrong);
    expect_untouched(ErrorCode::kCorrupt);
  }
  const std::uint64_t id = begin({.digests_file = digests_of_b("right.json")});
  ASSERT_TRUE(push_all(*core, id, pieces_of_b(4096, 4)).ok());
  ASSERT_TRUE(core->end_push(id).ok());
  ASSERT_TRUE(core->finish_reload().ok());
  EXPECT_EQ(weights(*core), cold_b());
  expect_error(core->begin_push({}, {.digests_file = "/nowhere.json"}), ErrorCode::kNotFound,
               "/nowhere.json");
}

}  // namespace
}  // namespace holdfast::engine
