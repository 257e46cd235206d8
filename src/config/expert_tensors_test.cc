// expert_tensors: names, dtypes and shapes of every dialect, as public checkpoints have them.
#include "config/expert_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Dimensions that all differ, so that a transposed shape shows.
ModelConfig config_of(Architecture architecture, ExpertFormat format) {
  ModelConfig config;
  config.architecture = architecture;
  config.hidden_size = 512;
  config.intermediate_size = 384;
  config.expert_count = 6;
  config.expert_format = std::move(format);
  return config;
}

// "gate_proj.weight_scale f32 [3, 4]", with a mark for what is fused or input-major.
std::vector<std::string> texts(const ModelConfig& config) {
  const auto tensors = expert_tensors(config);
  EXPECT_TRUE(tensors.ok()) << tensors.error().to_string();
  std::vector<std::string> out;
  if (!tensors.ok()) return out;
  for (const ExpertTensor& tensor : *tensors) {
    out.push_back(std::string(projection_name(tensor.projection)) + " " +
                  tensor_role_name(tensor.role) + ": " +
                  (tensor.per_expert ? tensor.part_name(5) : tensor.name) + " " +
                  std::string(tensor::dtype_name(tensor.dtype)) + " " +
                  tensor.shape.to_string() + (tensor.input_major ? " input-major" : ""));
  }
  return out;
}

// Of the gate projection alone; the others' shapes are checked where they are listed in full.
std::vector<std::string> gate_texts(const ModelConfig& config) {
  auto all = texts(config);
  std::erase_if(all, [](const std::string& text) { return !text.starts_with("gate "); });
  for (std::string& text : all) text.erase(0, text.find(": ") + 2);
  return all;
}

std::string error_of(const ModelConfig& config) {
  const auto tensors = expert_tensors(config);
  return tensors.ok() ? "ok" : tensors.error().to_string();
}

TEST(ExpertTensors, GptOssOfTheHubIsFusedAndBf16IsInputMajor) {
  EXPECT_THAT(
      texts(config_of(Architecture::kGptOss, {})),
      ElementsAre("gate_up weight: gate_up_proj bf16 [512, 768] input-major",
                  "gate_up bias: gate_up_proj_bias bf16 [768]",
                  "down weight: down_proj bf16 [384, 512] input-major",
                  "down bias: down_proj_bias bf16 [512]"));
  EXPECT_THAT(texts(config_of(Architecture::kGptOss, {.scheme = ExpertScheme::kMxfp4})),
              ElementsAre("gate_up weight: gate_up_proj_blocks u8 [768, 16, 16]",
                          "gate_up scale: gate_up_proj_scales u8 [768, 16]",
                          "gate_up bias: gate_up_proj_bias bf16 [768]",
                          "down weight: down_proj_blocks u8 [512, 12, 16]",
                          "down scale: down_proj_scales u8 [512, 12]",
                          "down bias: down_proj_bias bf16 [512]"));
}

TEST(ExpertTensors, OpenAisOwnLayoutAndQuarksOfGptOss) {
  const auto original = config_of(
      Architecture::kGptOss,
      {.scheme = ExpertScheme::kMxfp4, .dialect = ExpertDialect::kGptOssOriginal});
  EXPECT_THAT(texts(original), ElementsAre("gate_up weight: mlp1_weight.blocks u8 [768, 16, 16]",
                                           "gate_up scale: mlp1_weight.scales u8 [768, 16]",
                                           "gate_up bias: mlp1_bias bf16 [768]",
                                           "down weight: mlp2_weight.blocks u8 [512, 12, 16]",
                                           "down scale: mlp2_weight.scales u8 [512, 12]",
                                           "down bias: mlp2_bias bf16 [512]"));
  EXPECT_EQ(experts_prefix(original, 3), "block.3.mlp");
  EXPECT_THAT(texts(config_of(Architecture::kGptOss,
                              {.scheme = ExpertScheme::kMxfp4,
                               .dialect = ExpertDialect::kMxfp4PerExpert})),
              ElementsAre("gate_up weight: 5.gate_up_proj.weight u8 [768, 256]",
                          "gate_up scale: 5.gate_up_proj.weight_scale u8 [768, 16]",
                          "gate_up bias: 5.gate_up_proj.bias bf16 [768]",
                          "down weight: 5.down_proj.weight u8 [512, 192]",
                          "down scale: 5.down_proj.weight_scale u8 [512, 12]",
                          "down bias: 5.down_proj.bias bf16 [512]"));
}

