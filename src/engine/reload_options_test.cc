// What a reload may be asked for: strategies, parts of a model, constants, casts, digests, a
// deadline, a label; each with what it does, what it refuses, and what stays as it was then.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "engine/test_support.h"
#include "tensor/codecs.h"

namespace holdfast::engine {
namespace {

namespace fs = std::filesystem;

std::vector<Request> requests() {
  static const auto prompts = read_reference_prompts("gptoss-tiny-A");
  return {greedy_request(prompts[0]), greedy_request(prompts[2])};
}
std::vector<Transcript> tokens(EngineCore& core) { return run_together(core, requests()); }

void expect_same_tokens(const std::vector<Transcript>& a, const std::vector<Transcript>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].same_tokens(b[i])) << "request " << i;
}

// By slot name; versioned slots only.
std::map<std::string, std::string> digests(const EngineCore& core) {
  std::map<std::string, std::string> found;
  const CensusReport census = core.census().value();
  for (const CensusEntry& slot : census.slots) {
    if (!slot.digest.empty()) found[slot.name] = slot.digest;
  }
  return found;
}

Result<ReloadReport> reload(EngineCore& core, const std::string& directory,
                            const ReloadOptions& options = {}) {
  HF_TRY(core.begin_reload(directory, options));
  return core.finish_reload();
}

void expect_error(const Result<ReloadReport>& report, ErrorCode code, const std::string& text) {
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code(), code) << report.error().to_string();
  EXPECT_NE(report.error().message().find(text), std::string::npos) << report.error().to_string();
}

// ------------------------------------------------------------------------------ checkpoints

std::string fresh_directory(const std::string& name) {
  const fs::path directory = temp_root() / name;
  fs::remove_all(directory);
  fs::create_directories(directory);
  return directory.string();
}

struct Tensor {
  checkpoint::TensorToWrite written;
  std::vector<std::byte> bytes;
};
using Change = std::function<void(Tensor&)>;

// A copy of `from` of which each tensor is given to `change`.
std::string changed_copy(const std::string& from, const std::string& name, const Change& change) {
  const std::string to = fresh_directory(name);
  for (const auto& entry : fs::directory_iterator(from)) {
    if (entry.path().extension() == ".json") fs::copy(entry.path(), to / entry.path().filename());
  }
  const auto source = checkpoint::Checkpoint::open(from).value();
  for (const auto& file : source->files()) {
    std::vector<Tensor> tensors;
    for (const checkpoint::LocatedTensor& located : source->tensors()) {
      if (located.file != file.get()) continue;
      const auto bytes = file->data(*located.entry);
      tensors.push_back({.written = {located.entry->name, located.entry->dtype,
                                     located.entry->shape, {}},
                         .bytes = {bytes.begin(), bytes.end()}});
      change(tensors.back());
    }
    std::vector<checkpoint::TensorToWrite> written;
    for (Tensor& tensor : tensors) {
      tensor.written.data = tensor.bytes;
      written.push_back(tensor.written);
    }
    const auto path = (fs::path(to) / fs::path(file->path()).filename()).string();
    EXPECT_TRUE(checkpoint::write_safetensors(path, written).ok());
  }
  return to;
}

// A with expert 3 of layer 1 of B.
std::string expert_of_b_in_a() {
  const auto b = checkpoint::Checkpoint::open(model_b()).value();
  return changed_copy(model_a(), "mixed-expert", [&b](Tensor& tensor) {
    if (!tensor.written.name.starts_with("model.layers.1.mlp.experts.")) return;
    const checkpoint::LocatedTensor* other = b->find(tensor.written.name);
    const auto bytes = other->file->data(*other->entry);
    const auto row = tensor.bytes.size() / static_cast<std::size_t>(tensor.written.shape[0]);
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(3 * row), row,
                tensor.bytes.begin() + static_cast<std::ptrdiff_t>(3 * row));
  });
}

// A copy of `from` whose config.json has `value` in place of swiglu_limit's 7.0.
std::string with_swiglu_limit(const std::string& from, const std::string& value) {
  const std::string to = changed_copy(from, "swiglu-" + value, [](Tensor&) {});
  const fs::path path = fs::path(to) / "config.json";
  std::ifstream in(path);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::string field = "\"swiglu_limit\": 7.0";
  const auto at = text.find(field);
  EXPECT_NE(at, std::string::npos);
  text.replace(at, field.size(), "\"swiglu_limit\": " + value);
  std::ofstream(path) << text;
  return to;
}

