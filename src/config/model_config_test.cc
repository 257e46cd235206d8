#include "config/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

namespace holdfast::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string repeat_kinds(int pairs) {
  std::string text;
  for (int i = 0; i < pairs; ++i) {
    text += std::string(i == 0 ? "" : ",") + R"("sliding_attention","full_attention")";
  }
  return "[" + text + "]";
}

using Fields = std::map<std::string, std::string>;

// The fields of openai/gpt-oss-20b as published.
Fields gpt_oss_20b() {
  return {
      {"model_type", R"("gpt_oss")"},
      {"architectures", R"(["GptOssForCausalLM"])"},
      {"attention_bias", "true"},
      {"attention_dropout", "0.0"},
      {"eos_token_id", "200002"},
      {"pad_token_id", "199999"},
      {"experts_per_token", "4"},
      {"num_experts_per_tok", "4"},
      {"head_dim", "64"},
      {"hidden_act", R"("silu")"},
      {"hidden_size", "2880"},
      {"initial_context_length", "4096"},
      {"intermediate_size", "2880"},
      {"layer_types", repeat_kinds(12)},
      {"max_position_embeddings", "131072"},
      {"num_attention_heads", "64"},
      {"num_hidden_layers", "24"},
      {"num_key_value_heads", "8"},
      {"num_local_experts", "32"},
      {"quantization_config", R"({"modules_to_not_convert":["lm_head"],"quant_method":"mxfp4"})"},
      {"rms_norm_eps", "1e-05"},
      {"rope_scaling",
       R"({"beta_fast":32.0,"beta_slow":1.0,"factor":32.0,"rope_type":"yarn","truncate":false,
           "original_max_position_embeddings":4096})"},
      {"rope_theta", "150000"},
      {"sliding_window", "128"},
      {"swiglu_limit", "7.0"},
      {"tie_word_embeddings", "false"},
      {"vocab_size", "201088"},
  };
}

// A field set to "" is left out.
std::string to_json(Fields fields, const Fields& changes = {}) {
  for (const auto& [key, value] : changes) fields[key] = value;
  std::string text;
  for (const auto& [key, value] : fields) {
    if (value.empty()) continue;
    text += std::string(text.empty() ? "{" : ",") + "\"" + key + "\":" + value;
  }
  return text + "}";
}

TEST(ModelConfig, ReadsThePublishedGptOss20b) {
  const auto config = parse_model_config(
      to_json(gpt_oss_20b()),
      R"({"bos_token_id":199998,"do_sample":true,"eos_token_id":[200002,199999,200012],
          "pad_token_id":199999})");
  ASSERT_TRUE(config.ok()) << config.error().message();
  EXPECT_EQ(config->architecture, Architecture::kGptOss);
  EXPECT_EQ(config->model_type, "gpt_oss");
  EXPECT_EQ(config->layer_count, 24);
  EXPECT_EQ(config->hidden_size, 2880);
  EXPECT_EQ(config->intermediate_size, 2880);
  EXPECT_EQ(config->query_head_count, 64);
  EXPECT_EQ(config->kv_head_count, 8);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->vocab_size, 201088);
  EXPECT_EQ(config->expert_count, 32);
  EXPECT_EQ(config->experts_per_token, 4);
  EXPECT_EQ(config->sliding_window, 128);
  EXPECT_EQ(config->max_positions, 131072);
  EXPECT_EQ(config->rms_norm_eps, 1e-5);
  EXPECT_EQ(config->rope, (RopeConfig{150000, 32, 32, 1, 4096, false}));
  EXPECT_EQ(config->swiglu, (SwigluConfig{1.702f, 1.0f, 7.0f}));
  EXPECT_EQ(config->expert_format.scheme, ExpertScheme::kMxfp4);
  ASSERT_EQ(config->layer_kinds.size(), 24u);
  EXPECT_EQ(config->layer_kinds[0], AttentionKind::kSliding);
  EXPECT_EQ(config->layer_kinds[23], AttentionKind::kFull);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(200002, 199999, 200012));
  EXPECT_EQ(config->bos_token_id, 199998);
  EXPECT_EQ(config->pad_token_id, 199999);
}

