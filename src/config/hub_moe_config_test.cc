// The configs of Qwen3-MoE and Mixtral: what the published files say, and every field that is
// refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "config/model_config.h"

namespace holdfast::config {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Fields = std::map<std::string, std::string>;

// As published with Qwen/Qwen3-30B-A3B.
Fields qwen3_30b() {
  return {{"model_type", R"("qwen3_moe")"},
          {"architectures", R"(["Qwen3MoeForCausalLM"])"},
          {"attention_bias", "false"},
          {"bos_token_id", "151643"},
          {"decoder_sparse_step", "1"},
          {"eos_token_id", "151645"},
          {"head_dim", "128"},
          {"hidden_act", R"("silu")"},
          {"hidden_size", "2048"},
          {"intermediate_size", "6144"},
          {"max_position_embeddings", "40960"},
          {"max_window_layers", "48"},
          {"mlp_only_layers", "[]"},
          {"moe_intermediate_size", "768"},
          {"norm_topk_prob", "true"},
          {"num_attention_heads", "32"},
          {"num_experts", "128"},
          {"num_experts_per_tok", "8"},
          {"num_hidden_layers", "48"},
          {"num_key_value_heads", "4"},
          {"rms_norm_eps", "1e-06"},
          {"rope_scaling", "null"},
          {"rope_theta", "1000000.0"},
          {"sliding_window", "null"},
          {"tie_word_embeddings", "false"},
          {"use_sliding_window", "false"},
          {"vocab_size", "151936"}};
}

// As published with mistralai/Mixtral-8x7B-v0.1.
Fields mixtral_8x7b() {
  return {{"model_type", R"("mixtral")"},
          {"architectures", R"(["MixtralForCausalLM"])"},
          {"attention_dropout", "0.0"},
          {"bos_token_id", "1"},
          {"eos_token_id", "2"},
          {"hidden_act", R"("silu")"},
          {"hidden_size", "4096"},
          {"intermediate_size", "14336"},
          {"max_position_embeddings", "32768"},
          {"num_attention_heads", "32"},
          {"num_experts_per_tok", "2"},
          {"num_hidden_layers", "32"},
          {"num_key_value_heads", "8"},
          {"num_local_experts", "8"},
          {"rms_norm_eps", "1e-05"},
          {"rope_theta", "1000000.0"},
          {"sliding_window", "null"},
          {"tie_word_embeddings", "false"},
          {"vocab_size", "32000"}};
}

// A field set to "" is left out.
Result<ModelConfig> parse(Fields fields, const Fields& changes = {}) {
  for (const auto& [key, value] : changes) fields[key] = value;
  std::string text;
  for (const auto& [key, value] : fields) {
    if (value.empty()) continue;
    text += std::string(text.empty() ? "{" : ",") + "\"" + key + "\":" + value;
  }
  return parse_model_config(text + "}");
}

std::string error_of(const Fields& fields, const Fields& changes) {
  const auto config = parse(fields, changes);
  return config.ok() ? "ok" : config.error().to_string();
}

ModelConfig read_golden(const std::string& name) {
  std::ifstream file(HF_SOURCE_DIR "/tests/golden/" + name + "/config.json");
  std::ostringstream text;
  text << file.rdbuf();
  const auto config = parse_model_config(text.str());
  EXPECT_TRUE(config.ok()) << config.error().to_string();
  return config.ok() ? *config : ModelConfig{};
}

void expect_plain_silu(const SwigluConfig& swiglu) {
  EXPECT_EQ(swiglu.alpha, 1.0f);
  EXPECT_EQ(swiglu.beta, 0.0f);
  EXPECT_TRUE(std::isinf(swiglu.limit));
}

TEST(Qwen3MoeConfig, ReadsThePublished30B) {
  const auto config = parse(qwen3_30b());
  ASSERT_TRUE(config.ok()) << config.error().message();
  EXPECT_EQ(config->architecture, Architecture::kQwen3Moe);
  EXPECT_EQ(config->model_type, "qwen3_moe");
  EXPECT_EQ(config->layer_count, 48);
  EXPECT_EQ(config->hidden_size, 2048);
  EXPECT_EQ(config->intermediate_size, 768);
  EXPECT_EQ(config->dense_intermediate_size, 6144);
  EXPECT_EQ(config->query_head_count, 32);
  EXPECT_EQ(config->kv_head_count, 4);
  EXPECT_EQ(config->head_dim, 128);
  EXPECT_EQ(config->expert_count, 128);
  EXPECT_EQ(config->experts_per_token, 8);
  EXPECT_EQ(config->vocab_size, 151936);
  EXPECT_EQ(config->rms_norm_eps, 1e-6);
  EXPECT_EQ(config->rope.theta, 1e6);
  EXPECT_EQ(config->rope.factor, 1.0);
  EXPECT_TRUE(config->query_key_norm);
  EXPECT_TRUE(config->renormalise);
  EXPECT_FALSE(config->attention_bias || config->attention_sinks || config->router_bias);
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_THAT(config->layer_kinds, Each(AttentionKind::kFull));
  EXPECT_EQ(config->layer_kinds.size(), 48u);
  EXPECT_THAT(config->dense_layers, IsEmpty());
  expect_plain_silu(config->swiglu);
  EXPECT_EQ(to_text(config->expert_format), "bf16, activations none, as hub");
}

TEST(Qwen3MoeConfig, WeightsAreRenormalisedOnlyIfTheFileSaysSo) {
  EXPECT_FALSE(parse(qwen3_30b(), {{"norm_topk_prob", ""}})->renormalise);
  EXPECT_FALSE(parse(qwen3_30b(), {{"norm_topk_prob", "false"}})->renormalise);
}

TEST(Qwen3MoeConfig, LayersWithoutExpertsAreThoseListedAndThoseBetweenTheSteps) {
  const Fields small = {{"num_hidden_layers", "6"}};
  const auto dense = [&](const std::string& step, const std::string& listed) {
    Fields changes = small;
    changes["decoder_sparse_step"] = step;
    changes["mlp_only_layers"] = listed;
    return parse(qwen3_30b(), changes)->dense_layers;
  };
  EXPECT_THAT(dense("2", ""), ElementsAre(0, 2, 4));
  EXPECT_THAT(dense("", "[5,1]"), ElementsAre(1, 5));
  EXPECT_THAT(dense("3", "[2]"), ElementsAre(0, 1, 2, 3, 4));
  const auto config = parse(qwen3_30b(), {{"mlp_only_layers", "[1]"}});
  EXPECT_TRUE(config->is_dense(1));
  EXPECT_FALSE(config->is_dense(0));
}

TEST(Qwen3MoeConfig, FieldsThatAreRefusedNameTheirValueAndWhatIsKnown) {
  const std::map<std::pair<std::string, std::string>, std::string> cases = {
      {{"attention_bias", "true"}, "attention_bias is true; this engine knows false"},
      {{"use_sliding_window", "true"}, "use_sliding_window is true; this engine knows false"},
      {{"hidden_act", R"("gelu")"}, "hidden_act is gelu; this engine knows silu"},
      {{"head_dim", ""}, "head_dim is missing"},
      {{"head_dim", "127"}, "head_dim is 127, expected a multiple of"},
      {{"num_experts", "4097"}, "num_experts is 4097, expected an integer from 1 to 4096"},
      {{"num_experts", "7"}, "num_experts_per_tok is 8, num_experts is only 7"},
      {{"moe_intermediate_size", ""}, "moe_intermediate_size is missing"},
      {{"intermediate_size", "0"}, "intermediate_size is 0, expected"},
      {{"norm_topk_prob", "1"}, "norm_topk_prob is 1, expected true or false"},
      {{"decoder_sparse_step", "0"}, "decoder_sparse_step is 0, expected an integer from 1"},
      {{"decoder_sparse_step", "49"}, "leave none of 48 layers with experts"},
      {{"mlp_only_layers", "[48]"}, "mlp_only_layers is [48], expected layers from 0 to 47"},
      {{"mlp_only_layers", R"(["0"])"}, "expected layers from 0 to 47"},
      {{"rope_scaling", R"({"rope_type":"linear"})"}, "rope_type is linear"},
      {{"num_key_value_heads", "5"}, "num_attention_heads is 32, expected a multiple of"},
      {{"tie_word_embeddings", R"("yes")"}, "tie_word_embeddings is \"yes\", expected true or"},
  };
  for (const auto& [change, says] : cases) {
    EXPECT_THAT(error_of(qwen3_30b(), {change}), HasSubstr(says)) << change.first;
  }
}

TEST(MixtralConfig, ReadsThePublished8x7B) {
  const auto config = parse(mixtral_8x7b());
  ASSERT_TRUE(config.ok()) << config.error().message();
  EXPECT_EQ(config->architecture, Architecture::kMixtral);
  EXPECT_EQ(config->head_dim, 128) << "of hidden_size and heads, as the file does not say";
  EXPECT_EQ(config->expert_count, 8);
  EXPECT_EQ(config->experts_per_token, 2);
  EXPECT_EQ(config->intermediate_size, 14336);
  EXPECT_EQ(config->vocab_size, 32000);
  EXPECT_TRUE(config->renormalise);
  EXPECT_FALSE(config->query_key_norm);
  EXPECT_FALSE(config->attention_bias || config->attention_sinks || config->router_bias);
  EXPECT_THAT(config->layer_kinds, Each(AttentionKind::kFull));
  expect_plain_silu(config->swiglu);
  EXPECT_EQ(parse(mixtral_8x7b(), {{"head_dim", "64"}})->head_dim, 64);
  EXPECT_TRUE(parse(mixtral_8x7b(), {{"tie_word_embeddings", "true"}})->tied_embeddings);
}

TEST(MixtralConfig, AWindowIsThatOfEveryLayer) {
  const auto config = parse(mixtral_8x7b(), {{"sliding_window", "4096"}});
  EXPECT_EQ(config->sliding_window, 4096);
  EXPECT_THAT(config->layer_kinds, Each(AttentionKind::kSliding));
}

TEST(MixtralConfig, FieldsThatAreRefusedNameTheirValueAndWhatIsKnown) {
  const std::map<std::pair<std::string, std::string>, std::string> cases = {
      {{"num_local_experts", ""}, "num_local_experts is missing"},
      {{"num_local_experts", "1"}, "num_experts_per_tok is 2, num_local_experts is only 1"},
      {{"num_attention_heads", "24"}, "hidden_size is 4096, expected a multiple of num_attention"},
      {{"sliding_window", "0"}, "sliding_window is 0, expected an integer from 1"},
      {{"hidden_act", R"("relu")"}, "hidden_act is relu"},
      {{"rms_norm_eps", "0"}, "rms_norm_eps is 0"},
      {{"rope_theta", ""}, "rope_theta is missing"},
      {{"vocab_size", "-1"}, "vocab_size is -1"},
  };
  for (const auto& [change, says] : cases) {
    EXPECT_THAT(error_of(mixtral_8x7b(), {change}), HasSubstr(says)) << change.first;
  }
}

TEST(HubMoeConfig, TheTinyModelsAreRead) {
  const ModelConfig qwen = read_golden("qwen3moe-tiny-bf16");
  EXPECT_EQ(qwen.expert_count, 6);
  EXPECT_EQ(qwen.intermediate_size, 128);
  const ModelConfig fp8 = read_golden("qwen3moe-tiny-fp8");
  EXPECT_EQ(to_text(fp8.expert_format), "fp8-block, activations fp8-token-group, as fp8 block");
  EXPECT_EQ(check_replaceable(qwen, fp8).error().code(), ErrorCode::kMismatch);
  EXPECT_EQ(read_golden("mixtral-tiny-bf16").head_dim, 32);
}

TEST(HubMoeConfig, WhatShapesGraphsMustBeEqualToReplace) {
  const auto live = parse(qwen3_30b());
  const std::map<std::pair<std::string, std::string>, std::string> cases = {
      {{"norm_topk_prob", "false"}, "norm_topk_prob is true in the live model and false"},
      {{"mlp_only_layers", "[3]"}, "dense layers is [] in the live model and [3]"},
      {{"intermediate_size", "64"}, "dense intermediate_size is 6144"},
      {{"tie_word_embeddings", "true"}, "tie_word_embeddings is false"},
  };
  for (const auto& [change, says] : cases) {
    const auto next = parse(qwen3_30b(), {change});
    EXPECT_THAT(check_replaceable(*live, *next).error().message(), HasSubstr(says));
  }
}

}  // namespace
}  // namespace holdfast::config