std::string write_text(const std::string& name, const std::string& text) {
  const std::string path = (temp_root() / name).string();
  std::ofstream(path) << text;
  return path;
}

// A checkpoint that stops giving bytes after `budget` reads, and may do something at its opening.
class DyingSource final : public reload::Source {
 public:
  DyingSource(std::unique_ptr<reload::Source> inner, int budget)
      : inner_(std::move(inner)), budget_(budget) {}
  std::string describe() const override { return inner_->describe(); }
  const config::ModelConfig& config() const override { return inner_->config(); }
  std::span<const reload::SourceTensor> tensors() const override { return inner_->tensors(); }
  Status read(std::size_t index, std::uint64_t offset, std::span<std::byte> to) override {
    if (budget_ >= 0 && budget_-- == 0) return Error(ErrorCode::kIo, "the source died");
    return inner_->read(index, offset, to);
  }
  Status finish() override { return inner_->finish(); }

 private:
  std::unique_ptr<reload::Source> inner_;
  int budget_;  // negative: lives on
};

// An engine on A whose sources die after `*budget` reads.
std::unique_ptr<EngineCore> open_with_dying_source(const std::shared_ptr<int>& budget,
                                                   bool on_calling_thread = false) {
  EngineParts parts;
  parts.reloader.on_calling_thread = on_calling_thread;
  parts.reloader.open_source =
      [budget](const std::string& directory) -> Result<std::unique_ptr<reload::Source>> {
    HF_ASSIGN(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
              checkpoint::Checkpoint::open(directory));
    return std::unique_ptr<reload::Source>(std::make_unique<DyingSource>(
        reload::make_checkpoint_source(std::move(checkpoint)), *budget));
  };
  return EngineCore::open(test_options(model_a()), std::move(parts)).value();
}

// Changes the first byte of a slot behind the engine's back.
void tamper(EngineCore& core, const std::string& slot_name) {
  storage::Registry& registry = core.runtime().registry();
  const storage::SlotId id = registry.find_slot(slot_name).value();
  device::Arena& arena = registry.arena_of(id);
  ASSERT_TRUE(arena.protect(device::Protection::kReadWrite).ok());
  *registry.view(id).as<std::uint8_t>() ^= 1;
  ASSERT_TRUE(arena.protect(device::Protection::kReadOnly).ok());
}

// ------------------------------------------------------------------------------ a part

class PartialReload : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Strategies, PartialReload, testing::Values("remap", "copy", "stream"),
                         [](const auto& parameter) { return parameter.param; });

TEST_P(PartialReload, OneExpertOfAWholeDirectoryChangesThatExpertAndEqualsAColdMixedModel) {
  const auto cold = open_core(test_options(expert_of_b_in_a()));
  const auto core = open_core(test_options(model_a()));
  const auto before = digests(*core);
  const auto report =
      reload(*core, model_b(), {.commit = GetParam(), .scope = {.experts = {{1, 3}}}});
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_EQ(report->scope, "experts 1/3");
  EXPECT_EQ(report->strategy, GetParam());
  EXPECT_GT(report->preserved_bytes, report->versioned_bytes);
  EXPECT_EQ(report->slots_moved, 0u);
  const auto after = digests(*core);
  EXPECT_EQ(after, digests(*cold));
  std::uint64_t changed = 0;
  for (const auto& [name, digest] : after) {
    if (digest == before.at(name)) continue;
    ++changed;
    EXPECT_TRUE(name.starts_with("layers.1.experts.")) << name;
  }
  EXPECT_GT(changed, 0u);
  EXPECT_EQ(report->slots_changed, changed);
  expect_same_tokens(tokens(*core), tokens(*cold));
}

TEST(PartialReloadRefusals, AScopeThatCutsAUnitOrNamesNothingChangesNothing) {
  const auto core = open_core(test_options(model_a()));
  const auto before = digests(*core);
  const auto with = [&](ReloadScope scope) { return reload(*core, model_b(), {.scope = scope}); };
  expect_error(with({.parameters = {"model.layers.0.self_attn.q_proj.weight"}}),
               ErrorCode::kMismatch, "model.layers.0.self_attn.k_proj.weight");
  expect_error(with({.parameters = {"model.layers.0.mlp.experts.gate_up_proj_blocks"}}),
               ErrorCode::kMismatch, "gate_up_proj_scales");
  expect_error(with({.layers = {99}}), ErrorCode::kNotFound, "99");
  expect_error(with({.experts = {{0, 8}}}), ErrorCode::kNotFound, "expert 8");
  expect_error(with({.parameters = {"model.norm.wieght"}}), ErrorCode::kNotFound,
               "model.norm.weight");
  EXPECT_EQ(core->epoch(), 1u);
  EXPECT_EQ(core->last_reload()->state, "rolled_back");
  EXPECT_EQ(core->last_reload()->scope, "parameters model.norm.wieght");
  EXPECT_EQ(digests(*core), before);
}