TEST(ExpertTensors, HubNamesFollowTheArchitecture) {
  const auto qwen = config_of(Architecture::kQwen3Moe, {.dialect = ExpertDialect::kHub});
  EXPECT_THAT(texts(qwen), ElementsAre("gate weight: 5.gate_proj.weight bf16 [384, 512]",
                                       "up weight: 5.up_proj.weight bf16 [384, 512]",
                                       "down weight: 5.down_proj.weight bf16 [512, 384]"));
  EXPECT_EQ(experts_prefix(qwen, 3), "model.layers.3.mlp.experts");
  const auto mixtral = config_of(
      Architecture::kMixtral, {.scheme = ExpertScheme::kF16, .dialect = ExpertDialect::kHub});
  EXPECT_THAT(texts(mixtral), ElementsAre("gate weight: 5.w1.weight f16 [384, 512]",
                                          "up weight: 5.w3.weight f16 [384, 512]",
                                          "down weight: 5.w2.weight f16 [512, 384]"));
  EXPECT_EQ(experts_prefix(mixtral, 3), "model.layers.3.block_sparse_moe.experts");
}

TEST(ExpertTensors, Fp8HasAScaleForTheWholeTheRowsOrTheBlocks) {
  ExpertFormat format{.scheme = ExpertScheme::kFp8Block, .dialect = ExpertDialect::kFp8Block,
                      .scale_dtype = tensor::DType::kBF16};
  auto config = config_of(Architecture::kQwen3Moe, format);
  config.intermediate_size = 400;  // no whole blocks: the last is narrower
  EXPECT_THAT(texts(config),
              ElementsAre("gate weight: 5.gate_proj.weight f8_e4m3 [400, 512]",
                          "gate scale: 5.gate_proj.weight_scale_inv bf16 [4, 4]",
                          "up weight: 5.up_proj.weight f8_e4m3 [400, 512]",
                          "up scale: 5.up_proj.weight_scale_inv bf16 [4, 4]",
                          "down weight: 5.down_proj.weight f8_e4m3 [512, 400]",
                          "down scale: 5.down_proj.weight_scale_inv bf16 [4, 4]"));
  format = {.scheme = ExpertScheme::kFp8Tensor, .activations = ActivationScheme::kFp8Static,
            .dialect = ExpertDialect::kFp8, .scalars_have_axis = true};
  EXPECT_THAT(gate_texts(config_of(Architecture::kMixtral, format)),
              ElementsAre("5.w1.weight f8_e4m3 [384, 512]", "5.w1.weight_scale f32 [1]",
                          "5.w1.input_scale f32 [1]"));
  format.activations = ActivationScheme::kFp8Token;
  format.scalars_have_axis = false;
  EXPECT_THAT(gate_texts(config_of(Architecture::kMixtral, format)),
              ElementsAre("5.w1.weight f8_e4m3 [384, 512]", "5.w1.weight_scale f32 []"));
  format.scheme = ExpertScheme::kFp8Channel;
  EXPECT_THAT(gate_texts(config_of(Architecture::kMixtral, format)),
              ElementsAre("5.w1.weight f8_e4m3 [384, 512]", "5.w1.weight_scale f32 [384, 1]"));
  format.scheme = ExpertScheme::kMxfp8;
  EXPECT_THAT(gate_texts(config_of(Architecture::kMixtral, format)),
              ElementsAre("5.w1.weight f8_e4m3 [384, 512]", "5.w1.weight_scale u8 [384, 16]"));
}

TEST(ExpertTensors, Nvfp4HasBothConventionsOfTheGlobalScale) {
  ExpertFormat format{.scheme = ExpertScheme::kNvfp4, .activations = ActivationScheme::kNvfp4,
                      .dialect = ExpertDialect::kModelOptNvfp4};
  EXPECT_THAT(gate_texts(config_of(Architecture::kQwen3Moe, format)),
              ElementsAre("5.gate_proj.weight u8 [384, 256]",
                          "5.gate_proj.weight_scale f8_e4m3 [384, 32]",
                          "5.gate_proj.weight_scale_2 f32 []", "5.gate_proj.input_scale f32 []"));
  format.dialect = ExpertDialect::kCompressedNvfp4;
  format.scalars_have_axis = true;
  EXPECT_THAT(gate_texts(config_of(Architecture::kQwen3Moe, format)),
              ElementsAre("5.gate_proj.weight_packed u8 [384, 256]",
                          "5.gate_proj.weight_scale f8_e4m3 [384, 32]",
                          "5.gate_proj.weight_global_scale f32 [1]",
                          "5.gate_proj.input_global_scale f32 [1]"));
  format.activations = ActivationScheme::kNone;
  EXPECT_EQ(gate_texts(config_of(Architecture::kQwen3Moe, format)).size(), 3u);
}

