// Plans with options: scopes of whole units, layouts, shards, rows, casts, aliases, constants,
// digests and the choice of a strategy.
#include "reload/scope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "reload/plan.h"
#include "reload/reload_fixture.h"

namespace holdfast::reload {
namespace {

using testing::content;
using testing::Engine;
using testing::FakeSource;
using testing::FakeTensor;
using ::testing::HasSubstr;
using testing::Snapshot;
using testing::snapshot;
using testing::TinyOptions;

constexpr auto kRemap = CommitStrategy::kRemap;

// An engine that serves seed 1, and what the whole of seed 2 would be.
struct Live {
  explicit Live(const TinyOptions& options = {}) : engine(options), next(engine.source(2)) {
    FakeSource a = engine.source(1);
    engine.reload(a, kRemap).value();
  }
  // A source that holds exactly what `scope` selects of `next`.
  std::unique_ptr<Source> scoped(const Scope& scope) {
    auto whole = std::make_unique<FakeSource>(next.data);
    whole->model_config = next.model_config;
    return make_scoped_source(std::move(whole), engine.registry, scope).value();
  }
  Result<ReloadPlan> plan(Source& source, const PlanOptions& options) {
    return make_plan(engine.registry, engine.model_config, source, options);
  }
  Status reload(Source& source, const PlanOptions& options) {
    HF_ASSIGN(ReloadPlan made, plan(source, options));
    HF_ASSIGN(engine.transaction,
              Transaction::begin(engine.registry, std::move(made), {.clock = &engine.clock}));
    HF_TRY(engine.transaction->stage(source, *engine.stream));
    HF_TRY(engine.transaction->prepare());
    HF_TRY(engine.transaction->commit());
    return engine.transaction->verify();
  }
  Engine engine;
  FakeSource next;
};

std::string text_of(const Status& status) {
  return status.ok() ? "ok" : status.error().to_string();
}

template <typename T>
std::string text_of(const Result<T>& result) {
  return result.ok() ? "ok" : result.error().to_string();
}

PlanOptions options_for(Scope scope, CommitStrategy strategy = kRemap) {
  PlanOptions options;
  options.strategy = strategy;
  options.scope = std::move(scope);
  return options;
}

// What the engine must hold: seed 2 where `is_new` says so, seed 1 elsewhere, by a cold load.
std::vector<std::vector<std::byte>> mixed(
    const std::function<bool(const std::string& tensor, std::int64_t row)>& is_new) {
  Engine cold;
  FakeSource source = cold.source(1), next = cold.source(2);
  for (std::size_t i = 0; i < source.data.size(); ++i) {
    auto& to = source.data[i].bytes;
    const auto& from = next.data[i].bytes;
    const std::int64_t rows = source.data[i].spec.shape[0];
    const std::size_t row_bytes = to.size() / static_cast<std::size_t>(rows);
    for (std::int64_t row = 0; row < rows; ++row) {
      if (!is_new(source.data[i].spec.name, row)) continue;
      const auto at = static_cast<std::size_t>(row) * row_bytes;
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(at), row_bytes,
                  to.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  cold.reload(source, kRemap).value();
  return content(cold.registry);
}

class ScopeTest : public ::testing::TestWithParam<CommitStrategy> {};
INSTANTIATE_TEST_SUITE_P(Strategies, ScopeTest, ::testing::ValuesIn(kCommitStrategies),
                         [](const auto& tested) {
                           return std::string(commit_strategy_name(tested.param));
                         });

TEST_P(ScopeTest, ALayerIsReplacedAndEverythingElseKeepsItsBits) {
  Live live;
  const Scope scope{.layers = {1}, .experts = {}, .parameters = {}};
  const auto source = live.scoped(scope);
  const Status status = live.reload(*source, options_for(scope, GetParam()));
  ASSERT_TRUE(status.ok()) << text_of(status);
  EXPECT_TRUE(content(live.engine.registry) ==
              mixed([](const std::string& name, std::int64_t) {
                return name.starts_with("model.layers.1.");
              }));
  const TransactionReport report = live.engine.transaction->report();
  EXPECT_EQ(report.scope, "layers 1");
  EXPECT_GT(report.preserved_bytes, 0u);
  EXPECT_EQ(report.slots_moved, 0u);
  EXPECT_EQ(report.slots_changed, 4u);  // qkv, sinks, packed, sums
}

TEST_P(ScopeTest, OneExpertIsReplacedAndItsNeighboursKeepTheirBits) {
  Live live;
  const Scope scope{.layers = {}, .experts = {{2, 1}}, .parameters = {}};
  const auto source = live.scoped(scope);
  const Status status = live.reload(*source, options_for(scope, GetParam()));
  ASSERT_TRUE(status.ok()) << text_of(status);
  EXPECT_TRUE(content(live.engine.registry) ==
              mixed([](const std::string& name, std::int64_t row) {
                return name.starts_with("model.layers.2.experts") && row == 1;
              }));
}

TEST_P(ScopeTest, ANamedParameterAndWhatIsDerivedFromIt) {
  Live live;
  const Scope scope{.layers = {}, .experts = {}, .parameters = {"model.embed"}};
  const auto source = live.scoped(scope);
  ASSERT_TRUE(live.reload(*source, options_for(scope, GetParam())).ok());
  EXPECT_TRUE(content(live.engine.registry) ==
              mixed([](const std::string& name, std::int64_t) { return name == "model.embed"; }));
  EXPECT_EQ(live.engine.transaction->report().slots_changed, 2u);  // embed and embed.norm
}

TEST(Scope, ThatCutsThroughAUnitIsRefusedNamingUnitAndWhatIsLacking) {
  Live live;
  const struct {
    Scope scope;
    std::string unit, lacking;
  } cases[] = {
      {{.layers = {}, .experts = {}, .parameters = {"model.layers.0.q_proj.weight"}},
       "slot layers.0.qkv", "lacks model.layers.0.k_proj.weight"},
      {{.layers = {}, .experts = {}, .parameters = {"model.layers.1.experts.gate_scales"}},
       "weight and scale model.layers.1.experts.gate", "lacks model.layers.1.experts.gate_blocks"},
      {{.layers = {}, .experts = {{1, 0}}, .parameters = {"model.layers.1.experts.gate_blocks"}},
       "weight and scale model.layers.1.experts.gate", "rows 0 of it"},
  };
  for (const auto& tested : cases) {
    const auto made = live.plan(live.next, options_for(tested.scope));
    ASSERT_FALSE(made.ok()) << tested.unit;
    EXPECT_EQ(made.error().code(), ErrorCode::kMismatch);
    EXPECT_THAT(made.error().message(), HasSubstr(tested.unit));
    EXPECT_THAT(made.error().message(), HasSubstr(tested.lacking));
  }
}

TEST(Scope, OfWhatTheModelHasNotIsRefusedNamingBothValues) {
  Live live;
  const std::pair<Scope, std::string> cases[] = {
      {{.layers = {3}, .experts = {}, .parameters = {}}, "layer 3 of a model with 3 layers"},
      {{.layers = {-1}, .experts = {}, .parameters = {}}, "layer -1 of a model with 3 layers"},
      {{.layers = {}, .experts = {{0, 3}}, .parameters = {}}, "expert 3 of layer 0"},
      {{.layers = {}, .experts = {{7, 0}}, .parameters = {}}, "expert 0 of layer 7"},
      {{.layers = {}, .experts = {}, .parameters = {"model.embd"}}, "nearest: model.embed"},
  };
  for (const auto& [scope, says] : cases) {
    const auto made = live.plan(live.next, options_for(scope));
    ASSERT_FALSE(made.ok()) << says;
    EXPECT_EQ(made.error().code(), ErrorCode::kNotFound);
    EXPECT_THAT(made.error().message(), HasSubstr(says));
  }
}

TEST(Scope, ASourceWithMoreOrLessThanTheScopeIsRefused) {
  Live live;
  const Scope scope{.layers = {1}, .experts = {}, .parameters = {}};
  EXPECT_THAT(text_of(live.plan(live.next, options_for(scope))),
              HasSubstr("tensor model.embed is outside of the scope (layers 1); add its layer, "
                        "its expert or its name to the scope, or begin a reload of the whole"));
  FakeSource less(live.next.data);
  std::erase_if(less.data, [](const FakeTensor& tensor) {
    return !tensor.spec.name.starts_with("model.layers.1.") || tensor.spec.name.ends_with("sinks");
  });
  less.refresh();
  EXPECT_THAT(text_of(live.plan(less, options_for(scope))),
              HasSubstr("tensor model.layers.1.sinks is missing"));
  const Scope expert{.layers = {}, .experts = {{1, 2}}, .parameters = {}};
  const auto other = live.scoped({.layers = {}, .experts = {{1, 1}}, .parameters = {}});
  EXPECT_THAT(text_of(live.plan(*other, options_for(expert))),
              HasSubstr("tensor model.layers.1.experts.gate_blocks: the source has bytes [7, 14) "
                        "of it, wanted are [14, 21)"));
}

TEST(Scope, PartOfAModelThatWasNeverLoadedOrIsPoisonedIsRefused) {
  Engine cold;
  FakeSource source = cold.source(1);
  const PlanOptions options = options_for({.layers = {1}, .experts = {}, .parameters = {}});
  EXPECT_THAT(text_of(make_plan(cold.registry, cold.model_config, source, options)),
              HasSubstr("before the first load"));
  Live live;
  live.engine.registry.poison();
  const auto made = live.plan(live.next, options);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), ErrorCode::kPoisoned);
}

TEST(Scope, DamagedBytesAreNotPreserved) {
  Live live;
  const auto slot = live.engine.registry.find_slot("layers.0.qkv").value();
  device::Arena& arena = live.engine.registry.arena_of(slot);
  ASSERT_TRUE(arena.protect(device::Protection::kReadWrite).ok());
  live.engine.registry.view(slot).address[3] ^= std::byte{1};
  ASSERT_TRUE(arena.protect(device::Protection::kReadOnly).ok());
  const Scope scope{.layers = {1}, .experts = {}, .parameters = {}};
  const auto source = live.scoped(scope);
  EXPECT_THAT(text_of(live.reload(*source, options_for(scope))),
              HasSubstr("slot layers.0.qkv is to be preserved and has digest"));
  EXPECT_EQ(live.engine.registry.epoch().value, 1u);
}

TEST(PlanOptionsTest, AnotherLayoutOrShardIsRefusedNamingBothValues) {
  Live live;
  live.next.tensor("model.embed").spec.layout = "marlin";
  live.next.refresh();
  EXPECT_THAT(text_of(live.plan(live.next, options_for({}))),
              HasSubstr("tensor model.embed: layout marlin, expected checkpoint"));
  live.next.tensor("model.embed").spec.layout = "checkpoint";
  live.next.tensor("model.embed").spec.shard_index = 1;
  live.next.tensor("model.embed").spec.shard_count = 2;
  live.next.refresh();
  EXPECT_THAT(text_of(live.plan(live.next, options_for({}))),
              HasSubstr("shard 1 of 2, this engine holds shard 0 of 1"));
}

TEST(PlanOptionsTest, ATensorThatNamesAConstantIsRefusedSayingSo) {
  Live live;
  live.next.data.push_back(live.next.tensor("model.layers.0.sinks"));
  live.next.data.back().spec.name = "model.layers.0.experts.swiglu_alpha";
  live.next.refresh();
  EXPECT_THAT(text_of(live.plan(live.next, options_for({}))),
              HasSubstr("names constant slot layers.0.experts.swiglu_alpha"));
}

TEST(PlanOptionsTest, ACastMustBeDeclaredAndIsStated) {
  Live live;
  FakeTensor& embed = live.next.tensor("model.embed");
  std::vector<std::byte> wide(embed.bytes.size() * 2);
  cast_elements(tensor::DType::kBF16, embed.bytes, tensor::DType::kF32, wide);
  const auto narrow = embed.bytes;
  embed.bytes = wide;
  embed.spec.dtype = tensor::DType::kF32;
  live.next.refresh();
  EXPECT_THAT(text_of(live.plan(live.next, options_for({}))),
              HasSubstr("dtype f32, expected bf16; nothing is cast in silence"));
  PlanOptions options = options_for({});
  options.casts = {{.parameter = "embed", .from = tensor::DType::kF32, .to = tensor::DType::kBF16}};
  options.expected_digests = {{"model.embed", base::digest_of(wide)}};
  const auto made = live.plan(live.next, options);
  ASSERT_TRUE(made.ok()) << text_of(made);
  EXPECT_THAT(to_text(*made, live.engine.registry),
              HasSubstr("model.embed is cast from f32 to bf16 (narrowing)"));
  ASSERT_TRUE(live.reload(live.next, options).ok());
  const auto stored =
      live.engine.registry.view(live.engine.registry.find_slot("embed").value()).const_span();
  EXPECT_TRUE(std::equal(stored.begin(), stored.end(), narrow.begin(), narrow.end()));
}

TEST(PlanOptionsTest, EitherNameOfAnAliasFillsTheOneSlotAndBothMustBeEqual) {
  Live live({.layers = 2, .experts = 2, .alias = true});
  const auto stored = [&] {
    const auto view =
        live.engine.registry.view(live.engine.registry.find_slot("embed").value()).const_span();
    return std::vector<std::byte>(view.begin(), view.end());
  };
  FakeTensor both = live.next.tensor("model.embed");
  live.next.tensor("model.embed").spec.name = "lm_head.weight";
  live.next.refresh();
  ASSERT_TRUE(live.reload(live.next, options_for({})).ok());
  EXPECT_EQ(stored(), both.bytes);
  live.next.data.push_back(both);
  live.next.refresh();
  ASSERT_TRUE(live.reload(live.next, options_for({})).ok());
  live.next.data.back().bytes[7] ^= std::byte{1};
  const Status status = live.reload(live.next, options_for({}));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kMismatch);
  EXPECT_THAT(status.error().message(),
              HasSubstr("tensors lm_head.weight and model.embed are one parameter and differ"));
  EXPECT_THAT(status.error().message(), HasSubstr(base::digest_of(both.bytes).to_hex()));
  live.next.data.push_back(both);
  live.next.refresh();
  EXPECT_THAT(text_of(live.plan(live.next, options_for({}))), HasSubstr("comes twice"));
}

TEST(PlanOptionsTest, ConstantsFollowTheConfigOnlyWhenThatIsDeclared) {
  Live live;
  live.next.model_config.swiglu.limit = 9.0f;
  EXPECT_THAT(text_of(live.plan(live.next, options_for({}))),
              HasSubstr("swiglu_limit is 7 in the live model and 9 in the next; it decides"));
  PlanOptions options = options_for({});
  options.constants = ConstantsPolicy::kApply;
  EXPECT_THAT(text_of(live.plan(live.next, options)), HasSubstr("no new values were given"));
  const std::vector<float> limit(3, 9.0f);
  std::vector<std::byte> bytes(sizeof(float) * limit.size());
  std::memcpy(bytes.data(), limit.data(), bytes.size());
  options.constant_values["layers.1.experts.swiglu_limit"] = bytes;
  const Snapshot before = snapshot(live.engine);
  ASSERT_TRUE(live.reload(live.next, options).ok());
  const auto slot = live.engine.registry.find_slot("layers.1.experts.swiglu_limit").value();
  const auto held = live.engine.registry.view(slot).const_span();
  EXPECT_TRUE(std::equal(held.begin(), held.end(), bytes.begin(), bytes.end()));
  // And from now on: the next reload writes them again.
  ASSERT_TRUE(live.engine.reload(live.next, kRemap).error().code() == ErrorCode::kMismatch);
  live.engine.model_config = live.next.model_config;
  ASSERT_TRUE(live.engine.reload(live.next, kRemap).ok());
  EXPECT_TRUE(std::equal(held.begin(), held.end(), bytes.begin(), bytes.end()));
  EXPECT_NE(before.epoch, live.engine.registry.epoch().value);
}

TEST(PlanOptionsTest, AFieldThatShapesStorageIsRefusedWhateverThePolicy) {
  Live live;
  live.next.model_config.hidden_size = 12;
  PlanOptions options = options_for({});
  options.constants = ConstantsPolicy::kApply;
  EXPECT_THAT(text_of(live.plan(live.next, options)),
              HasSubstr("hidden_size is 0 in the live model and 12 in the next"));
}

TEST(PlanOptionsTest, RowsOfATensorMayComeAsSeveralEntriesInAnyOrder) {
  Live live;
  FakeSource pieces(live.next.data);
  FakeTensor& blocks = pieces.tensor("model.layers.0.experts.gate_blocks");
  const std::vector<std::byte> all = blocks.bytes;
  blocks.spec.rows = RowRange{.begin = 2, .count = 1};
  blocks.bytes.assign(all.begin() + 14, all.end());
  FakeTensor rest = blocks;
  rest.spec.rows = RowRange{.begin = 0, .count = 2};
  rest.bytes.assign(all.begin(), all.begin() + 14);
  pieces.data.push_back(rest);
  pieces.refresh();
  const Status status = live.reload(pieces, options_for({}));
  ASSERT_TRUE(status.ok()) << text_of(status);
  EXPECT_TRUE(content(live.engine.registry) ==
              mixed([](const std::string&, std::int64_t) { return true; }));
  pieces.data.back().spec.rows = RowRange{.begin = 0, .count = 3};
  pieces.refresh();
  EXPECT_THAT(text_of(live.plan(pieces, options_for({}))), HasSubstr("comes twice"));
}

TEST(PlanOptionsTest, AnUnexpectedDigestIsCorruptAndNamesBoth) {
  for (const CommitStrategy strategy : {kRemap, CommitStrategy::kCopy}) {
    Live live;
    PlanOptions options = options_for({}, strategy);
    for (const FakeTensor& tensor : live.next.data) {
      options.expected_digests[tensor.spec.name] = base::digest_of(tensor.bytes);
    }
    ASSERT_TRUE(live.reload(live.next, options).ok());
    const Snapshot before = snapshot(live.engine);
    const std::string name = "model.layers.1.experts.gate_blocks";
    live.next.tensor(name).bytes[20] ^= std::byte{1};
    const Status status = live.reload(live.next, options);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(status.error().message(), HasSubstr(name));
    EXPECT_THAT(status.error().message(), HasSubstr(options.expected_digests[name].to_hex()));
    EXPECT_THAT(status.error().message(),
                HasSubstr(base::digest_of(live.next.tensor(name).bytes).to_hex()));
    live.engine.transaction.reset();
    EXPECT_TRUE(snapshot(live.engine) == before);
  }
}

TEST(ChooseStrategy, TakesTheShortestPauseWithinTheLimitsOrSaysWhyNone) {
  const StrategyCost costs[] = {{kRemap, 1000, 10, 50.0},
                                {CommitStrategy::kCopy, 1000, 20, 500.0},
                                {CommitStrategy::kStream, 0, 10, 5000.0}};
  EXPECT_EQ(*choose_strategy(costs, {}), kRemap);
  EXPECT_EQ(*choose_strategy(costs, {.max_extra_bytes = 1009}), CommitStrategy::kStream);
  EXPECT_EQ(*choose_strategy(costs, {.max_extra_bytes = 1010}), kRemap);
  // Of a small model the stream is the quickest, and not free to fail.
  const StrategyCost small[] = {{CommitStrategy::kStream, 0, 10, 20.0}, {kRemap, 1000, 10, 120.0}};
  EXPECT_EQ(*choose_strategy(small, {}), kRemap);
  EXPECT_EQ(*choose_strategy(small, {.max_pause_us = 119}), CommitStrategy::kStream);
  const auto none = choose_strategy(costs, {.max_extra_bytes = 100, .max_pause_us = 4999});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(none.error().message(), HasSubstr("stream needs 10 bytes and 5000 us"));
  EXPECT_THAT(none.error().message(), HasSubstr("within 100 extra bytes and a pause of 4999 us"));
  const auto slow = choose_strategy(costs, {.max_pause_us = 1});
  EXPECT_THAT(slow.error().message(), HasSubstr("no strategy keeps within a pause of 1 us: "));
}

TEST(PlanOptionsTest, TextAndJsonStateStrategiesScopeAndKeylessState) {
  // For a smaller one a copy is quicker than the system calls of a remap.
  Live live({.layers = 3, .experts = 3, .big_rows = 20'000});
  PlanOptions options;
  const auto made = live.plan(live.next, options);
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(made->strategy_was_chosen);
  EXPECT_EQ(made->strategy, kRemap);
  const std::string text = to_text(*made, live.engine.registry);
  EXPECT_THAT(text, HasSubstr("1 -> 2 by remap (chosen)"));
  EXPECT_THAT(text, HasSubstr("scratch.sum (8 B): rewritten by every step"));
  EXPECT_THAT(text, HasSubstr("stream  0 B on the device"));
  const std::string json = to_json(*made, live.engine.registry);
  EXPECT_THAT(json, HasSubstr(R"("scope":"whole")"));
  EXPECT_THAT(json, HasSubstr(R"("strategy":"stream","peak_device_bytes":0)"));
  EXPECT_THAT(json, HasSubstr(R"("name":"layers.1.pack","slices":3,"of_slices":3)"));
}

}  // namespace
}  // namespace holdfast::reload
