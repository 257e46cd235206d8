// Checkpoints of Qwen3-MoE and Mixtral: opened, accounted for, with and without an index, tied, and
// with what the files alone say of scales.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "checkpoint/shard_names.h"
#include "checkpoint/test_files.h"

namespace holdfast::checkpoint {
namespace {

using tensor::DType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string golden(const std::string& name) { return HF_SOURCE_DIR "/tests/golden/" + name; }

TEST(Dialects, TheTinyModelsAreCompleteAndNamed) {
  const std::map<std::string, std::string> names = {
      {"qwen3moe-tiny-bf16", "qwen3_moe bf16 (hub)"},
      {"qwen3moe-tiny-fp8", "qwen3_moe fp8-block (fp8 block)"},
      {"mixtral-tiny-bf16", "mixtral bf16 (hub)"}};
  for (const auto& [directory, name] : names) {
    const auto opened = Checkpoint::open(golden(directory));
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    EXPECT_EQ((*opened)->dialect().name(), name);
    EXPECT_EQ((*opened)->tensors().size(),
              (*opened)->dialect().expected((*opened)->config()).size());
  }
}

// A Qwen3-MoE of two layers, the first one dense; `quantization` is its quantization_config.
std::string qwen_config(const std::string& quantization = "null", bool tied = false) {
  return R"({"model_type":"qwen3_moe","num_hidden_layers":2,"hidden_size":64,"head_dim":8,
    "intermediate_size":48,"moe_intermediate_size":32,"num_attention_heads":4,
    "num_key_value_heads":2,"vocab_size":40,"num_experts":3,"num_experts_per_tok":2,
    "max_position_embeddings":128,"rms_norm_eps":1e-6,"rope_theta":10000,"mlp_only_layers":[0],
    "tie_word_embeddings":)" +
         std::string(tied ? "true" : "false") + ",\"quantization_config\":" + quantization + "}";
}

SmallCheckpoint small_of(const std::string& config_json) {
  SmallCheckpoint small;
  small.config_json = config_json;
  const auto config = config::parse_model_config(config_json);
  EXPECT_TRUE(config.ok()) << config.error().message();
  for (ExpectedTensor& tensor : (*choose_dialect(*config))->expected(*config)) {
    small.add(std::move(tensor));
  }
  return small;
}

const std::string kTensorFp8 = R"({"quant_method":"fp8","activation_scheme":"static",
    "ignored_layers":["lm_head","self_attn","mlp.gate","model.layers.0.mlp"]})";

Result<std::unique_ptr<Checkpoint>> open_written(const TempDir& dir, const SmallCheckpoint& small) {
  small.write(dir.path());
  return Checkpoint::open(dir.path());
}

TEST(Dialects, ADenseLayerHasOneMlpAndNoRouter) {
  const TempDir dir;
  const auto opened = open_written(dir, small_of(qwen_config()));
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  const Checkpoint& checkpoint = **opened;
  EXPECT_EQ(checkpoint.find("model.layers.0.mlp.gate_proj.weight")->entry->shape,
            (tensor::Shape{48, 64}));
  EXPECT_EQ(checkpoint.find("model.layers.0.mlp.gate.weight"), nullptr);
  EXPECT_NE(checkpoint.find("model.layers.1.mlp.gate.weight"), nullptr);
  EXPECT_NE(checkpoint.find("model.layers.1.mlp.experts.2.down_proj.weight"), nullptr);
  EXPECT_NE(checkpoint.find("model.layers.0.self_attn.k_norm.weight"), nullptr);
}

TEST(Dialects, ATiedHeadMayBeThereAndNeedNot) {
  for (const bool there : {true, false}) {
    const TempDir dir;
    SmallCheckpoint small = small_of(qwen_config("null", true));
    if (!there) {
      std::erase_if(small.tensors, [](const auto& t) { return t.what.name == "lm_head.weight"; });
      small.index.erase("lm_head.weight");
    }
    const auto opened = open_written(dir, small);
    EXPECT_TRUE(opened.ok()) << opened.error().message();
  }
  const TempDir dir;
  SmallCheckpoint untied = small_of(qwen_config());
  std::erase_if(untied.tensors, [](const auto& t) { return t.what.name == "lm_head.weight"; });
  untied.index.erase("lm_head.weight");
  EXPECT_THAT(open_written(dir, untied).error().message(), HasSubstr("lm_head.weight"));
}

TEST(Dialects, WhatTheFilesSayOfScalesIsTheFormat) {
  for (const bool axis : {true, false}) {
    const TempDir dir;
    SmallCheckpoint small = small_of(qwen_config(kTensorFp8));
    for (auto& tensor : small.tensors) {
      const bool weight_scale = tensor.what.name.ends_with(".weight_scale");
      if (!weight_scale && !tensor.what.name.ends_with(".input_scale")) continue;
      tensor.what.shape = axis ? tensor::Shape{1} : tensor::Shape{};
      tensor.what.dtype = weight_scale ? DType::kBF16 : DType::kF16;
      tensor.data.resize(2);
    }
    const auto opened = open_written(dir, small);
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    const config::ExpertFormat& format = (*opened)->config().expert_format;
    EXPECT_EQ(format.scale_dtype, DType::kBF16);
    EXPECT_EQ(format.scalar_dtype, DType::kF16);
    EXPECT_EQ(format.scalars_have_axis, axis);
  }
}

