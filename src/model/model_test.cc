#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "device/cpu/cpu_device.h"
#include "model/decoder.h"
#include "model/rope_table.h"

namespace holdfast::model {
namespace {

config::RopeConfig published_rope() {
  return {.theta = 150000,
          .factor = 32,
          .beta_fast = 32,
          .beta_slow = 1,
          .original_max_positions = 4096,
          .truncate = false};
}

TEST(RopeTable, YarnBlendsBetweenTheCorrectionIndicesOfThePublishedModel) {
  const auto frequencies = rope_inverse_frequencies(published_rope(), 64);
  ASSERT_EQ(frequencies.size(), 32u);
  const double low = 8.0927791, high = 17.3980245;
  for (int i = 0; i < 32; ++i) {
    const double plain = std::pow(150000.0, -2.0 * i / 64.0);
    const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
    const double expected = plain / 32 * ramp + plain * (1 - ramp);
    EXPECT_NEAR(frequencies[static_cast<std::size_t>(i)] / expected, 1.0, 1e-6) << i;
  }
  EXPECT_NEAR(rope_concentration(published_rope()), 1.3465736f, 1e-6);
}

TEST(RopeTable, TheFixturesFrequenciesComeOut) {
  // gptoss-tiny-A: act.rope_inv_freq of the reference, first, inside the ramp, and last.
  const config::RopeConfig rope{.theta = 150000, .factor = 4, .beta_fast = 32, .beta_slow = 1,
                                .original_max_positions = 256, .truncate = false};
  const auto frequencies = rope_inverse_frequencies(rope, 32);
  ASSERT_EQ(frequencies.size(), 16u);
  EXPECT_FLOAT_EQ(frequencies[0], 1.0f);
  EXPECT_FLOAT_EQ(frequencies[2], 0.164527357f);
  EXPECT_FLOAT_EQ(frequencies[15], 3.51038284e-06f);
}

TEST(RopeTable, TruncatingWidensTheCorrectionRangeToWholeIndices) {
  config::RopeConfig rope = published_rope();
  rope.truncate = true;
  const auto truncated = rope_inverse_frequencies(rope, 64);
  const auto exact = rope_inverse_frequencies(published_rope(), 64);
  const double plain = std::pow(150000.0, -2.0 * 8 / 64.0);
  EXPECT_FLOAT_EQ(truncated[8], static_cast<float>(plain));
  EXPECT_NE(truncated[12], exact[12]);
}

TEST(RopeTable, WithoutScalingAnglesArePlainAndTablesAreRowsOfPositions) {
  const config::RopeConfig rope{.theta = 10000, .factor = 1};
  EXPECT_EQ(rope_concentration(rope), 1.0f);
  const RopeTables tables = make_rope_tables(rope, 8, 5);
  ASSERT_EQ(tables.cos.size(), 5u * 4u);
  EXPECT_EQ(tables.cos[0], 1.0f);
  EXPECT_EQ(tables.sin[0], 0.0f);
  EXPECT_NEAR(tables.cos[3 * 4 + 0], std::cos(3.0), 1e-7);
  EXPECT_NEAR(tables.sin[3 * 4 + 1], std::sin(3.0 * 0.1), 1e-7);
}

// ------------------------------------------------------------------------------ definition

config::ModelConfig small_config() {
  config::ModelConfig config;
  config.architecture = config::Architecture::kGptOss;
  config.model_type = "gpt_oss";
  config.layer_count = 3;
  config.hidden_size = 64;
  config.intermediate_size = 32;
  config.query_head_count = 4;
  config.kv_head_count = 2;
  config.head_dim = 16;
  config.vocab_size = 96;
  config.expert_count = 4;
  config.experts_per_token = 2;
  config.sliding_window = 8;
  config.max_positions = 128;
  config.rope = {.theta = 10000, .factor = 4, .original_max_positions = 32, .truncate = false};
  config.expert_format.scheme = config::ExpertScheme::kMxfp4;
  config.layer_kinds = {config::AttentionKind::kSliding, config::AttentionKind::kFull,
                        config::AttentionKind::kSliding};
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

TEST(GptOss, ParametersAreThePublishedNames) {
  storage::Registry registry;
  const auto decoder = define_decoder(registry, small_config(), small_options());
  ASSERT_TRUE(decoder.ok()) << decoder.error().to_string();
  std::set<std::string> names;
  for (const auto& parameter : registry.parameters()) names.insert(parameter.name);
  for (const char* name :
       {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight",
        "model.layers.2.input_layernorm.weight", "model.layers.2.post_attention_layernorm.weight",
        "model.layers.2.self_attn.q_proj.weight", "model.layers.2.self_attn.k_proj.bias",
        "model.layers.2.self_attn.v_proj.weight", "model.layers.2.self_attn.o_proj.bias",
        "model.layers.2.self_attn.sinks", "model.layers.2.mlp.router.weight",
        "model.layers.2.mlp.router.bias", "model.layers.2.mlp.experts.gate_up_proj_blocks",
        "model.layers.2.mlp.experts.down_proj_bias"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_EQ(names.size(), 3u + 3u * (2 + 8 + 1 + 2 + 6));
  EXPECT_FALSE(names.contains("model.layers.3.input_layernorm.weight"));
}

TEST(GptOss, QueryKeyAndValueShareOneSlotInThatOrder) {
  storage::Registry registry;
  const auto decoder = define_decoder(registry, small_config(), small_options());
  ASSERT_TRUE(decoder.ok());
  const auto parameter = [&registry](const std::string& name) {
    return registry.parameters()[registry.find_parameter("model.layers.1.self_attn." + name)
                                     ->index()];
  };
  const auto q = parameter("q_proj.weight"), k = parameter("k_proj.weight"),
             v = parameter("v_proj.weight");
  EXPECT_EQ(q.slot, k.slot);
  EXPECT_EQ(q.slot, v.slot);
  EXPECT_EQ(registry.slot(*q.slot).spec.shape, (tensor::Shape{4 * 16 + 2 * 2 * 16, 64}));
  EXPECT_EQ(q.offset_bytes, 0u);
  EXPECT_EQ(k.offset_bytes, 64u * 64u * 2u);
  EXPECT_EQ(v.offset_bytes, 96u * 64u * 2u);
}

TEST(GptOss, EveryLayerHasItsConstantsAndAllAreSlots) {
  storage::Registry registry;
  const auto decoder = define_decoder(registry, small_config(), small_options());
  ASSERT_TRUE(decoder.ok());
  const auto names = (*decoder)->experts_constant_slots();
  EXPECT_EQ(names.size(), 3u * 3u);
  for (const std::string& name : names) {
    const auto slot = registry.find_slot(name);
    ASSERT_TRUE(slot.has_value()) << name;
    EXPECT_EQ(registry.slot(*slot).spec.slot_class, storage::SlotClass::kConstant);
    EXPECT_EQ(registry.slot(*slot).spec.arena, "experts.constants");
  }
}

TEST(GptOss, AStepIsCapturedWithEveryAddressAtHome) {
  const auto device = device::make_cpu_device();
  storage::Registry registry;
  const auto decoder = define_decoder(registry, small_config(), small_options());
  ASSERT_TRUE(decoder.ok());
  ASSERT_TRUE(registry.seal(*device).ok());
  const auto stream = device->create_stream(1).value();
  const auto kernels = ops::make_cpu_reference_kernels();
  const ops::OpContext context{.stream = *stream, .kernels = *kernels};
  const auto graph = device::capture(*stream, registry, "step",
                                     [&] { return (*decoder)->step(context, 8); });
  ASSERT_TRUE(graph.ok()) << graph.error().to_string();
  // Norm, qkv, rope, kv write, attention, out, norm, router, top-k, and the experts' own.
  EXPECT_GE((*graph)->manifest().nodes.size(), 1u + 3u * 10u + 3u);
  std::set<std::string> homes;
  for (const auto& entry : (*graph)->manifest().entries) {
    const auto slot = registry.resolve(entry.range.begin);
    ASSERT_TRUE(slot.has_value());
    homes.insert(registry.slot(*slot).spec.name);
  }
  for (const std::string& name : (*decoder)->experts_constant_slots()) {
    EXPECT_TRUE(homes.contains(name)) << name << ": the captured kernels read it from memory";
  }
  EXPECT_TRUE(homes.contains("layers.2.attention.sinks"));
  EXPECT_TRUE(homes.contains("rope.cos"));
}

TEST(GptOss, OptionsOutOfRangeAreNamed) {
  const auto message = [](const std::function<void(DecoderOptions&)>& spoil) {
    DecoderOptions options = small_options();
    spoil(options);
    storage::Registry registry;
    const auto decoder = define_decoder(registry, small_config(), options);
    EXPECT_FALSE(decoder.ok());
    return decoder.ok() ? std::string() : decoder.error().message();
  };
  EXPECT_NE(message([](DecoderOptions& o) { o.max_rows = 0; }).find("max_rows is 0"),
            std::string::npos);
  EXPECT_NE(message([](DecoderOptions& o) { o.max_sequences = -3; }).find("max_sequences is -3"),
            std::string::npos);
  EXPECT_NE(message([](DecoderOptions& o) { o.page_count = 0; }).find("page_count is 0"),
            std::string::npos);
  EXPECT_NE(message([](DecoderOptions& o) { o.max_context = 129; }).find("max_context is 129"),
            std::string::npos);
}

}  // namespace
}  // namespace holdfast::model
