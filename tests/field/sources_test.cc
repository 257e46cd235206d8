// Faults of what a sender sends: a tensor left out, packed by somebody else, of one shard only, in
// another order, under other names, in another precision. Refused before anything changes, or
// without effect.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "reload/reload_fixture.h"

namespace holdfast::field {
namespace {

using reload::CommitStrategy;
using reload::testing::content;
using reload::testing::Engine;
using reload::testing::FakeSource;
using reload::testing::FakeTensor;
using reload::testing::snapshot;
using tensor::DType;
using tensor::Shape;
using ::testing::HasSubstr;

// An engine that serves A and is offered something else.
class FieldSource : public ::testing::Test {
 protected:
  FieldSource() {
    FakeSource a = engine_.source(1);
    engine_.reload(a, CommitStrategy::kRemap).value();
    engine_.transaction.reset();
  }

  FakeSource next() const { return engine_.source(2); }

  // `source` must be refused in these words, with nothing of the engine changed.
  void expect_refused(FakeSource& source, const std::vector<std::string>& says) {
    const auto before = snapshot(engine_);
    source.refresh();
    const Status status = engine_.prepare(source, CommitStrategy::kRemap);
    engine_.transaction.reset();
    ASSERT_FALSE(status.ok()) << says.front();
    for (const std::string& words : says) {
      EXPECT_THAT(status.error().message(), HasSubstr(words));
    }
    EXPECT_TRUE(snapshot(engine_) == before) << says.front();
    EXPECT_EQ(source.read_calls, 0u) << "refused before a byte was read";
  }

  // The tensor with another shape and as many bytes as that takes.
  static void reshape(FakeTensor& tensor, const Shape& shape) {
    tensor.spec.shape = shape;
    tensor.bytes.resize(tensor::byte_size(tensor.spec.dtype, shape).value());
  }