TEST(ModelConfig, ReadsTheTinyModelsInBothSchemes) {
  const std::string a = HF_SOURCE_DIR "/models/gptoss-tiny-A/";
  const auto packed = parse_model_config(read_file(a + "config.json"),
                                         read_file(a + "generation_config.json"));
  ASSERT_TRUE(packed.ok()) << packed.error().message();
  EXPECT_EQ(packed->expert_format.scheme, ExpertScheme::kMxfp4);
  EXPECT_EQ(packed->rope, (RopeConfig{150000, 4, 32, 1, 256, false}));
  EXPECT_THAT(packed->eos_token_ids, ElementsAre(1016, 1015, 1022));
  const std::string plain = HF_SOURCE_DIR "/tests/golden/gptoss-tiny-A-bf16/";
  const auto dense = parse_model_config(read_file(plain + "config.json"));
  ASSERT_TRUE(dense.ok()) << dense.error().message();
  EXPECT_EQ(dense->expert_format.scheme, ExpertScheme::kBF16);
  EXPECT_THAT(dense->eos_token_ids, ElementsAre(1016));
  EXPECT_EQ(dense->bos_token_id, -1);
  const std::string b = HF_SOURCE_DIR "/models/gptoss-tiny-B/";
  const auto next = parse_model_config(read_file(b + "config.json"),
                                       read_file(b + "generation_config.json"));
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(*packed, *next);
  EXPECT_TRUE(check_replaceable(*packed, *next).ok());
}