// ------------------------------------------------------------------------------ stream, auto

TEST(StreamReload, ReadsInTheQuietMomentAndEqualsAColdEngine) {
  const auto cold = open_core(test_options(model_b()));
  const auto core = open_core(test_options(model_a()));
  ASSERT_TRUE(core->begin_reload(model_b(), {.commit = "stream"}).ok());
  // Commits by itself at a step's boundary.
  while (core->epoch() == 1) {
    ASSERT_TRUE(core->step().ok());
    std::this_thread::yield();
  }
  const auto report = core->finish_reload();
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_EQ(report->strategy, "stream");
  EXPECT_EQ(report->declared_peak_bytes, 0u);
  EXPECT_EQ(report->measured_peak_bytes, 0u);
  EXPECT_LE(report->measured_host_peak_bytes, report->declared_host_peak_bytes);
  EXPECT_EQ(digests(*core), digests(*cold));
  expect_same_tokens(tokens(*core), tokens(*cold));
}

TEST(StreamReload, AnEngineOpensByStreamTooAndReloadsSoByDefault) {
  EngineOptions options = test_options(model_a());
  options.commit = "stream";
  const auto core = open_core(options);
  EXPECT_EQ(digests(*core), digests(*open_core(test_options(model_a()))));
  const auto report = reload(*core, model_b());
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_EQ(report->strategy, "stream");
}

TEST(StreamReload, AFailurePoisonsUntilACompleteReload) {
  const auto budget = std::make_shared<int>(40);
  const auto core = open_with_dying_source(budget);
  ASSERT_TRUE(core->begin_reload(model_b(), {.commit = "stream", .version = "never"}).ok());
  EXPECT_EQ(core->finish_reload().error().code(), ErrorCode::kPoisoned);
  EXPECT_TRUE(core->poisoned());
  EXPECT_EQ(core->last_reload()->state, "poisoned");
  EXPECT_NE(core->last_reload()->error.find("the source died"), std::string::npos);
  EXPECT_EQ(core->version(), "");
  EXPECT_EQ(core->step().error().code(), ErrorCode::kPoisoned);
  EXPECT_EQ(core->submit(requests()[0]).error().code(), ErrorCode::kPoisoned);
  EXPECT_EQ(core->verify().error().code(), ErrorCode::kPoisoned);
  *budget = -1;
  for (const ReloadScope& part : {ReloadScope{.layers = {0}}, ReloadScope{.experts = {{1, 3}}}}) {
    expect_error(reload(*core, model_b(), {.scope = part}), ErrorCode::kPoisoned, "complete");
    EXPECT_TRUE(core->poisoned());
  }
  ASSERT_TRUE(reload(*core, model_b(), {.commit = "stream"}).ok());
  EXPECT_FALSE(core->poisoned());
  const auto cold = open_core(test_options(model_b()));
  EXPECT_EQ(digests(*core), digests(*cold));
  expect_same_tokens(tokens(*core), tokens(*cold));
}

TEST(StreamReload, WithAnUndoImageAFailureIsRolledBackBitForBit) {
  const auto budget = std::make_shared<int>(40);
  const auto core = open_with_dying_source(budget);
  const auto before = digests(*core);
  const auto tokens_before = tokens(*core);
  expect_error(reload(*core, model_b(),
                      {.commit = "stream", .undo_image = true, .version = "never"}),
               ErrorCode::kIo, "the source died");
  EXPECT_FALSE(core->poisoned());
  EXPECT_EQ(core->last_reload()->state, "rolled_back");
  EXPECT_EQ(core->epoch(), 1u);
  EXPECT_EQ(core->version(), "");
  EXPECT_EQ(digests(*core), before);
  EXPECT_TRUE(core->verify().value().defects.empty());
  expect_same_tokens(tokens(*core), tokens_before);
}