TEST(ExpertTensors, Mxfp4OfEachExpertIsCalledAsThePackerCallsIt) {
  const ExpertFormat format{.scheme = ExpertScheme::kMxfp4,
                            .dialect = ExpertDialect::kMxfp4PerExpert,
                            .packed_name = "weight_packed"};
  EXPECT_THAT(gate_texts(config_of(Architecture::kQwen3Moe, format)),
              ElementsAre("5.gate_proj.weight_packed u8 [384, 256]",
                          "5.gate_proj.weight_scale u8 [384, 16]"));
}

TEST(ExpertTensors, Int4ComesInThreePackings) {
  ExpertFormat format{.scheme = ExpertScheme::kInt4, .dialect = ExpertDialect::kGptq,
                      .group_size = 128, .act_order = true, .scale_dtype = tensor::DType::kF16};
  EXPECT_THAT(gate_texts(config_of(Architecture::kMixtral, format)),
              ElementsAre("5.w1.qweight i32 [64, 384] input-major",
                          "5.w1.scales f16 [4, 384] input-major",
                          "5.w1.qzeros i32 [4, 48] input-major",
                          "5.w1.g_idx i32 [512] input-major"));
  format.dialect = ExpertDialect::kAwq;
  EXPECT_THAT(gate_texts(config_of(Architecture::kQwen3Moe, format)),
              ElementsAre("5.gate_proj.qweight i32 [512, 48] input-major",
                          "5.gate_proj.scales f16 [4, 384] input-major",
                          "5.gate_proj.qzeros i32 [4, 48] input-major"));
  format.dialect = ExpertDialect::kCompressedInt4;
  format.scale_dtype = tensor::DType::kBF16;
  EXPECT_THAT(gate_texts(config_of(Architecture::kMixtral, format)),
              ElementsAre("5.w1.weight_packed i32 [384, 64]", "5.w1.weight_scale bf16 [384, 4]",
                          "5.w1.weight_g_idx i32 [512]", "5.w1.weight_shape i64 [2]"));
  format.act_order = false;
  format.zero_points = true;
  EXPECT_THAT(gate_texts(config_of(Architecture::kMixtral, format)),
              ElementsAre("5.w1.weight_packed i32 [384, 64]", "5.w1.weight_scale bf16 [384, 4]",
                          "5.w1.weight_zero_point i32 [48, 4]", "5.w1.weight_shape i64 [2]"));
}

TEST(ExpertTensors, WhatDoesNotGoTogetherIsRefused) {
  EXPECT_THAT(error_of(config_of(Architecture::kQwen3Moe, {})),
              HasSubstr("unsupported: no experts of qwen3_moe are known that are stored as bf16"));
  EXPECT_THAT(error_of(config_of(Architecture::kGptOss, {.dialect = ExpertDialect::kHub})),
              HasSubstr("no experts of gpt_oss are known"));
  EXPECT_THAT(error_of(config_of(Architecture::kMixtral, {.scheme = ExpertScheme::kInt4,
                                                          .dialect = ExpertDialect::kFp8})),
              HasSubstr("stored as int4 group 0"));
}

TEST(ExpertTensors, DimensionsThatTheFormatCannotHoldAreNamed) {
  auto config = config_of(Architecture::kGptOss, {.scheme = ExpertScheme::kMxfp4});
  config.hidden_size = 500;
  EXPECT_THAT(error_of(config),
              HasSubstr("gate_up_proj [768, 500]: inputs 500 must be a multiple of 32"));
  ExpertFormat format{.scheme = ExpertScheme::kInt4, .dialect = ExpertDialect::kGptq,
                      .group_size = 100};
  EXPECT_THAT(error_of(config_of(Architecture::kMixtral, format)),
              HasSubstr("w1 [384, 512]: inputs 512 must be a multiple of 100"));
  format.group_size = 0;
  EXPECT_THAT(error_of(config_of(Architecture::kMixtral, format)), HasSubstr("a multiple of 0"));
  format.group_size = 4;
  config = config_of(Architecture::kMixtral, format);
  config.intermediate_size = 388;
  EXPECT_THAT(error_of(config), HasSubstr("outputs 388 must be a multiple of 8"));
}

}  // namespace
}  // namespace holdfast::config
