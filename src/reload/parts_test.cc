// Parameters that are published as one tensor for each expert: the same bytes in the same places,
// scopes by expert, pushes by the published names, errors that name the expert's own tensor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reload/plan.h"
#include "reload/reload_fixture.h"
#include "reload/scope.h"

namespace holdfast::reload {
namespace {

using testing::content;
using testing::Engine;
using testing::FakeSource;
using testing::FakeTensor;
using ::testing::HasSubstr;
using testing::Snapshot;
using testing::snapshot;

constexpr auto kRemap = CommitStrategy::kRemap;
constexpr const char* kPart = "model.layers.1.experts.2.gate_blocks";
constexpr const char* kPartScale = "model.layers.1.experts.2.gate_scales";

std::string text_of(const Status& status) {
  return status.ok() ? "ok" : status.error().to_string();
}

void erase(FakeSource& source, std::string_view name) {
  std::erase_if(source.data, [&](const FakeTensor& tensor) { return tensor.spec.name == name; });
  source.refresh();
}

TEST(Parts, OneTensorForEachExpertMakesTheBytesThatTheWholeMakes) {
  Engine whole;
  FakeSource one = whole.source(1);
  ASSERT_EQ(text_of(whole.reload(one, kRemap)), "ok");
  Engine parts({.parts = true});
  FakeSource many = parts.source(1);
  ASSERT_GT(many.data.size(), one.data.size());
  ASSERT_EQ(text_of(parts.reload(many, kRemap)), "ok");
  EXPECT_EQ(content(parts.registry), content(whole.registry));
}

TEST(Parts, AllRowsUnderTheParametersOwnNameAreWelcomeToo) {
  Engine whole;
  Engine parts({.parts = true});
  FakeSource one = whole.source(1);
  ASSERT_EQ(text_of(whole.reload(one, kRemap)), "ok");
  FakeSource again = whole.source(1);
  ASSERT_EQ(text_of(parts.reload(again, kRemap)), "ok");
  EXPECT_EQ(content(parts.registry), content(whole.registry));
}

TEST(Parts, AMissingExpertIsNamedByItsOwnTensor) {
  Engine engine({.parts = true});
  FakeSource source = engine.source(1);
  erase(source, kPart);
  const auto status = engine.reload(source, kRemap);
  EXPECT_THAT(text_of(status), HasSubstr(std::string("tensor ") + kPart + " is missing"));
}

TEST(Parts, AllExpertsMissingNameTheFirst) {
  Engine engine({.parts = true});
  FakeSource source = engine.source(1);
  for (const char* expert : {"0", "1", "2"}) {
    erase(source, std::string("model.layers.1.experts.") + expert + ".gate_blocks");
  }
  EXPECT_THAT(text_of(engine.reload(source, kRemap)),
              HasSubstr("tensor model.layers.1.experts.0.gate_blocks is missing"));
}

TEST(Parts, AnExpertOfAnotherShapeIsRefusedWithBothShapes) {
  Engine engine({.parts = true});
  FakeSource source = engine.source(1);
  source.tensor(kPart).spec.shape = {1, 7};
  source.refresh();
  EXPECT_THAT(text_of(engine.reload(source, kRemap)),
              HasSubstr(std::string("tensor ") + kPart + ": shape [1, 7], expected [7]"));
}

TEST(Parts, AnExpertThatComesTwiceIsRefused) {
  Engine engine({.parts = true});
  FakeSource source = engine.source(1);
  source.data.push_back(source.tensor(kPart));
  source.refresh();
  EXPECT_THAT(text_of(engine.reload(source, kRemap)),
              HasSubstr(std::string("tensor ") + kPart + " comes twice"));
}

TEST(Parts, RowsOfOneExpertAreRefused) {
  Engine engine({.parts = true});
  FakeSource source = engine.source(1);
  source.tensor(kPart).spec.rows = RowRange{.begin = 0, .count = 1};
  source.refresh();
  EXPECT_THAT(text_of(engine.reload(source, kRemap)), HasSubstr("comes whole, not by rows"));
}

// A scope of one expert, by number and by its tensors' names: only its bytes are read, and the
// others keep theirs.
class PartScope : public ::testing::TestWithParam<bool> {};

TEST_P(PartScope, OneExpertIsReplacedAndTheOthersKeepTheirBytes) {
  Engine engine({.parts = true});
  FakeSource first = engine.source(1);
  ASSERT_EQ(text_of(engine.reload(first, kRemap)), "ok");
  Scope scope;
  if (GetParam()) {
    scope.parameters = {kPart, kPartScale};
  } else {
    scope.experts = {{1, 2}};
  }
  auto next = std::make_unique<FakeSource>(engine.source(2));
  FakeSource mixed = engine.source(1);
  for (const char* name : {kPart, kPartScale}) mixed.tensor(name).bytes = next->tensor(name).bytes;
  mixed.refresh();
  const std::uint64_t selected = next->tensor(kPart).bytes.size() +
                                 next->tensor(kPartScale).bytes.size();
  FakeSource& inner = *next;
  auto source = make_scoped_source(std::move(next), engine.registry, scope).value();
  auto plan = make_plan(engine.registry, engine.model_config, *source,
                        {.strategy = kRemap, .scope = scope})
                  .value();
  engine.transaction =
      Transaction::begin(engine.registry, std::move(plan), {.clock = &engine.clock}).value();
  ASSERT_EQ(text_of(engine.transaction->stage(*source, *engine.stream)), "ok");
  ASSERT_EQ(text_of(engine.transaction->prepare()), "ok");
  ASSERT_EQ(text_of(engine.transaction->commit()), "ok");
  EXPECT_EQ(inner.bytes_read, selected);

  Engine cold({.parts = true});
  ASSERT_EQ(text_of(cold.reload(mixed, kRemap)), "ok");
  EXPECT_EQ(content(engine.registry), content(cold.registry));
}

INSTANTIATE_TEST_SUITE_P(ByNumberAndByName, PartScope, ::testing::Bool());

TEST(Parts, APromisedDigestOfOneExpertIsCheckedByItsOwnName) {
  Engine engine({.parts = true});
  FakeSource source = engine.source(1);
  const auto stage = [&](base::Digest of_part) -> Status {
    PlanOptions options{.strategy = kRemap};
    options.expected_digests = {
        {kPart, of_part}, {kPartScale, base::digest_of(source.tensor(kPartScale).bytes)}};
    HF_ASSIGN(auto plan, make_plan(engine.registry, engine.model_config, source, options));
    HF_ASSIGN(engine.transaction,
              Transaction::begin(engine.registry, std::move(plan), {.clock = &engine.clock}));
    return engine.transaction->stage(source, *engine.stream);
  };
  const base::Digest right = base::digest_of(source.tensor(kPart).bytes);
  EXPECT_EQ(text_of(stage(right)), "ok");
  const base::Digest wrong = base::digest_of(source.tensor(kPartScale).bytes);
  const std::string refused = text_of(stage(wrong));
  EXPECT_THAT(refused, HasSubstr(std::string("tensor ") + kPart + ": its bytes have digest " +
                                 right.to_hex() + ", the publisher promised " + wrong.to_hex()));
}

TEST(Parts, TheyArePushedByTheirPublishedNames) {
  Engine engine({.parts = true});
  FakeSource b = engine.source(2);
  auto plan = make_plan(engine.registry, engine.model_config, b,
                        {.strategy = kRemap, .pushed = true})
                  .value();
  engine.transaction =
      Transaction::begin(engine.registry, std::move(plan), {.clock = &engine.clock}).value();
  for (auto tensor = b.data.rbegin(); tensor != b.data.rend(); ++tensor) {
    Fragment fragment;
    fragment.tensor = tensor->spec.name;
    fragment.transaction = engine.transaction->id();
    ASSERT_EQ(text_of(engine.transaction->put(fragment, tensor->bytes, *engine.stream)), "ok");
  }
  // One expert's tensor is among the names that are nearest.
  Fragment unknown;
  unknown.tensor = std::string(kPart) + "x";
  unknown.transaction = engine.transaction->id();
  EXPECT_THAT(text_of(engine.transaction->put(unknown, b.tensor(kPart).bytes, *engine.stream)),
              HasSubstr(std::string("nearest: ") + kPart + ", "));
  // A byte past one expert is not the next expert's.
  const FakeTensor& part = b.tensor(kPart);
  Fragment past;
  past.tensor = kPart;
  past.transaction = engine.transaction->id();
  past.offset_bytes = part.bytes.size();
  EXPECT_THAT(text_of(engine.transaction->put(past, std::span(part.bytes).first(1),
                                              *engine.stream)),
              HasSubstr("it has 7 bytes"));
}

TEST(Parts, APromisedDigestOfOneExpertIsCheckedWhenItsBytesArePushed) {
  for (const char* broken : {"", kPart, kPartScale}) {
    Engine engine({.parts = true});
    FakeSource b = engine.source(2);
    PlanOptions options{.strategy = kRemap, .pushed = true};
    for (const FakeTensor& tensor : b.data) {
      options.expected_digests.emplace(tensor.spec.name, base::digest_of(tensor.bytes));
    }
    const base::Digest other = base::digest_of(std::span<const std::byte>());
    if (*broken != 0) options.expected_digests.at(broken) = other;
    auto plan = make_plan(engine.registry, engine.model_config, b, options);
    ASSERT_TRUE(plan.ok()) << plan.error().to_string();
    engine.transaction =
        Transaction::begin(engine.registry, *std::move(plan), {.clock = &engine.clock}).value();
    Status pushed;
    for (const FakeTensor& tensor : b.data) {
      Fragment fragment;
      fragment.tensor = tensor.spec.name;
      fragment.transaction = engine.transaction->id();
      pushed = engine.transaction->put(fragment, tensor.bytes, *engine.stream);
      if (!pushed.ok()) break;
    }
    if (pushed.ok()) pushed = engine.transaction->finish_staging(*engine.stream);
    if (*broken == 0) {
      EXPECT_EQ(text_of(pushed), "ok");
    } else {
      EXPECT_THAT(text_of(pushed),
                  HasSubstr(std::string("tensor ") + broken + ": its bytes have digest"));
    }
  }
}

TEST(Parts, APushedModelEqualsALoadedOne) {
  Engine engine({.parts = true});
  FakeSource b = engine.source(2);
  auto plan = make_plan(engine.registry, engine.model_config, b,
                        {.strategy = kRemap, .pushed = true})
                  .value();
  engine.transaction =
      Transaction::begin(engine.registry, std::move(plan), {.clock = &engine.clock}).value();
  for (const FakeTensor& tensor : b.data) {
    Fragment fragment;
    fragment.tensor = tensor.spec.name;
    fragment.transaction = engine.transaction->id();
    ASSERT_EQ(text_of(engine.transaction->put(fragment, tensor.bytes, *engine.stream)), "ok");
  }
  ASSERT_EQ(text_of(engine.transaction->finish_staging(*engine.stream)), "ok");
  ASSERT_EQ(text_of(engine.transaction->prepare()), "ok");
  ASSERT_EQ(text_of(engine.transaction->commit()), "ok");
  Engine cold({.parts = true});
  FakeSource again = cold.source(2);
  ASSERT_EQ(text_of(cold.reload(again, kRemap)), "ok");
  EXPECT_EQ(content(engine.registry), content(cold.registry));
}

TEST(Parts, PartsThatAreNotTheRowsOfTheirParameterAreRefused) {
  storage::Registry registry;
  const auto bind = [&](std::vector<std::string> names, tensor::Shape part) {
    const auto result = registry.bind({.name = "model.experts.w",
                                       .dtype = tensor::DType::kU8,
                                       .shape = {2, 6},
                                       .slot = {},
                                       .part_names = std::move(names),
                                       .part_shape = part});
    return result.ok() ? std::string("ok") : result.error().to_string();
  };
  EXPECT_THAT(bind({"a"}, {6}), HasSubstr("published as 1 parts of shape [6]"));
  EXPECT_THAT(bind({"a", "b"}, {5}), HasSubstr("parts of shape [5]"));
  EXPECT_THAT(bind({"a", "a"}, {6}), HasSubstr("its part 'a' is taken"));
  EXPECT_THAT(bind({"a", ""}, {6}), HasSubstr("its part '' is empty"));
  EXPECT_THAT(bind({"a", "model.experts.w"}, {6}), HasSubstr("is taken"));
  EXPECT_EQ(bind({"a", "b"}, {2, 3}), "ok");
}

}  // namespace
}  // namespace holdfast::reload