  Engine engine_;
};

TEST_F(FieldSource, WithoutAnyOneOfItsTensorsIsRefusedByTheTensorsName) {
  const std::size_t count = next().data.size();
  ASSERT_EQ(count, engine_.registry.parameters().size());
  for (std::size_t i = 0; i < count; ++i) {
    FakeSource source = next();
    const std::string name = source.data[i].spec.name;
    source.data.erase(source.data.begin() + static_cast<long>(i));
    expect_refused(source, {"tensor " + name + " is missing"});
  }
}

TEST_F(FieldSource, CannotDeliverWhatIsDerivedOrConstant) {
  for (const storage::Slot& slot : engine_.registry.slots()) {
    const bool computed = slot.spec.slot_class == storage::SlotClass::kDerived ||
                          slot.spec.slot_class == storage::SlotClass::kConstant;
    if (!computed) continue;
    FakeSource source = next();
    source.data.push_back({.spec = {slot.spec.name, slot.spec.dtype, slot.spec.shape},
                           .bytes = std::vector<std::byte>(slot.range.bytes)});
    expect_refused(source, {"tensor " + slot.spec.name});
  }
}

// Of a weight that is replicated the half of its rows; an expert of half its width; no expert.
TEST_F(FieldSource, WithAShardInsteadOfTheWholeIsRefusedWithBothShapes) {
  struct Case {
    const char* tensor;
    Shape shape;
  };
  const std::vector<Case> cases = {{"model.embed", {7, 10}},
                                   {"model.layers.1.q_proj.weight", {5, 5}},
                                   {"model.layers.2.experts.gate_blocks", {3, 4}},
                                   {"model.layers.2.experts.gate_scales", {2, 5}},
                                   {"model.layers.0.experts.gate_blocks", {0, 7}}};
  for (const Case& c : cases) {
    FakeSource source = next();
    const std::string whole = source.tensor(c.tensor).spec.shape.to_string();
    reshape(source.tensor(c.tensor), c.shape);
    expect_refused(source, {"tensor " + std::string(c.tensor), c.shape.to_string(), whole});
  }
}

// The same bytes laid out otherwise: as many elements, and refused all the same.
TEST_F(FieldSource, WithTheSameNumberOfElementsInAnotherShapeIsRefused) {
  struct Case {
    const char* tensor;
    Shape shape;
  };
  const std::vector<Case> cases = {{"model.layers.1.experts.gate_scales", {5, 3}},
                                   {"model.layers.1.experts.gate_scales", {15}},
                                   {"model.layers.1.experts.gate_blocks", {3, 7, 1}},
                                   {"model.layers.0.q_proj.weight", {10, 5}}};
  for (const Case& c : cases) {
    FakeSource source = next();
    source.tensor(c.tensor).spec.shape = c.shape;
    expect_refused(source, {"tensor " + std::string(c.tensor), c.shape.to_string()});
  }
}

TEST_F(FieldSource, WithTheNamesOfAWrapperIsRefusedAndToldTheNearestNames) {
  FakeSource prefixed = next();
  for (FakeTensor& tensor : prefixed.data) {
    tensor.spec.name = "base_model.model." + tensor.spec.name;
  }
  expect_refused(prefixed, {"base_model.model.model."});

  FakeSource infixed = next();
  infixed.tensor("model.layers.1.q_proj.weight").spec.name =
      "model.layers.1.q_proj.base_layer.weight";
  expect_refused(infixed, {"model.layers.1.q_proj.base_layer.weight",
                           "nearest: model.layers.1.q_proj.weight"});

  // Two senders of one model that call it differently: the second is not half understood.
  FakeSource second = next();
  for (FakeTensor& tensor : second.data) {
    if (tensor.spec.name.starts_with("model.layers.2.")) {
      tensor.spec.name = "language_" + tensor.spec.name;
    }
  }
  expect_refused(second, {"language_model.layers.2."});
}

TEST_F(FieldSource, OfAModelOfAnotherSizeIsRefusedByTheFieldThatDiffers) {
  const std::vector<std::pair<std::string, std::function<void(config::ModelConfig&)>>> cases = {
      {"hidden_size", [](config::ModelConfig& config) { config.hidden_size += 32; }},
      {"num_hidden_layers", [](config::ModelConfig& config) { config.layer_count += 1; }},
      {"num_local_experts", [](config::ModelConfig& config) { config.expert_count += 1; }},
      {"vocab_size", [](config::ModelConfig& config) { config.vocab_size += 1; }}};
  for (const auto& [field, change] : cases) {
    FakeSource source = next();
    change(source.model_config);
    expect_refused(source, {field});
  }
}

TEST_F(FieldSource, InAnotherPrecisionIsRefusedWithBothDtypes) {
  for (const char* name : {"model.layers.0.sinks", "model.embed"}) {
    FakeSource source = next();
    FakeTensor& tensor = source.tensor(name);
    tensor.spec.dtype = DType::kF32;
    reshape(tensor, Shape(tensor.spec.shape));
    expect_refused(source, {"tensor " + std::string(name), "f32", "bf16"});
  }
}

// Layers interleaved, shards in any order: which tensor comes when decides nothing.
TEST_F(FieldSource, InAnyOrderGivesTheSameBytes) {
  Engine cold;
  FakeSource of_cold = cold.source(2);
  cold.reload(of_cold, CommitStrategy::kRemap).value();
  const auto expected = content(cold.registry);
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    base::Rng rng(seed);
    FakeSource source = next();
    for (std::size_t i = source.data.size() - 1; i > 0; --i) {
      std::swap(source.data[i], source.data[rng.next_below(i + 1)]);
    }
    source.refresh();
    const auto strategy = seed % 2 == 0 ? CommitStrategy::kRemap : CommitStrategy::kCopy;
    const Status status = engine_.reload(source, strategy);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.error().to_string();
    EXPECT_TRUE(content(engine_.registry) == expected) << "seed " << seed;
    FakeSource a = engine_.source(1);
    ASSERT_TRUE(engine_.reload(a, strategy).ok());
  }
}

}  // namespace
}  // namespace holdfast::field
