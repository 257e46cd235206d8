// Qwen3-MoE and Mixtral as decoders: their parameters, what their layers have, captures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <set>

#include "device/cpu/cpu_device.h"
#include "model/decoder.h"

namespace holdfast::model {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

config::ModelConfig small_config(config::Architecture architecture) {
  config::ModelConfig config;
  config.architecture = architecture;
  config.model_type = config::architecture_name(architecture);
  config.attention_bias = false;
  config.attention_sinks = false;
  config.router_bias = false;
  config.query_key_norm = architecture == config::Architecture::kQwen3Moe;
  config.layer_count = 3;
  config.hidden_size = 64;
  config.intermediate_size = 32;
  config.dense_intermediate_size = 48;
  config.query_head_count = 4;
  config.kv_head_count = 2;
  config.head_dim = 16;
  config.vocab_size = 96;
  config.expert_count = 4;
  config.experts_per_token = 2;
  config.max_positions = 128;
  config.rope = {.theta = 10000};
  config.swiglu = {.alpha = 1, .beta = 0, .limit = std::numeric_limits<float>::infinity()};
  config.expert_format = {.dialect = config::ExpertDialect::kHub};
  config.layer_kinds.assign(3, config::AttentionKind::kFull);
  return config;
}

DecoderOptions small_options() {
  return {.max_rows = 8,
          .max_sequences = 2,
          .page_size = 4,
          .page_count = 10,
          .max_context = 30,
          .experts_backend = std::nullopt};
}

std::set<std::string> published_names(const storage::Registry& registry) {
  std::set<std::string> names;
  for (const auto& parameter : registry.parameters()) {
    if (parameter.part_names.empty()) names.insert(parameter.name);
    names.insert(parameter.part_names.begin(), parameter.part_names.end());
  }
  return names;
}

std::unique_ptr<Decoder> define(storage::Registry& registry, const config::ModelConfig& config) {
  auto decoder = define_decoder(registry, config, small_options());
  EXPECT_TRUE(decoder.ok()) << decoder.error().to_string();
  return decoder.ok() ? std::move(decoder).value() : nullptr;
}

TEST(Qwen3Moe, ParametersAreThePublishedNames) {
  storage::Registry registry;
  ASSERT_NE(define(registry, small_config(config::Architecture::kQwen3Moe)), nullptr);
  const auto names = published_names(registry);
  for (const char* name :
       {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight",
        "model.layers.2.input_layernorm.weight", "model.layers.2.post_attention_layernorm.weight",
        "model.layers.2.self_attn.q_proj.weight", "model.layers.2.self_attn.o_proj.weight",
        "model.layers.2.self_attn.q_norm.weight", "model.layers.2.self_attn.k_norm.weight",
        "model.layers.2.mlp.gate.weight", "model.layers.2.mlp.experts.3.up_proj.weight"}) {
    EXPECT_THAT(names, Contains(name));
  }
  EXPECT_EQ(names.size(), 3u + 3u * (2 + 4 + 2 + 1 + 4 * 3));
}

TEST(Mixtral, ParametersAreThePublishedNames) {
  storage::Registry registry;
  ASSERT_NE(define(registry, small_config(config::Architecture::kMixtral)), nullptr);
  const auto names = published_names(registry);
  EXPECT_THAT(names, Contains("model.layers.1.block_sparse_moe.gate.weight"));
  EXPECT_THAT(names, Contains("model.layers.1.block_sparse_moe.experts.0.w3.weight"));
  EXPECT_THAT(names, Not(Contains("model.layers.1.self_attn.q_norm.weight")));
  EXPECT_EQ(names.size(), 3u + 3u * (2 + 4 + 1 + 4 * 3));
}

TEST(Qwen3Moe, ADenseLayerHasOneMlpWhoseGateAndUpShareASlot) {
  config::ModelConfig config = small_config(config::Architecture::kQwen3Moe);
  config.dense_layers = {1};
  storage::Registry registry;
  const auto decoder = define(registry, config);
  ASSERT_NE(decoder, nullptr);
  const auto names = published_names(registry);
  EXPECT_THAT(names, Contains("model.layers.1.mlp.down_proj.weight"));
  EXPECT_THAT(names, Not(Contains("model.layers.1.mlp.gate.weight")));
  EXPECT_EQ(decoder->experts_constant_slots().size(), 2u * 3u);
  const auto& gate = registry.parameters()[registry.find_parameter(
      "model.layers.1.mlp.gate_proj.weight")->index()];
  const auto& up = registry.parameters()[registry.find_parameter(
      "model.layers.1.mlp.up_proj.weight")->index()];
  EXPECT_EQ(gate.slot, up.slot);
  EXPECT_EQ(gate.offset_bytes, 0u);
  EXPECT_EQ(up.offset_bytes, 48u * 64u * 2u);
}

TEST(Qwen3Moe, TiedEmbeddingsAreOneSlotUnderTwoNames) {
  config::ModelConfig config = small_config(config::Architecture::kQwen3Moe);
  config.tied_embeddings = true;
  storage::Registry registry;
  ASSERT_NE(define(registry, config), nullptr);
  EXPECT_EQ(registry.find_parameter("lm_head.weight"),
            registry.find_parameter("model.embed_tokens.weight"));
  EXPECT_FALSE(registry.find_slot("lm_head.weight").has_value());
}

TEST(HubModels, WithoutSinksTheirConstantIsMinusInfinity) {
  storage::Registry registry;
  ASSERT_NE(define(registry, small_config(config::Architecture::kMixtral)), nullptr);
  const auto slot = registry.find_slot("attention.no_sinks");
  ASSERT_TRUE(slot.has_value());
  const auto bytes = registry.constant_value(*slot);
  ASSERT_EQ(bytes.size(), 4u * sizeof(float));
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(float)) {
    float value;
    std::memcpy(&value, bytes.data() + i, sizeof(value));
    EXPECT_EQ(value, -std::numeric_limits<float>::infinity());
  }
}