TEST(StreamReload, WithoutAnUndoImageAFailedVerificationPoisons) {
  const auto core = open_with_dying_source(std::make_shared<int>(-1), true);
  ASSERT_TRUE(
      core->begin_reload(model_b(), {.commit = "stream", .commit_when_ready = false}).ok());
  ASSERT_TRUE(core->commit_reload().ok());
  tamper(*core, "final_norm.weight");
  EXPECT_EQ(core->finish_reload().error().code(), ErrorCode::kPoisoned);
  EXPECT_TRUE(core->poisoned());
  EXPECT_EQ(core->last_reload()->state, "poisoned");
  EXPECT_EQ(core->step().error().code(), ErrorCode::kPoisoned);
  ASSERT_TRUE(reload(*core, model_b(), {}).ok());
  EXPECT_FALSE(core->poisoned());
  EXPECT_TRUE(core->verify().value().defects.empty());
}

TEST(AutoReload, TheLimitsChooseAndTheReportSaysWhatThePlanSaid) {
  const auto core = open_core(test_options(model_a()));
  for (const std::uint64_t extra : {std::uint64_t{0}, std::uint64_t{1} << 20}) {
    const ReloadOptions options{.commit = "auto", .max_extra_bytes = extra};
    const PlanReport plan = core->plan_reload(model_b(), options).value();
    const auto report = reload(*core, model_b(), options);
    ASSERT_TRUE(report.ok()) << report.error().to_string();
    EXPECT_EQ(report->strategy, plan.strategy);
    EXPECT_EQ(report->strategy == "stream", extra > 0) << report->strategy;
    EXPECT_GT(report->expected_pause_us, 0.0);
  }
  expect_error(reload(*core, model_a(), {.commit = "auto", .max_extra_bytes = 1}),
               ErrorCode::kResourceExhausted, "stream");
  EXPECT_EQ(core->last_reload()->strategy, "auto");
  expect_error(reload(*core, model_a(), {.commit = "auto", .max_pause_us = 1e-3}),
               ErrorCode::kResourceExhausted, "remap");
}

// ------------------------------------------------------------------------------ constants

TEST(ConstantsReload, AreRefusedUnlessAskedForAndThenAreThoseOfAColdEngine) {
  const std::string clamped = with_swiglu_limit(model_b(), "0.5");
  const auto core = open_core(test_options(model_a()));
  const auto before = digests(*core);
  expect_error(reload(*core, clamped), ErrorCode::kMismatch, "swiglu");
  EXPECT_EQ(digests(*core), before);
  const auto applied = reload(*core, clamped, {.apply_constants = true});
  ASSERT_TRUE(applied.ok()) << applied.error().to_string();
  const auto cold = open_core(test_options(clamped));
  EXPECT_EQ(digests(*core), digests(*cold));
  EXPECT_NE(digests(*core), digests(*open_core(test_options(model_b()))));
  expect_same_tokens(tokens(*core), tokens(*cold));
  EXPECT_TRUE(core->verify().value().defects.empty());
  // The way back is a change of constants again.
  expect_error(reload(*core, model_a()), ErrorCode::kMismatch, "swiglu");
  ASSERT_TRUE(reload(*core, clamped).ok());
  ASSERT_TRUE(reload(*core, model_a(), {.apply_constants = true}).ok());
  EXPECT_EQ(digests(*core), before);
}

TEST(ConstantsReload, ARolledBackCommitLeavesTheOldConstantsAndTheirConfig) {
  const auto budget = std::make_shared<int>(40);
  const auto core = open_with_dying_source(budget);
  const auto before = digests(*core);
  const std::string clamped = with_swiglu_limit(model_b(), "0.25");
  EXPECT_FALSE(reload(*core, clamped,
                      {.commit = "stream", .apply_constants = true, .undo_image = true})
                   .ok());
  EXPECT_EQ(digests(*core), before);
  *budget = -1;
  expect_error(reload(*core, clamped), ErrorCode::kMismatch, "swiglu");
  ASSERT_TRUE(reload(*core, model_a()).ok());
  EXPECT_EQ(digests(*core), before);
}