TEST(Dialects, OneExpertWithAnotherDtypeThanTheOthersIsNamed) {
  const TempDir dir;
  SmallCheckpoint small = small_of(qwen_config(kTensorFp8));
  auto& odd = small.find("model.layers.1.mlp.experts.2.up_proj.weight_scale");
  odd.what.dtype = DType::kBF16;
  odd.what.shape = {2};
  const auto opened = open_written(dir, small);
  EXPECT_THAT(opened.error().message(), HasSubstr("experts.2.up_proj.weight_scale in model-0000"));
  EXPECT_THAT(opened.error().message(), HasSubstr("dtype bf16, expected f32"));
}

// Once plain and once quantised: a linear layer, one expert's matrix, gpt-oss' fused experts.
TEST(Dialects, ALayerThatIsStoredTwiceIsCalledThat) {
  const std::string gptq = R"({"quant_method":"gptq","bits":4,"group_size":16,"desc_act":false,
      "sym":true,"lm_head":false})";
  const std::string query = "model.layers.1.self_attn.q_proj";
  const std::string up = "model.layers.1.mlp.experts.2.up_proj";
  const std::string fused = "model.layers.0.mlp.experts.gate_up_proj";
  const struct {
    SmallCheckpoint small;
    std::string layer, added, codes;
  } cases[] = {{small_of(qwen_config(gptq)), query, query + ".weight", query + ".qweight"},
               {small_of(qwen_config(gptq)), up, up + ".weight", up + ".qweight"},
               {SmallCheckpoint::make(), fused, fused, fused + "_blocks"}};
  for (const auto& tested : cases) {
    SmallCheckpoint small = tested.small;
    small.add({tested.added, DType::kF16, {32, 64}});
    const TempDir dir;
    const auto opened = open_written(dir, small);
    ASSERT_FALSE(opened.ok()) << tested.layer;
    EXPECT_THAT(opened.error().message(),
                HasSubstr("layer " + tested.layer + " is stored twice, once plain (" +
                          tested.added + ") and once quantised (" + tested.codes + ")"));
    const auto inspected = Checkpoint::open_for_inspection(dir.path());
    ASSERT_TRUE(inspected.ok());
    ASSERT_FALSE((*inspected)->account().unknown.empty());
    for (const auto& unknown : (*inspected)->account().unknown) {
      EXPECT_THAT(unknown.stored_twice, HasSubstr("layer " + tested.layer)) << unknown.name;
    }
  }
}

// A scale that is left over beside plain values is no second layer.
TEST(Dialects, AScaleWithoutCodesIsUnknownAndNotALayerStoredTwice) {
  const TempDir dir;
  SmallCheckpoint small = small_of(qwen_config());
  small.add({"model.layers.1.self_attn.q_proj.weight_scale", DType::kF32, {1}});
  EXPECT_THAT(open_written(dir, small).error().message(),
              HasSubstr("q_proj.weight_scale in model-00002-of-00002.safetensors is unknown"));
}

TEST(Dialects, ShardsWithoutAnIndexAreTakenWhenAllAreThere) {
  const TempDir dir;
  small_of(qwen_config()).write(dir.path());
  std::filesystem::remove(dir.path("model.safetensors.index.json"));
  const auto opened = Checkpoint::open(dir.path());
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  EXPECT_EQ((*opened)->files().size(), 2u);
  std::filesystem::remove(dir.path("model-00002-of-00002.safetensors"));
  EXPECT_THAT(Checkpoint::open(dir.path()).error().message(), HasSubstr("are 1 shards of 2"));
}

std::string shards_error(std::vector<std::string> names) {
  const auto shards = shards_without_index(std::move(names), "dir");
  return shards.ok() ? "ok" : shards.error().to_string();
}

TEST(ShardNames, OneFileOrOneWholeSet) {
  EXPECT_THAT(*shards_without_index({"gptq_model-4bit-128g.safetensors"}, "dir"),
              ElementsAre("gptq_model-4bit-128g.safetensors"));
  EXPECT_THAT(*shards_without_index({"model-00002-of-00002.safetensors",
                                     "model-00001-of-00002.safetensors"}, "dir"),
              ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"));
  EXPECT_EQ(shards_error({"model--00001-of-00001.safetensors"}), "ok");
  EXPECT_EQ(shards_error({"m-00000-of-00002.safetensors", "m-00001-of-00002.safetensors",
                          "m-00002-of-00002.safetensors"}),
            "ok");
  EXPECT_THAT(shards_error({}), HasSubstr("not_found: dir: holds neither model.safetensors"));
  EXPECT_THAT(shards_error({"m-00000-of-00002.safetensors", "m-00002-of-00002.safetensors"}),
              HasSubstr("are 2 shards of 3"));
  EXPECT_THAT(shards_error({"m-00002-of-00002.safetensors"}), HasSubstr("are 1 shards of 2"));
  EXPECT_THAT(shards_error({"a.safetensors", "b.safetensors"}),
              HasSubstr("a.safetensors and a.safetensors are not shards of one set"));
  EXPECT_THAT(shards_error({"a-00001-of-00002.safetensors", "b-00002-of-00002.safetensors"}),
              HasSubstr("are not shards of one set"));
}

}  // namespace
}  // namespace holdfast::checkpoint
