#include "engine/read_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/checkpoint.h"
#include "engine/test_support.h"

namespace holdfast::engine {
namespace {

using testing::HasSubstr;

// The values of a BF16 tensor as its file has them: the upper half of a float32.
std::vector<float> values_in_file(const std::string& directory, const std::string& name) {
  const auto checkpoint = checkpoint::Checkpoint::open(directory).value();
  const checkpoint::LocatedTensor* tensor = checkpoint->find(name);
  const auto bytes = tensor->file->data(*tensor->entry);
  std::vector<float> values;
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
    const std::uint32_t bits = (std::to_integer<std::uint32_t>(bytes[i]) << 16) |
                               (std::to_integer<std::uint32_t>(bytes[i + 1]) << 24);
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    values.push_back(value);
  }
  return values;
}

const std::string kResident = "model.layers.1.self_attn.k_proj.weight";

TEST(ReadTensor, GivesTheLiveValuesBeforeAndAfterAReload) {
  const auto core = open_core(test_options(model_a()));
  const storage::Registry& registry = core->runtime().registry();
  const auto old_values = values_in_file(model_a(), kResident);
  const auto new_values = values_in_file(model_b(), kResident);
  ASSERT_NE(old_values, new_values);
  EXPECT_EQ(read_tensor(registry, kResident, 1u << 30).value(), old_values);
  ASSERT_TRUE(core->begin_reload(model_b(), {}).ok());
  ASSERT_TRUE(core->finish_reload().ok());
  EXPECT_EQ(read_tensor(registry, kResident, 1u << 30).value(), new_values);
  const std::vector<float> five(new_values.begin(), new_values.begin() + 5);
  EXPECT_EQ(read_tensor(registry, kResident, 5).value(), five);
  EXPECT_TRUE(read_tensor(registry, kResident, 0).value().empty());
}

TEST(ReadTensor, EveryLoadableTensorIsReadOrItsPackedSlotsAreNamed) {
  const auto core = open_core(test_options(model_a()));
  const storage::Registry& registry = core->runtime().registry();
  std::size_t packed = 0;
  for (const storage::ParameterSpec& spec : registry.parameters()) {
    const auto values = read_tensor(registry, spec.name, 3);
    if (spec.slot) {
      ASSERT_TRUE(values.ok()) << values.error().message();
      EXPECT_EQ(values->size(), 3u) << spec.name;
      continue;
    }
    ++packed;
    ASSERT_FALSE(values.ok());
    EXPECT_EQ(values.error().code(), ErrorCode::kUnsupported);
    EXPECT_THAT(values.error().message(), HasSubstr("packed form, in layers."));
  }
  EXPECT_GT(packed, 0u);
}

TEST(ReadTensor, AnUnknownNameIsAnsweredWithTheNearest) {
  const auto core = open_core(test_options(model_a()));
  const auto values =
      read_tensor(core->runtime().registry(), "model.layers.1.self_attn.k_proj.wait", 1);
  ASSERT_FALSE(values.ok());
  EXPECT_EQ(values.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(values.error().message(), HasSubstr("nearest: " + kResident));
}

TEST(ReadTensor, PoisonedWeightsAreNotShown) {
  const auto core = open_core(test_options(model_a()));
  core->runtime().registry().poison();
  EXPECT_EQ(read_tensor(core->runtime().registry(), kResident, 1).error().code(),
            ErrorCode::kPoisoned);
}

}  // namespace
}  // namespace holdfast::engine