TEST(ConstantsReload, AFailedVerificationTakesConstantsConfigAndLabelBack) {
  const auto core = open_with_dying_source(std::make_shared<int>(-1), true);
  ASSERT_TRUE(reload(*core, model_a(), {.version = "good"}).ok());
  const auto before = digests(*core);
  const std::string clamped = with_swiglu_limit(model_b(), "0.75");
  for (const char* strategy : {"remap", "copy"}) {
    ASSERT_TRUE(core->begin_reload(clamped, {.commit = strategy,
                                             .apply_constants = true,
                                             .version = "bad",
                                             .commit_when_ready = false})
                    .ok());
    ASSERT_TRUE(core->commit_reload().ok());
    EXPECT_EQ(core->version(), "bad");
    tamper(*core, "final_norm.weight");
    EXPECT_EQ(core->finish_reload().error().code(), ErrorCode::kCorrupt);
    EXPECT_EQ(core->last_reload()->state, "rolled_back");
    EXPECT_EQ(core->version(), "good");
    EXPECT_EQ(digests(*core), before);
    EXPECT_TRUE(core->verify().value().defects.empty());
    EXPECT_TRUE(core->plan_reload(model_b(), {}).ok()) << "the config is the old one again";
  }
}

// ------------------------------------------------------------------------------ casts, digests

std::string with_wide(const std::string& model, const std::string& name) {
  return changed_copy(model, "wide-" + name, [&](Tensor& tensor) {
    if (tensor.written.name != name) return;
    std::vector<float> values(tensor.bytes.size() / 2);
    tensor::decode_to_f32(tensor::DType::kBF16, tensor.bytes.data(), std::ssize(values),
                          values.data()).value();
    tensor.written.dtype = tensor::DType::kF32;
    tensor.bytes.resize(values.size() * sizeof(float));
    std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  });
}

TEST(CastReload, WhatIsNotQuantisedIsCastAtOnceAndAnExpertsMatrixIfDeclared) {
  const std::string matrix = "model.layers.1.mlp.experts.down_proj";
  for (const std::string& name : {std::string("model.norm.weight"), matrix + "_bias", matrix}) {
    const std::string model = name == matrix ? model_a_bf16() : model_b();
    const auto core = open_core(test_options(name == matrix ? model : model_a()));
    const std::string wide = with_wide(model, name);
    ReloadOptions options;
    if (name == matrix) options.casts = {{name, "f32", "bf16"}};
    if (name == matrix) expect_error(reload(*core, wide), ErrorCode::kMismatch, name);
    const auto cast = reload(*core, wide, options);
    ASSERT_TRUE(cast.ok()) << cast.error().to_string();
    EXPECT_EQ(std::count(cast->warnings.begin(), cast->warnings.end(),
                         name + " is cast from f32 to bf16 (narrowing)"), 1);
    EXPECT_EQ(digests(*core), digests(*open_core(test_options(model))));
  }
}

// The digests of every tensor of a checkpoint, as a trainer would write them; that of `spoiled` is
// another.
std::string digests_json(const std::string& directory, const std::string& spoiled) {
  const auto checkpoint = checkpoint::Checkpoint::open(directory).value();
  std::string json;
  for (const checkpoint::LocatedTensor& located : checkpoint->tensors()) {
    base::Digest digest = base::digest_of(located.file->data(*located.entry));
    if (located.entry->name == spoiled) digest.low ^= 1;
    json += json.empty() ? "{" : ",\n";
    json += '"' + located.entry->name + "\":\"" + digest.to_hex() + '"';
  }
  return json + "}";
}

TEST(DigestsReload, WhatTheTrainerPromisedIsCheckedBeforeTheCommit) {
  const auto core = open_core(test_options(model_a()));
  const auto before = digests(*core);
  for (const char* name : {"model.norm.weight", "model.layers.2.mlp.experts.down_proj_blocks"}) {
    const std::string spoiled = write_text("spoiled.json", digests_json(model_b(), name));
    const auto refused = reload(*core, model_b(), {.digests_file = spoiled});
    expect_error(refused, ErrorCode::kCorrupt, name);
    const auto checkpoint = checkpoint::Checkpoint::open(model_b()).value();
    const auto* located = checkpoint->find(name);
    const base::Digest found = base::digest_of(located->file->data(*located->entry));
    base::Digest promised = found;
    promised.low ^= 1;
    for (const std::string& hex : {found.to_hex(), promised.to_hex()}) {
      EXPECT_NE(refused.error().message().find(hex), std::string::npos) << hex;
    }
    EXPECT_EQ(core->epoch(), 1u);
    EXPECT_EQ(digests(*core), before);
  }
  const std::string right = write_text("right.json", digests_json(model_b(), ""));
  const auto report = reload(*core, model_b(), {.digests_file = right});
  EXPECT_TRUE(report.ok()) << report.error().to_string();
}