TEST(HubModels, AStepIsCapturedWithEveryAddressAtHome) {
  for (const auto architecture :
       {config::Architecture::kQwen3Moe, config::Architecture::kMixtral}) {
    config::ModelConfig config = small_config(architecture);
    if (architecture == config::Architecture::kQwen3Moe) config.dense_layers = {0};
    const auto device = device::make_cpu_device();
    storage::Registry registry;
    const auto decoder = define(registry, config);
    ASSERT_NE(decoder, nullptr);
    ASSERT_TRUE(registry.seal(*device).ok());
    const auto stream = device->create_stream(1).value();
    const auto kernels = ops::make_cpu_reference_kernels();
    const ops::OpContext context{.stream = *stream, .kernels = *kernels};
    const auto graph = device::capture(*stream, registry, "step",
                                       [&] { return decoder->step(context, 8); });
    ASSERT_TRUE(graph.ok()) << graph.error().to_string();
    std::set<std::string> homes;
    for (const auto& entry : (*graph)->manifest().entries) {
      homes.insert(registry.slot(*registry.resolve(entry.range.begin)).spec.name);
    }
    EXPECT_THAT(homes, Contains("attention.no_sinks"));
    EXPECT_THAT(homes, Contains("layers.1.router.weight"));
    if (architecture == config::Architecture::kMixtral) continue;
    EXPECT_THAT(homes, Contains("layers.2.attention.key_norm.weight"));
    EXPECT_THAT(homes, Contains("layers.0.mlp.down.weight"));
  }
}

TEST(HubModels, AFormatThatTheArchitectureDoesNotHaveIsRefused) {
  config::ModelConfig config = small_config(config::Architecture::kMixtral);
  config.expert_format = {};
  storage::Registry registry;
  const auto decoder = define_decoder(registry, config, small_options());
  ASSERT_FALSE(decoder.ok());
  EXPECT_THAT(decoder.error().to_string(), HasSubstr("unsupported: no experts of mixtral"));
}

}  // namespace
}  // namespace holdfast::model