TEST(ModelConfig, ReadsRopeWhereNewerFilesKeepIt) {
  const auto older = parse_model_config(to_json(gpt_oss_20b()));
  const auto newer = parse_model_config(to_json(
      gpt_oss_20b(),
      {{"rope_scaling", ""},
       {"rope_theta", ""},
       {"rope_parameters",
        R"({"rope_theta":150000.0,"factor":32,"rope_type":"yarn","truncate":false,
            "beta_fast":32,"beta_slow":1,"original_max_position_embeddings":4096})"}}));
  ASSERT_TRUE(newer.ok()) << newer.error().message();
  EXPECT_EQ(newer->rope, older->rope);
}

TEST(ModelConfig, FillsWhatTheArchitectureDefines) {
  const auto config = parse_model_config(to_json(
      gpt_oss_20b(), {{"layer_types", ""}, {"rope_scaling", "null"}, {"attention_bias", ""},
                      {"experts_per_token", ""}, {"eos_token_id", ""}, {"pad_token_id", "-1"},
                      {"quantization_config", "null"}, {"swiglu_limit", ""}}));
  ASSERT_TRUE(config.ok()) << config.error().message();
  EXPECT_EQ(config->layer_kinds[0], AttentionKind::kSliding);
  EXPECT_EQ(config->layer_kinds[1], AttentionKind::kFull);
  EXPECT_EQ(config->rope.factor, 1.0);
  EXPECT_EQ(config->swiglu.limit, 7.0f);
  EXPECT_TRUE(config->eos_token_ids.empty());
  EXPECT_EQ(config->pad_token_id, -1);
  EXPECT_EQ(config->expert_format.scheme, ExpertScheme::kBF16);
}

struct BadConfig {
  std::string field;
  std::string value;
  ErrorCode code;
  std::string says;
};

constexpr auto kBad = ErrorCode::kInvalidArgument;
constexpr auto kOther = ErrorCode::kUnsupported;

std::vector<BadConfig> bad_sizes() {
  return {
      {"model_type", R"("llama")", kOther,
       R"(model_type is "llama"; this engine knows gpt_oss, qwen3_moe, mixtral)"},
      {"model_type", "", kBad, "model_type is missing"},
      {"model_type", "7", kBad, "model_type is 7, expected a string"},
      {"num_hidden_layers", "0", kBad,
       "num_hidden_layers is 0, expected an integer from 1 to 1024"},
      {"num_hidden_layers", "", kBad, "config.json: num_hidden_layers is missing"},
      {"num_hidden_layers", "null", kBad, "num_hidden_layers is missing"},
      {"num_hidden_layers", "24.0", kBad, "num_hidden_layers is 24.0, expected an integer"},
      {"num_hidden_layers", R"("24")", kBad, R"(num_hidden_layers is "24", expected an integer)"},
      {"num_local_experts", "1099511627776", kBad, "1099511627776, expected an integer from 1 to"},
      {"num_local_experts", "18446744073709551615", kBad, "expected an integer from 1 to"},
      {"num_local_experts", "3", kBad, "num_experts_per_tok is 4, num_local_experts is only 3"},
      {"num_experts_per_tok", "5", kBad, "num_experts_per_tok is 5 and experts_per_token is 4"},
      {"head_dim", "0", kBad, "head_dim is 0, expected an integer from 2 to"},
      {"head_dim", "63", kBad, "head_dim is 63, expected a multiple of"},
      {"hidden_size", "2881", kBad,
       "gate_up_proj [5760, 2881]: inputs 2881 must be a multiple of 32 (mxfp4"},
      {"intermediate_size", "16", kBad, "down_proj [2880, 16]: inputs 16 must be a multiple of 32"},
      {"num_key_value_heads", "7", kBad, "num_attention_heads is 64, expected a multiple of"},
      {"layer_types", repeat_kinds(11), kBad,
       "layer_types has 22 entries, num_hidden_layers is 24"},
      {"layer_types", R"(["sliding_attention","linear"])", kOther,
       R"(layer_types[1] is "linear"; this engine knows sliding_attention, full_attention)"},
      {"layer_types", "{}", kBad, "layer_types is {}, expected an array"},
      {"sliding_window", "null", kBad, "sliding_window is missing"},
      {"sliding_window", "0", kBad, "sliding_window is 0, expected"},
      {"max_position_embeddings", "-5", kBad, "max_position_embeddings is -5, expected"},
      {"vocab_size", "99999999999", kBad, "vocab_size is 99999999999, expected"},
  };
}

std::vector<BadConfig> bad_constants_and_options() {
  return {
      {"rms_norm_eps", "0", kBad, "rms_norm_eps is 0, expected a number above 0, at most 0.1"},
      {"rms_norm_eps", "", kBad, "rms_norm_eps is missing"},
      {"rope_theta", "", kBad, "rope_theta is missing"},
      {"rope_theta", "-1.5", kBad, "rope_theta is -1.5, expected a number above 1"},
      {"rope_scaling", R"({"rope_type":"longrope"})", kOther,
       "rope_scaling: rope_type is longrope; this engine knows yarn, default"},
      {"rope_scaling", R"({"factor":32})", kBad, "rope_scaling: rope_type is missing"},
      {"rope_scaling", R"({"rope_type":"yarn"})", kBad, "rope_scaling: factor is missing"},
      {"rope_scaling", R"({"rope_type":"yarn","factor":0.5})", kBad, "factor is 0.5, expected"},
      {"rope_scaling", R"({"rope_type":"yarn","factor":2,"mscale":0.7})", kOther, "mscale is 0.7"},
      {"rope_scaling", R"({"rope_type":"yarn","factor":2,"beta_fast":1})", kBad,
       "beta_fast is 1 and beta_slow is 1"},
      {"rope_scaling", R"({"rope_type":"yarn","factor":2,"factor":4})", ErrorCode::kCorrupt,
       "rope_scaling: key \"factor\" stands twice"},
      {"rope_parameters", R"({"rope_type":"default","rope_theta":150000})", kBad,
       "rope_parameters and rope_scaling say different things"},
      {"rope_parameters", R"({"rope_type":"default","rope_theta":10000})", kBad,
       "rope_theta is 150000 and config.json: rope_parameters says 10000"},
      {"swiglu_limit", "0", kBad, "swiglu_limit is 0, expected"},
      {"quantization_config", R"({"quant_method":"bitsandbytes"})", kOther,
       "quantization_config: quant_method is bitsandbytes; this engine knows mxfp4, fp8, "},
      {"quantization_config", "{}", kBad, "quant_method is missing"},
      {"quantization_config", R"("mxfp4")", kBad, "expected an object"},
      {"attention_bias", "false", kOther, "attention_bias is false; this engine knows true"},
      {"attention_bias", "1", kBad, "attention_bias is 1, expected true or false"},
      {"tie_word_embeddings", "true", kOther, "tie_word_embeddings is true"},
      {"hidden_act", R"("gelu")", kOther, "hidden_act is gelu; this engine knows silu"},
      {"eos_token_id", "201088", kBad,
       "eos_token_id is 201088, expected an integer from 0 to 201087"},
      {"eos_token_id", "[1,-1]", kBad, "eos_token_id is [1,-1], expected ids from 0 to 201087"},
      {"pad_token_id", "201088", kBad, "pad_token_id is 201088"},
  };
}

TEST(ModelConfig, NamesTheFieldTheValueAndTheRangeOfEveryBadField) {
  auto cases = bad_sizes();
  for (BadConfig& bad : bad_constants_and_options()) cases.push_back(std::move(bad));
  for (const BadConfig& bad : cases) {
    const auto config = parse_model_config(to_json(gpt_oss_20b(), {{bad.field, bad.value}}));
    ASSERT_FALSE(config.ok()) << bad.field << " = " << bad.value;
    EXPECT_EQ(config.error().code(), bad.code) << config.error().message();
    EXPECT_THAT(config.error().message(), HasSubstr(bad.says));
  }
}

// As openai/gpt-oss-20b has it in its folder "original".
Fields original_20b() {
  return {{"num_hidden_layers", "24"},     {"num_experts", "32"},
          {"experts_per_token", "4"},      {"vocab_size", "201088"},
          {"hidden_size", "2880"},         {"intermediate_size", "2880"},
          {"swiglu_limit", "7.0"},         {"head_dim", "64"},
          {"num_attention_heads", "64"},   {"num_key_value_heads", "8"},
          {"sliding_window", "128"},       {"initial_context_length", "4096"},
          {"rope_theta", "150000"},        {"rope_scaling_factor", "32.0"},
          {"rope_ntk_alpha", "1"},         {"rope_ntk_beta", "32"}};
}

TEST(ModelConfig, OpenAisOwnFileSaysTheSameAsTheHubs) {
  const auto hub = parse_model_config(to_json(gpt_oss_20b()));
  auto original = parse_model_config(to_json(original_20b()));
  ASSERT_TRUE(original.ok()) << original.error().message();
  EXPECT_EQ(original->expert_format.dialect, ExpertDialect::kGptOssOriginal);
  original->expert_format.dialect = ExpertDialect::kGptOssHub;
  EXPECT_TRUE(check_replaceable(*hub, *original).ok())
      << check_replaceable(*hub, *original).error().message();
}

TEST(ModelConfig, BadFieldsOfOpenAisOwnFileAreNamed) {
  const std::vector<std::pair<Fields, std::string>> cases = {
      {{{"num_experts", "0"}}, "num_experts is 0, expected an integer from 1 to 4096"},
      {{{"head_dim", ""}}, "head_dim is missing"},
      {{{"rope_scaling_factor", "0.5"}}, "rope_scaling_factor is 0.5, rope_ntk_alpha 1"},
      {{{"rope_ntk_beta", "1"}}, "rope_ntk_beta 1; expected a factor of at least 1 and beta above"},
      {{{"hidden_size", "2881"}}, "mlp1 [5760, 2881]: inputs 2881 must be a multiple of 32"},
      {{{"experts_per_token", "33"}}, "num_experts is only 32"},
      {{{"rope_ntk_alpha", ""}}, "model_type is missing"},
  };
  for (const auto& [changes, says] : cases) {
    const auto config = parse_model_config(to_json(original_20b(), changes));
    ASSERT_FALSE(config.ok()) << says;
    EXPECT_THAT(config.error().message(), HasSubstr(says));
  }
}

TEST(ModelConfig, RefusesTextThatIsNoConfig) {
  const auto error_of = [](const std::string& text) {
    const auto config = parse_model_config(text);
    EXPECT_FALSE(config.ok());
    EXPECT_EQ(config.ok() ? ErrorCode::kIo : config.error().code(), ErrorCode::kCorrupt);
    return config.ok() ? "" : config.error().message();
  };
  EXPECT_THAT(error_of(""), HasSubstr("config.json: not valid JSON"));
  EXPECT_THAT(error_of("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("[1]"), HasSubstr("the top is [1], expected a JSON object"));
  EXPECT_THAT(error_of("{\"a\":\"\xFF\"}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("{\"a\":" + std::string(10000, '[') + std::string(10000, ']') + "}"),
              HasSubstr("nested deeper than 32 levels"));
  EXPECT_THAT(error_of("{\"hidden_size\":1,\"hidden_size\":2}"),
              HasSubstr("key \"hidden_size\" stands twice"));
  EXPECT_THAT(error_of(std::string(kMaxConfigBytes + 1, ' ')), HasSubstr("the most is 1048576"));
}

TEST(ModelConfig, ABadGenerationConfigIsNamed) {
  const auto config = parse_model_config(to_json(gpt_oss_20b()), R"({"eos_token_id":"x"})");
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.error().message(), HasSubstr("generation_config.json: eos_token_id is \"x\""));
  EXPECT_THAT(parse_model_config(to_json(gpt_oss_20b()), "{").error().message(),
              HasSubstr("generation_config.json: not valid JSON"));
}

TEST(ModelConfig, EveryFieldThatShapesStorageOrConstantsMustBeEqualToReplace) {
  const auto live = parse_model_config(to_json(gpt_oss_20b()));
  ASSERT_TRUE(live.ok());
  const std::vector<std::pair<Fields, std::string>> cases = {
      {{{"num_local_experts", "16"}},
       "num_local_experts is 32 in the live model and 16 in the next"},
      {{{"hidden_size", "2848"}}, "hidden_size is 2880"},
      {{{"intermediate_size", "64"}}, "intermediate_size is 2880"},
      {{{"num_hidden_layers", "2"}, {"layer_types", ""}}, "num_hidden_layers is 24"},
      {{{"head_dim", "32"}}, "head_dim is 64"},
      {{{"num_attention_heads", "8"}}, "num_attention_heads is 64"},
      {{{"num_key_value_heads", "4"}}, "num_key_value_heads is 8"},
      {{{"vocab_size", "201089"}}, "vocab_size is 201088"},
      {{{"num_experts_per_tok", "2"}, {"experts_per_token", ""}}, "num_experts_per_tok is 4"},
      {{{"sliding_window", "64"}}, "sliding_window is 128"},
      {{{"max_position_embeddings", "4096"}}, "max_position_embeddings is 131072"},
      {{{"rms_norm_eps", "1.0000001e-05"}}, "rms_norm_eps is 1e-05"},
      {{{"rope_theta", "150001"}}, "rope_theta is 150000"},
      {{{"rope_scaling", ""}}, "rope factor is 32"},
      {{{"swiglu_limit", "6.5"}}, "swiglu_limit is 7"},
      {{{"quantization_config", ""}}, "expert scheme is mxfp4 in the live model and bf16"},
      {{{"layer_types", "[" + repeat_kinds(11).substr(1, repeat_kinds(11).size() - 2) +
                            R"(,"full_attention","full_attention"])"}},
       "layer_types is [sliding_attention"},
  };
  for (const auto& [changes, says] : cases) {
    const auto next = parse_model_config(to_json(gpt_oss_20b(), changes));
    ASSERT_TRUE(next.ok()) << says << ": " << next.error().message();
    const auto status = check_replaceable(*live, *next);
    ASSERT_FALSE(status.ok()) << says;
    EXPECT_EQ(status.error().code(), ErrorCode::kMismatch);
    EXPECT_THAT(status.error().message(), HasSubstr(says));
  }
  const auto next = parse_model_config(to_json(
      gpt_oss_20b(),
      {{"swiglu_limit", "6.5"}, {"rope_theta", "9"}, {"sliding_window", "64"}}));
  ASSERT_TRUE(next.ok());
  std::vector<std::string> fields;
  for (const ConfigDifference& field : compare(*live, *next)) {
    fields.push_back(field.field + (field.constants_only ? " constants" : " storage"));
  }
  EXPECT_THAT(fields, ::testing::ElementsAre("sliding_window storage", "rope_theta constants",
                                             "swiglu_limit constants"));
  const auto other_tokens = parse_model_config(to_json(gpt_oss_20b(), {{"eos_token_id", "3"}}));
  EXPECT_TRUE(check_replaceable(*live, *other_tokens).ok());
}

}  // namespace
}  // namespace holdfast::config