TEST(DigestsReload, OfAReloadOfAPartThatPartIsChecked) {
  const auto core = open_core(test_options(model_a()));
  const auto before = digests(*core);
  const char* const outside = "model.layers.1.mlp.experts.down_proj_blocks";
  const char* const inside = "model.layers.2.mlp.experts.down_proj_blocks";
  const auto with = [&](const char* spoiled) {
    ReloadOptions options;
    options.scope.layers = {2};
    options.digests_file = write_text("part.json", digests_json(model_b(), spoiled));
    return reload(*core, model_b(), options);
  };
  expect_error(with(inside), ErrorCode::kCorrupt, inside);
  EXPECT_EQ(digests(*core), before);
  const auto report = with(outside);
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_NE(digests(*core), before);
}

TEST(DigestsReload, AFileThatIsNoMapOfDigestsIsNamedWithWhatIsWrong) {
  const auto core = open_core(test_options(model_a()));
  const auto with = [&](const std::string& path) {
    return reload(*core, model_b(), {.digests_file = path});
  };
  const auto text = [&](const std::string& json) { return with(write_text("bad.json", json)); };
  expect_error(with((temp_root() / "no-such-digests.json").string()), ErrorCode::kNotFound,
               "no-such-digests.json");
  expect_error(text("[1]"), ErrorCode::kCorrupt, "bad.json");
  expect_error(text("{\"model.norm.weight\": 7}"), ErrorCode::kCorrupt, "model.norm.weight");
  expect_error(text("{\"model.norm.weight\": \"12ab\"}"), ErrorCode::kCorrupt, "12ab");
  expect_error(text("{\"a\": {\"b\": {\"c\": {}}}}"), ErrorCode::kCorrupt, "deeper");
  const std::string hex(32, '0');
  expect_error(text("{\"a\": \"" + hex + "\", \"a\": \"" + hex + "\"}"), ErrorCode::kCorrupt,
               "twice");
  expect_error(text("{\"model.norm.wieght\": \"" + hex + "\"}"), ErrorCode::kNotFound,
               "model.norm.weight");
  expect_error(text("{}"), ErrorCode::kCorrupt, "no digest in it");
  const std::string large = write_text("large.json", "{}");
  fs::resize_file(large, kMaxDigestsBytes + 1);
  expect_error(with(large), ErrorCode::kCorrupt, "large.json");
  fs::remove(large);
  EXPECT_EQ(core->epoch(), 1u);
}

// ------------------------------------------------------------------------------ deadline, label

TEST(DeadlineReload, TooLateAtTheCommitOrBeforeStagingRollsBack) {
  base::ManualClock clock;
  std::int64_t opening_takes_ns = 0;
  EngineParts parts;
  parts.clock = &clock;
  parts.reloader.on_calling_thread = true;
  parts.reloader.open_source =
      [&](const std::string& directory) -> Result<std::unique_ptr<reload::Source>> {
    clock.advance_ns(opening_takes_ns);
    HF_ASSIGN(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
              checkpoint::Checkpoint::open(directory));
    return reload::make_checkpoint_source(std::move(checkpoint));
  };
  const auto core = EngineCore::open(test_options(model_a()), std::move(parts)).value();
  const auto before = digests(*core);
  const ReloadOptions options{.deadline_ms = 5, .commit_when_ready = false};
  for (const char* strategy : {"remap", "copy", "stream"}) {
    ReloadOptions late = options;
    late.commit = strategy;
    ASSERT_TRUE(core->begin_reload(model_b(), late).ok());
    ASSERT_EQ(core->reload_phase(), ReloadPhase::kReady);
    clock.advance_ns(5'000'001);
    EXPECT_EQ(core->commit_reload().error().code(), ErrorCode::kDeadlineExceeded) << strategy;
    EXPECT_EQ(core->last_reload()->state, "rolled_back");
    EXPECT_FALSE(core->poisoned());
  }
  opening_takes_ns = 6'000'000;
  expect_error(reload(*core, model_b(), options), ErrorCode::kDeadlineExceeded, "deadline");
  EXPECT_EQ(core->epoch(), 1u);
  EXPECT_EQ(digests(*core), before);
  opening_takes_ns = 4'000'000;
  EXPECT_TRUE(reload(*core, model_b(), options).ok());
}

// ------------------------------------------------------------------------------ one for another

