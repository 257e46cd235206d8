// The linear layers besides the experts, and their published tensors in each format.
#include "config/linear_modules.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::config {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kQuery = "model.layers.0.self_attn.q_proj";

ModelConfig model(const ExpertFormat& format) {
  ModelConfig config;
  config.architecture = Architecture::kQwen3Moe;
  config.layer_count = 3;
  config.hidden_size = 256;
  config.query_head_count = 4;
  config.kv_head_count = 2;
  config.head_dim = 40;
  config.vocab_size = 512;
  config.expert_count = 4;
  config.dense_intermediate_size = 384;
  config.dense_layers = {1};
  config.expert_format = format;
  config.quantized_modules = {kQuery};
  return config;
}

// "NAME DTYPE SHAPE" of each tensor of the first layer's queries, less their common prefix.
std::vector<std::string> tensors_of(const ExpertFormat& format) {
  const ModelConfig config = model(format);
  const auto tensors = linear_tensors(config, linear_modules(config).front());
  if (!tensors.ok()) return {tensors.error().to_string()};
  std::vector<std::string> texts;
  for (const LinearTensor& tensor : *tensors) {
    EXPECT_TRUE(tensor.name.starts_with(std::string(kQuery) + ".")) << tensor.name;
    texts.push_back(fmt::format("{} {} {}", tensor.name.substr(std::string_view(kQuery).size() + 1),
                                tensor::dtype_name(tensor.dtype), tensor.shape.to_string()));
  }
  return texts;
}

TEST(LinearModules, AreThoseOfEveryLayerAndTheHead) {
  ModelConfig config = model({});
  std::vector<std::string> texts;
  for (const LinearModule& module : linear_modules(config)) {
    if (module.name.starts_with("model.layers.2")) continue;
    texts.push_back(fmt::format("{} {}x{}", module.name, module.rows, module.columns));
  }
  EXPECT_THAT(texts, ElementsAre("model.layers.0.self_attn.q_proj 160x256",
                                 "model.layers.0.self_attn.k_proj 80x256",
                                 "model.layers.0.self_attn.v_proj 80x256",
                                 "model.layers.0.self_attn.o_proj 256x160",
                                 "model.layers.0.mlp.gate 4x256",
                                 "model.layers.1.self_attn.q_proj 160x256",
                                 "model.layers.1.self_attn.k_proj 80x256",
                                 "model.layers.1.self_attn.v_proj 80x256",
                                 "model.layers.1.self_attn.o_proj 256x160",
                                 "model.layers.1.mlp.gate_proj 384x256",
                                 "model.layers.1.mlp.up_proj 384x256",
                                 "model.layers.1.mlp.down_proj 256x384", "lm_head 512x256"));
  config.tied_embeddings = true;
  EXPECT_EQ(linear_modules(config).back().name, "model.layers.2.mlp.gate");
}

TEST(LinearModules, TheTensorsAreThePublishersOwn) {
  using A = ActivationScheme;
  using D = ExpertDialect;
  using S = ExpertScheme;
  EXPECT_THAT(tensors_of({S::kFp8Block, A::kFp8TokenGroup, D::kFp8Block}),
              ElementsAre("weight f8_e4m3 [160, 256]", "weight_scale_inv f32 [2, 2]"));
  EXPECT_THAT(tensors_of({S::kFp8Tensor, A::kFp8Static, D::kFp8}),
              ElementsAre("weight f8_e4m3 [160, 256]", "weight_scale f32 []",
                          "input_scale f32 []"));
  EXPECT_THAT(tensors_of({S::kNvfp4, A::kNvfp4, D::kModelOptNvfp4}),
              ElementsAre("weight u8 [160, 128]", "weight_scale f8_e4m3 [160, 16]",
                          "weight_scale_2 f32 []", "input_scale f32 []"));
  EXPECT_THAT(tensors_of({S::kMxfp4, A::kNone, D::kMxfp4PerExpert}),
              ElementsAre("weight u8 [160, 128]", "weight_scale u8 [160, 8]"));
  EXPECT_THAT(tensors_of({.scheme = S::kInt4, .dialect = D::kGptq, .group_size = 64}),
              ElementsAre("qweight i32 [32, 160]", "scales f32 [4, 160]", "qzeros i32 [4, 20]",
                          "g_idx i32 [256]"));
}

TEST(LinearModules, AMatrixThatTheFormatCannotHoldIsRefusedByItsName) {
  EXPECT_THAT(tensors_of({.scheme = ExpertScheme::kInt4,
                          .dialect = ExpertDialect::kAwq,
                          .group_size = 96}),
              ElementsAre(AllOf(HasSubstr(kQuery), HasSubstr("[160, 256]"),
                                HasSubstr("inputs 256 must be a multiple of 96"))));
  EXPECT_THAT(tensors_of({.scheme = ExpertScheme::kMxfp4, .dialect = ExpertDialect::kGptOssHub}),
              ElementsAre(HasSubstr("no linear layers are known that are stored as mxfp4")));
}

TEST(LinearModules, TheTextNamesLayersByRanges) {
  ModelConfig config = model({});
  config.quantized_modules = {"lm_head", "model.layers.0.self_attn.k_proj",
                              "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.k_proj",
                              "model.layers.1.self_attn.q_proj", "model.layers.10.self_attn.k_proj",
                              "model.layers.2.mlp.up_proj"};
  EXPECT_EQ(quantized_modules_text(config),
            "lm_head; self_attn.q_proj of layers 0-1; self_attn.k_proj of layers 0-1, 10; "
            "mlp.up_proj of layers 2");
  EXPECT_FALSE(check_replaceable(config, model({})).ok());
}

}  // namespace
}  // namespace holdfast::config