TEST(ReplacingReload, AbortsTheOpenOneAndCommitsInItsPlace) {
  const auto core = open_core(test_options(model_a()));
  const auto before = digests(*core);
  const std::size_t live_bytes = core->runtime().device().usage().live_bytes;
  const ReloadOptions first{.version = "first", .commit_when_ready = false};
  for (const bool wait : {false, true}) {
    ASSERT_TRUE(core->begin_reload(model_b(), first).ok());
    const std::uint64_t id = core->reload_status().id;
    while (wait && core->reload_phase() == ReloadPhase::kStaging) std::this_thread::yield();
    EXPECT_FALSE(core->begin_reload(model_a(), {.version = "not asked"}).ok());
    ASSERT_TRUE(core->begin_reload(model_a(), {.version = "second", .replace_open = true}).ok());
    EXPECT_GT(core->reload_status().id, id);
    const auto report = core->finish_reload();
    ASSERT_TRUE(report.ok()) << report.error().to_string();
    EXPECT_EQ(report->version, "second");
    EXPECT_EQ(core->version(), "second");
    EXPECT_EQ(digests(*core), before);
    EXPECT_EQ(core->runtime().device().usage().live_bytes, live_bytes);
  }
  EXPECT_EQ(core->epoch(), 3u);
  // Nothing is open: it begins like any other.
  EXPECT_TRUE(reload(*core, model_b(), {.replace_open = true}).ok());
}

TEST(ReplacingReload, APushThatWasReplacedIsRefusedByItsId) {
  const auto core = open_core(test_options(model_a()));
  const std::uint64_t first = core->begin_push({}, {}).value();
  EXPECT_FALSE(core->begin_push({}, {}).ok());
  const std::uint64_t second = core->begin_push({}, {.replace_open = true}).value();
  EXPECT_GT(second, first);
  const std::vector<std::byte> bytes(4);
  for (const Status& late : {core->push(first, "model.norm.weight", 0, bytes),
                             core->end_push(first)}) {
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.error().code(), ErrorCode::kFailedPrecondition);
    for (const std::uint64_t id : {first, second}) {
      EXPECT_NE(late.error().message().find(std::to_string(id)), std::string::npos) << id;
    }
  }
  EXPECT_EQ(core->reload_status().id, second);
  EXPECT_TRUE(core->push(second, "model.norm.weight", 0, bytes).ok());
  EXPECT_TRUE(reload(*core, model_b(), {.replace_open = true}).ok());
  EXPECT_EQ(digests(*core), digests(*open_core(test_options(model_b()))));
}

TEST(ReplacingReload, FromWithinTheSourceIsRefusedAndEndsTheOpenOne) {
  EngineCore* core = nullptr;
  Status nested;
  EngineParts parts;
  parts.reloader.on_calling_thread = true;
  parts.reloader.open_source =
      [&](const std::string& directory) -> Result<std::unique_ptr<reload::Source>> {
    if (core != nullptr) nested = core->begin_reload(model_a(), {.replace_open = true});
    HF_ASSIGN(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
              checkpoint::Checkpoint::open(directory));
    return reload::make_checkpoint_source(std::move(checkpoint));
  };
  const auto owner = EngineCore::open(test_options(model_a()), std::move(parts)).value();
  core = owner.get();
  expect_error(reload(*core, model_b()), ErrorCode::kCancelled, "cancelled");
  ASSERT_FALSE(nested.ok());
  EXPECT_EQ(nested.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(core->epoch(), 1u);
}

TEST(VersionReload, TheLabelIsPublishedByTheCommitAlone) {
  const auto core = open_core(test_options(model_a()));
  EXPECT_EQ(core->version(), "");
  ASSERT_TRUE(
      core->begin_reload(model_b(), {.version = "step-7", .commit_when_ready = false}).ok());
  EXPECT_EQ(core->version(), "");
  const auto report = core->finish_reload();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->version, "step-7");
  EXPECT_EQ(core->version(), "step-7");
  EXPECT_FALSE(reload(*core, source_path("models/none"), {.version = "step-8"}).ok());
  EXPECT_EQ(core->version(), "step-7");
  ASSERT_TRUE(reload(*core, model_a()).ok());
  EXPECT_EQ(core->version(), "") << "these weights were given no name";
}

// ------------------------------------------------------------------------------ plan, verify

TEST(PlanReload, SaysWhatAReloadWouldDoAndTouchesNothing) {
  const auto core = open_core(test_options(model_a()));
  const auto before = digests(*core);
  const std::size_t live_bytes = core->runtime().device().usage().live_bytes;
  const PlanReport plan =
      core->plan_reload(model_b(), {.commit = "copy", .scope = {.layers = {2}}}).value();
  EXPECT_EQ(plan.strategy, "copy");
  EXPECT_NE(plan.text.find("layers 2"), std::string::npos) << plan.text;
  EXPECT_EQ(plan.json.front(), '{');
  EXPECT_EQ(core->reload_phase(), ReloadPhase::kNone);
  EXPECT_EQ(core->epoch(), 1u);
  EXPECT_EQ(core->runtime().device().usage().live_bytes, live_bytes);
  EXPECT_EQ(digests(*core), before);
  EXPECT_EQ(core->plan_reload(source_path("models/none"), {}).error().code(),
            ErrorCode::kNotFound);
  EXPECT_EQ(core->plan_reload(model_a_bf16(), {}).error().code(), ErrorCode::kMismatch);
  EXPECT_EQ(core->plan_reload(model_b(), {.commit = "warp"}).error().code(),
            ErrorCode::kInvalidArgument);
}

TEST(VerifyEngine, EveryDamagedSlotIsOneLine) {
  const auto core = open_core(test_options(model_a()));
  const VerifyReport whole = core->verify().value();
  EXPECT_EQ(whole.slots, digests(*core).size());
  EXPECT_GT(whole.bytes, 1u << 20);
  EXPECT_TRUE(whole.defects.empty());
  const std::string constant = core->runtime().decoder().experts_constant_slots().front();
  tamper(*core, "final_norm.weight");
  tamper(*core, constant);
  const VerifyReport damaged = core->verify().value();
  EXPECT_EQ(damaged.slots, whole.slots);
  EXPECT_EQ(damaged.bytes, whole.bytes);
  ASSERT_EQ(damaged.defects.size(), 2u);
  std::string all = damaged.defects[0] + damaged.defects[1];
  EXPECT_NE(all.find("final_norm.weight"), std::string::npos) << all;
  EXPECT_NE(all.find(constant), std::string::npos) << all;
  // What is damaged is not preserved by a partial reload, and is healed by a complete one.
  expect_error(reload(*core, model_a(), {.scope = {.layers = {0}}}), ErrorCode::kCorrupt,
               "final_norm.weight");
  ASSERT_TRUE(reload(*core, model_a()).ok());
  EXPECT_TRUE(core->verify().value().defects.empty());
}

// ------------------------------------------------------------------------------ refusals

TEST(ReloadOptionsRefusals, AnOptionThatIsWrongOrWithoutEffectIsNamedAndNothingBegins) {
  const auto core = open_core(test_options(model_a()));
  const std::vector<std::pair<std::string, ReloadOptions>> wrong = {
      {"warp", {.commit = "warp"}},
      {"limits", {.commit = "copy", .max_extra_bytes = 9}},
      {"limits", {.max_pause_us = 9}},
      {"max_pause_us", {.commit = "auto", .max_pause_us = -1}},
      {"max_pause_us", {.commit = "auto", .max_pause_us = std::nan("")}},
      {"undo_image", {.commit = "remap", .undo_image = true}},
      {"deadline_ms", {.deadline_ms = -1}},
      {"deadline_ms", {.deadline_ms = std::numeric_limits<std::int64_t>::max()}},
      {"version", {.version = std::string(kMaxVersionBytes + 1, 'v')}},
      {"control", {.version = "step\n7"}},
      {"no parameter", {.casts = {{"", "f32", "bf16"}}}},
      {"f31", {.casts = {{"weight", "f31", "bf16"}}}},
      {"casts", {.casts = {{"weight", "u8", "bf16"}}}},
      {"scope.layers", {.scope = {.layers = std::vector<std::int64_t>(kMaxScopeEntries + 1)}}},
  };
  for (const auto& [text, options] : wrong) {
    const Status begun = core->begin_reload(model_b(), options);
    ASSERT_FALSE(begun.ok()) << text;
    EXPECT_EQ(begun.error().code(), ErrorCode::kInvalidArgument) << text;
    EXPECT_NE(begun.error().message().find(text), std::string::npos) << begun.error().to_string();
    EXPECT_EQ(core->plan_reload(model_b(), options).error().code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(core->reload_phase(), ReloadPhase::kNone);
  EngineOptions automatic = test_options(model_a());
  automatic.commit = "auto";
  EXPECT_EQ(EngineCore::open(automatic).error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace holdfast::engine
