// quantization_config of every publisher: what it makes of the experts, and what is refused.
#include "config/quantization_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <functional>

#include "base/rng.h"
#include "config/linear_modules.h"
#include "config/name_pattern.h"

namespace holdfast::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ModelConfig model(Architecture architecture) {
  ModelConfig config;
  config.architecture = architecture;
  config.layer_count = 2;
  config.expert_count = 12;
  return config;
}

std::string format_of(const std::string& quantization,
                      Architecture architecture = Architecture::kQwen3Moe) {
  simdjson::dom::parser parser;
  const std::string text = "{\"quantization_config\":" + quantization + "}";
  const auto fields = JsonFields::parse(parser, text, "config.json", {1 << 16, 16});
  if (!fields.ok()) return fields.error().to_string();
  ModelConfig config = model(architecture);
  const Status parsed = parse_quantization(*fields, config);
  return parsed.ok() ? to_text(config.expert_format) : parsed.error().to_string();
}

// What becomes of a model's config; the text of `of` it, or the error.
template <typename Text>
std::string parsed_of(const std::string& quantization, const Text& of) {
  simdjson::dom::parser parser;
  const std::string text = "{\"quantization_config\":" + quantization + "}";
  const auto fields = JsonFields::parse(parser, text, "config.json", {1 << 16, 16});
  if (!fields.ok()) return fields.error().to_string();
  ModelConfig config = model(Architecture::kQwen3Moe);
  const Status parsed = parse_quantization(*fields, config);
  return parsed.ok() ? of(config) : parsed.error().to_string();
}
// The linear layers that are quantised besides the experts.
std::string modules_of(const std::string& quantization) {
  return parsed_of(quantization, &quantized_modules_text);
}
std::string cache_of(const std::string& quantization) {
  return parsed_of(quantization,
                   [](const ModelConfig& config) { return to_text(config.cache_scales); });
}
const char* const kAttention =
    "self_attn.k_proj, self_attn.o_proj, self_attn.q_proj, self_attn.v_proj of layers 0-1";

// Replaces `from`, which must be there.
std::string with(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

const std::string kKept = R"(["lm_head","self_attn","mlp.gate"])";

TEST(QuantizationConfig, NoneIsBf16InTheArchitecturesOwnLayout) {
  EXPECT_EQ(format_of("null"), "bf16, activations none, as hub");
  EXPECT_EQ(modules_of("null"), "none");
  EXPECT_EQ(format_of("null", Architecture::kGptOss),
            "bf16, activations none, as gpt-oss (Hugging Face)");
}

TEST(QuantizationConfig, Mxfp4OfGptOss) {
  const std::string text = R"({"quant_method":"mxfp4","modules_to_not_convert":["lm_head"]})";
  EXPECT_EQ(format_of(text, Architecture::kGptOss),
            "mxfp4, activations none, as gpt-oss (Hugging Face)");
  EXPECT_THAT(format_of(text), HasSubstr("quant_method is mxfp4; this engine knows it for "
                                         "gpt_oss"));
}

TEST(QuantizationConfig, Fp8InBlocksAndForTheWhole) {
  const std::string block = R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic",
      "weight_block_size":[128,128],"modules_to_not_convert":)" + kKept + "}";
  EXPECT_EQ(format_of(block), "fp8-block, activations fp8-token-group, as fp8 block");
  const std::string whole = R"({"quant_method":"fp8","activation_scheme":"static",
      "ignored_layers":["lm_head","re:.*self_attn.*","re:.*gate$"]})";
  EXPECT_EQ(format_of(whole), "fp8-tensor, activations fp8-static, as fp8");
  EXPECT_EQ(format_of(with(whole, "static", "dynamic")),
            "fp8-tensor, activations fp8-token, as fp8");
  EXPECT_THAT(format_of(with(block, "e4m3", "e5m2")), HasSubstr("fmt is e5m2; this engine knows"));
  EXPECT_THAT(format_of(with(block, "dynamic", "none")),
              HasSubstr("activation_scheme is none; this engine knows dynamic, static"));
  EXPECT_THAT(format_of(with(block, "dynamic", "static")),
              HasSubstr("activation_scheme with weight_block_size is static"));
  EXPECT_THAT(format_of(with(block, "[128,128]", "[64,128]")),
              HasSubstr("weight_block_size is [64,128]; this engine knows [128, 128]"));
  EXPECT_THAT(format_of(with(block, "[128,128]", "[128]")), HasSubstr("knows [128, 128]"));
  EXPECT_THAT(format_of(with(whole, "\"activation_scheme\":\"static\",", "")),
              HasSubstr("activation_scheme is missing"));
}

TEST(QuantizationConfig, ModulesBesidesTheExpertsAreQuantisedUnlessTheyWereKept) {
  const std::string text = R"({"quant_method":"fp8","activation_scheme":"dynamic",
      "ignored_layers":["lm_head","mlp.gate","model.layers.0.self_attn","model.layers.1.q_proj"]})";
  EXPECT_EQ(modules_of(text),
            "self_attn.k_proj, self_attn.o_proj, self_attn.q_proj, self_attn.v_proj of layers 1");
  EXPECT_EQ(modules_of(with(text, "lm_head\",\"mlp.gate", "self_attn")),
            "lm_head; mlp.gate of layers 0-1");
  EXPECT_THAT(format_of(with(text, "[\"lm_head\"", "[7,\"lm_head\"")),
              HasSubstr("expected a list of texts"));
  EXPECT_THAT(format_of(with(text, "mlp.gate", "re:(mlp|x).gate")),
              HasSubstr("pattern \"re:(mlp|x).gate\" has a (; this engine knows literals"));
}

TEST(QuantizationConfig, ModelOpt) {
  const std::string text = R"({"quant_method":"modelopt","quant_algo":"NVFP4",
      "ignore":["lm_head","*self_attn*","*mlp.gate"],"producer":{"name":"modelopt"}})";
  EXPECT_EQ(format_of(text), "nvfp4, activations nvfp4, as modelopt nvfp4");
  EXPECT_EQ(format_of(with(text, "NVFP4", "FP8")), "fp8-tensor, activations fp8-static, as fp8");
  EXPECT_EQ(format_of(with(text, "NVFP4", "MXFP8")), "mxfp8, activations mxfp8, as fp8");
  EXPECT_THAT(format_of(with(text, "NVFP4", "W4A8_AWQ")),
              HasSubstr("quant_algo is W4A8_AWQ; this engine knows NVFP4, FP8, MXFP8"));
  const std::string cache = with(text, "\"quant_algo\"",
                                 "\"kv_cache_quant_algo\":\"FP8\",\"quant_algo\"");
  EXPECT_EQ(cache_of(text), "none");
  EXPECT_EQ(cache_of(cache), "of projections, f32 []");
  EXPECT_THAT(cache_of(with(cache, "\"FP8\"", "\"NVFP4\"")),
              HasSubstr("kv_cache_quant_algo is NVFP4; this engine knows FP8 and null"));
}

TEST(QuantizationConfig, Quark) {
  const std::string mxfp4 = R"({"quant_method":"quark","exclude":["*self_attn*","*gate","lm_head"],
      "layer_quant_config":{},"kv_cache_quant_config":{},
      "export":{"weight_format":"real_quantized"},
      "global_quant_config":{"input_tensors":null,"output_tensors":null,"bias":null,
      "weight":{"dtype":"fp4","qscheme":"per_group","group_size":32,"scale_format":"e8m0"}}})";
  EXPECT_EQ(format_of(mxfp4), "mxfp4, activations none, as mxfp4 per expert (weight, as Quark)");
  const std::string fp8 = R"({"quant_method":"quark","exclude":["*self_attn*","*gate","lm_head"],
      "global_quant_config":{"weight":{"dtype":"fp8_e4m3","qscheme":"per_tensor"},
      "input_tensors":{"dtype":"fp8_e4m3","qscheme":"per_tensor","is_dynamic":false}}})";
  EXPECT_EQ(format_of(fp8), "fp8-tensor, activations fp8-static, as fp8");
  EXPECT_THAT(format_of(with(mxfp4, "\"input_tensors\":null",
                             "\"input_tensors\":{\"dtype\":\"fp4\"}")),
              HasSubstr("input_tensors: dtype is fp4; this engine knows fp8_e4m3"));
  EXPECT_THAT(format_of(with(fp8, "\"is_dynamic\":false", "\"is_dynamic\":true")),
              HasSubstr("is_dynamic is true; this engine knows false"));
  EXPECT_THAT(format_of(with(mxfp4, "\"fp4\"", "\"int4\"")),
              HasSubstr("weight: dtype is int4; this engine knows fp8_e4m3, fp4"));
  EXPECT_THAT(format_of(with(mxfp4, "\"group_size\":32", "\"group_size\":16")),
              HasSubstr("group_size is 16; this engine knows 32"));
  EXPECT_THAT(format_of(with(mxfp4, "e8m0", "float32")), HasSubstr("scale_format is float32"));
  EXPECT_THAT(format_of(with(mxfp4, "real_quantized", "fake_quantized")),
              HasSubstr("export: weight_format is fake_quantized"));
  EXPECT_THAT(format_of(with(mxfp4, "\"layer_quant_config\":{}",
                             "\"layer_quant_config\":{\"a\":1}")),
              HasSubstr("layer_quant_config is {\"a\":1}; this engine knows null"));
  EXPECT_THAT(format_of(R"({"quant_method":"quark"})"), HasSubstr("global_quant_config is "
                                                                  "missing"));
}

TEST(QuantizationConfig, AutoRound) {
  const std::string text = R"({"quant_method":"auto-round","data_type":"mx_fp","bits":4,
      "group_size":32,"act_bits":16,"packing_format":"auto_round:llm_compressor",
      "extra_config":{"lm_head":{"bits":16},"self_attn":{"bits":16},"mlp.gate":{"bits":32}}})";
  EXPECT_EQ(format_of(text), "mxfp4, activations none, as mxfp4 per expert "
            "(weight_packed, as INC and compressed-tensors)");
  EXPECT_THAT(format_of(with(text, "mx_fp", "int")), HasSubstr("data_type is int"));
  EXPECT_THAT(format_of(with(text, "\"bits\":4", "\"bits\":8")), HasSubstr("bits is 8"));
  EXPECT_THAT(format_of(with(text, "act_bits\":16", "act_bits\":4")),
              HasSubstr("act_bits is 4; this engine knows 16 and more"));
  EXPECT_THAT(format_of(with(text, "{\"bits\":32}", "{\"bits\":8}")),
              HasSubstr("extra_config: mlp.gate: bits is 8"));
  EXPECT_EQ(modules_of(text), "none");
  EXPECT_EQ(modules_of(with(text, "\"lm_head\":{\"bits\":16},", "")), "lm_head");
}

TEST(QuantizationConfig, GptqAndAwq) {
  const std::string gptq = R"({"quant_method":"gptq","bits":4,"group_size":128,"desc_act":true,
      "sym":true,"checkpoint_format":"gptq","modules_in_block_to_quantize":[["mlp.experts"]]})";
  EXPECT_EQ(format_of(gptq), "int4 group 128 act-order, scales f16, activations none, as gptq");
  EXPECT_EQ(format_of(with(with(gptq, "\"sym\":true", "\"sym\":false"), "\"gptq\",\"mod",
                           "\"gptq_v2\",\"mod")),
            "int4 group 128 zeros act-order v2, scales f16, activations none, as gptq");
  EXPECT_THAT(format_of(with(gptq, "\"bits\":4", "\"bits\":8")), HasSubstr("bits is 8"));
  EXPECT_THAT(format_of(with(gptq, "128", "-1")), HasSubstr("group_size is -1"));
  EXPECT_THAT(format_of(with(gptq, "\"gptq\",\"mod", "\"marlin\",\"mod")),
              HasSubstr("checkpoint_format is marlin; this engine knows gptq, gptq_v2"));
  EXPECT_EQ(modules_of(gptq), "none");
  EXPECT_EQ(modules_of(with(gptq, "[\"mlp.experts\"]",
                            "[\"mlp.experts\"],[\"self_attn.q_proj\"]")),
            "self_attn.q_proj of layers 0-1");
  EXPECT_THAT(modules_of(with(gptq, "\"mlp.experts\"", "\"self_attn.q_proj\"")),
              HasSubstr("this engine knows lists with the experts"));
  const std::string all = with(gptq, ",\"modules_in_block_to_quantize\":[[\"mlp.experts\"]]", "");
  EXPECT_EQ(modules_of(all), kAttention);
  EXPECT_EQ(modules_of(with(all, "\"sym\"", "\"lm_head\":true,\"sym\"")),
            "lm_head; " + std::string(kAttention));
  EXPECT_EQ(modules_of(with(all, "\"sym\"", "\"dynamic\":{\"-:.*self_attn\":{}},\"sym\"")), "none");
  EXPECT_THAT(modules_of(with(all, "\"sym\"", "\"dynamic\":{\"+:.*up\":{\"bits\":8}},\"sym\"")),
              HasSubstr("dynamic is +:.*up; this engine knows \"-:\""));
  const std::string awq = R"({"quant_method":"awq","bits":4,"group_size":64,"zero_point":true,
      "version":"gemm","modules_to_not_convert":["self_attn","mlp.gate"]})";
  EXPECT_EQ(format_of(awq), "int4 group 64 zeros, scales f16, activations none, as awq");
  EXPECT_THAT(format_of(with(awq, "gemm",
                             "gemv")), HasSubstr("version is gemv; this engine knows"));
  EXPECT_THAT(format_of(with(awq, "\"zero_point\":true", "\"zero_point\":false")),
              HasSubstr("zero_point is false"));
  EXPECT_EQ(modules_of(awq), "none");
  EXPECT_EQ(modules_of(with(awq, "\"self_attn\",", "")), kAttention);
}

std::string compressed(const std::string& weights, const std::string& inputs) {
  return R"({"quant_method":"compressed-tensors","format":"x","quantization_status":"compressed",
      "kv_cache_scheme":null,"ignore":["lm_head","re:.*self_attn.*","re:.*mlp.gate$"],
      "config_groups":{"group_0":{"targets":["Linear"],"output_activations":null,"weights":)" +
         weights + ",\"input_activations\":" + inputs + "}}}";
}
std::string arguments(int bits, const std::string& type, const std::string& strategy,
                      const std::string& more = "\"dynamic\":false") {
  return "{\"num_bits\":" + std::to_string(bits) + ",\"type\":\"" + type + "\",\"strategy\":\"" +
         strategy + "\"," + more + "}";
}

TEST(CompressedTensors, Fp8) {
  const std::string token = arguments(8, "float", "token", "\"dynamic\":true");
  EXPECT_EQ(format_of(compressed(arguments(8, "float", "channel"), token)),
            "fp8-channel, scales bf16, scalars bf16, activations fp8-token, as fp8");
  EXPECT_EQ(format_of(compressed(arguments(8, "float", "tensor"), arguments(8, "float", "tensor"))),
            "fp8-tensor, scales bf16, scalars bf16, activations fp8-static, as fp8");
  EXPECT_EQ(format_of(compressed(arguments(8, "float", "channel"), "null")),
            "fp8-channel, scales bf16, scalars bf16, activations none, as fp8");
  const std::string block = arguments(8, "float", "block", "\"block_structure\":[128,128]");
  const std::string group = arguments(8, "float", "group", "\"dynamic\":true,\"group_size\":128");
  EXPECT_EQ(format_of(compressed(block, group)),
            "fp8-block, scales bf16, scalars bf16, activations fp8-token-group, as fp8");
  EXPECT_THAT(format_of(compressed(with(block, "[128,128]", "[64,64]"), group)),
              HasSubstr("block_structure is [64,64]"));
  EXPECT_THAT(format_of(compressed(arguments(8, "float", "tensor"),
                                   arguments(8, "float", "tensor", "\"dynamic\":true"))),
              HasSubstr("input_activations: type, num_bits and strategy are float 8 tensor, "
                        "dynamic"));
}

TEST(CompressedTensors, FourBits) {
  const std::string nvfp4 = arguments(4, "float", "tensor_group", "\"group_size\":16");
  EXPECT_EQ(format_of(compressed(nvfp4, with(nvfp4, "}", ",\"dynamic\":\"local\"}"))),
            "nvfp4, activations nvfp4, as compressed-tensors nvfp4");
  EXPECT_EQ(format_of(compressed(nvfp4, "null")),
            "nvfp4, activations none, as compressed-tensors nvfp4");
  EXPECT_EQ(format_of(compressed(arguments(4, "float", "group", "\"group_size\":32"), "null")),
            "mxfp4, activations none, as mxfp4 per expert "
            "(weight_packed, as INC and compressed-tensors)");
  const std::string int4 = arguments(4, "int", "group", "\"group_size\":64,\"symmetric\":false");
  EXPECT_EQ(format_of(compressed(int4, "null")),
            "int4 group 64 zeros, scales bf16, activations none, as compressed-tensors int4");
  EXPECT_EQ(format_of(compressed(with(int4, "false", "true,\"actorder\":\"group\""), "null")),
            "int4 group 64 act-order, scales bf16, activations none, as compressed-tensors int4");
  EXPECT_EQ(format_of(compressed(with(int4, "false", "true,\"actorder\":\"weight\""), "null")),
            "int4 group 64, scales bf16, activations none, as compressed-tensors int4");
  EXPECT_THAT(format_of(compressed(with(int4, "group_size\":64", "group_size\":-1"), "null")),
              HasSubstr("int 4 group of -1; this engine knows int 4 by group"));
  EXPECT_THAT(format_of(compressed(arguments(8, "int", "channel"), "null")),
              HasSubstr("int 8 channel; this engine knows float 8, float 4, int 4"));
  EXPECT_THAT(format_of(compressed(nvfp4, arguments(8, "float", "tensor"))),
              HasSubstr("with NVFP4 weights"));
  EXPECT_THAT(format_of(compressed(nvfp4, with(nvfp4, "}", ",\"dynamic\":\"global\"}"))),
              HasSubstr("dynamic is global"));
}

TEST(CompressedTensors, WhatElseTheFilesMayHoldIsRefused) {
  const std::string plain = compressed(arguments(8, "float", "channel"), "null");
  EXPECT_THAT(format_of(with(plain, "\"compressed\"", "\"frozen\"")),
              HasSubstr("quantization_status is frozen"));
  const std::string cache = with(plain, "\"kv_cache_scheme\":null",
                                 "\"kv_cache_scheme\":{\"num_bits\":8,\"type\":\"float\"}");
  EXPECT_EQ(cache_of(plain), "none");
  EXPECT_EQ(cache_of(cache), "of attention, f32 []");
  EXPECT_THAT(cache_of(with(cache, "\"float\"}", "\"int\"}")),
              HasSubstr("kv_cache_scheme is int 8; this engine knows float 8"));
  EXPECT_THAT(cache_of(with(cache, "{\"num_bits\":8,", "{")), HasSubstr("num_bits is missing"));
  EXPECT_THAT(format_of(with(plain, "\"ignore\"", "\"sparsity_config\":{\"format\":\"sparse-24\"},"
                                                  "\"ignore\"")),
              HasSubstr("sparsity_config is"));
  EXPECT_THAT(format_of(with(plain, "\"group_0\"", "\"g\":{},\"group_0\"")),
              HasSubstr("config_groups is 2 groups; this engine knows one group"));
  EXPECT_THAT(format_of(with(plain, "[\"Linear\"]", "[\"re:.*experts.*\"]")),
              HasSubstr("targets is [\"re:.*experts.*\"]"));
  EXPECT_THAT(format_of(with(plain, "\"output_activations\":null", "\"output_activations\":{}")),
              HasSubstr("output_activations is {}"));
  EXPECT_EQ(modules_of(with(plain, "\"re:.*self_attn.*\",", "")), kAttention);
}

bool pattern_matches(const std::string& pattern, const std::string& name) {
  const auto parsed = NamePattern::parse(pattern);
  EXPECT_TRUE(parsed.ok()) << pattern;
  MatchWork work;
  return parsed.ok() && parsed->matches(name, work);
}

TEST(NamePattern, NamesCoverWhatLiesUnderThemAndWholePartsInARow) {
  EXPECT_TRUE(pattern_matches("lm_head", "lm_head"));
  EXPECT_TRUE(pattern_matches("self_attn", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(pattern_matches("model.layers.1", "model.layers.1.mlp.gate"));
  EXPECT_FALSE(pattern_matches("model.layers.1", "model.layers.10.mlp.gate"));
  EXPECT_FALSE(pattern_matches("gate", "model.layers.0.mlp.gate_proj"));
}

TEST(NamePattern, GlobsMustCoverTheWholeName) {
  EXPECT_TRUE(pattern_matches("*self_attn*", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(pattern_matches("model.layers.?.mlp.gate", "model.layers.7.mlp.gate"));
  EXPECT_FALSE(pattern_matches("*self_attn", "model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(pattern_matches("model.layers.?.mlp.gate", "model.layers.17.mlp.gate"));
}

TEST(NamePattern, ExpressionsMatchFromTheBeginning) {
  EXPECT_TRUE(pattern_matches("re:.*self_attn", "model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(pattern_matches("re:self_attn", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(pattern_matches("re:.*mlp\\.gate$", "model.layers.0.mlp.gate"));
  EXPECT_FALSE(pattern_matches("re:.*mlp.gate$", "model.layers.0.mlp.gate_proj"));
  EXPECT_FALSE(pattern_matches("re:.*mlp\\.gate$", "model.layers.0.mlpxgate"));
  EXPECT_TRUE(pattern_matches("re:^model.layers.\\d+.self_attn", "model.layers.47.self_attn.q"));
  EXPECT_FALSE(pattern_matches("re:model.layers.\\d+.self_attn", "model.layers.x.self_attn.q"));
  EXPECT_TRUE(pattern_matches("re:lm_?head", "lmhead"));
  for (const char* bad : {"re:(a|b)", "re:[ab]", "re:a$b", "re:*a", "re:a\\", "re:\\w", ""}) {
    EXPECT_EQ(NamePattern::parse(bad).error().code(), ErrorCode::kUnsupported) << bad;
  }
}

TEST(NamePattern, NoPatternIsSlow) {
  std::string pattern = "re:";
  for (int i = 0; i < 300; ++i) pattern += ".*";
  EXPECT_FALSE(pattern_matches(pattern + "x$", std::string(1000, 'a')));
}

// As a glob is defined.
bool glob_covers(std::string_view glob, std::string_view name) {
  if (glob.empty()) return name.empty();
  if (glob[0] == '*') {
    return glob_covers(glob.substr(1), name) ||
           (!name.empty() && glob_covers(glob, name.substr(1)));
  }
  return !name.empty() && (glob[0] == '?' || glob[0] == name[0]) &&
         glob_covers(glob.substr(1), name.substr(1));
}

TEST(NamePattern, GlobsAndFamiliesAgreeWithTheDefinition) {
  base::Rng rng(7);
  const auto random_text = [&](std::string_view alphabet, std::uint64_t most) {
    std::string text;
    for (std::uint64_t n = rng.next_below(most); n > 0; --n) {
      text += alphabet[rng.next_below(alphabet.size())];
    }
    return text;
  };
  const NameFamily family{{"a"}, {"b", "ab", "aa"}, {"0", "1", "10"}};
  int covered = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::string glob = "*" + random_text("ab01.*?", 7);
    const std::string name = random_text("ab.", 9);
    EXPECT_EQ(pattern_matches(glob, name), glob_covers(glob, name)) << glob << " " << name;
    bool any = false;
    for (const std::string& middle : family[1]) {
      for (const std::string& last : family[2]) {
        any |= glob_covers(glob, "a." + middle + "." + last);
      }
    }
    MatchWork work;
    const auto found = NamePattern::parse(glob)->match_of(family, work);
    EXPECT_EQ(found.has_value(), any) << glob;
    EXPECT_TRUE(glob_covers(glob, found.value_or("")) || !any) << glob;
    covered += any;
  }
  EXPECT_GT(covered, 2000);
}

std::string fp8_with(const std::string& kept) {
  return R"({"quant_method":"fp8","activation_scheme":"dynamic","modules_to_not_convert":)" + kept +
         "}";
}
std::string awq_with(const std::string& kept) {
  return R"({"quant_method":"awq","bits":4,"group_size":64,"zero_point":true,
      "modules_to_not_convert":)" + kept + "}";
}
std::string modelopt_with(const std::string& kept) {
  return R"({"quant_method":"modelopt","quant_algo":"NVFP4","ignore":)" + kept + "}";
}
std::string compressed_with(const std::string& kept) {
  return with(compressed(arguments(8, "float", "channel"), "null"),
              R"(["lm_head","re:.*self_attn.*","re:.*mlp.gate$"])", kept);
}
std::string gptq_with(const std::string& rule) {
  return R"({"quant_method":"gptq","bits":4,"group_size":128,"dynamic":{")" + rule + R"(":{}}})";
}
std::string auto_round_with(const std::string& more) {
  return R"({"quant_method":"auto-round","data_type":"mx_fp","bits":4,"group_size":32,)" + more +
         "}";
}

TEST(KeptExperts, AreRefusedByListEntryAndMatrix) {
  const std::string first = "leaves model.layers.0.mlp.experts.0.gate_proj as it was; this engine "
                            "knows experts that are all quantised alike";
  const std::string config = "config.json: quantization_config: ";
  for (const auto& [quantization, text] : std::vector<std::pair<std::string, std::string>>{
           {compressed_with(R"(["lm_head","re:.*experts.*"])"),
            config + "ignore: \"re:.*experts.*\" " + first},
           {fp8_with(R"(["lm_head","experts"])"),
            config + "modules_to_not_convert: \"experts\" " + first},
           {fp8_with(R"(["model.layers.1.mlp.experts.11.gate_proj"])"),
            "\" leaves model.layers.1.mlp.experts.11.gate_proj as it was"},
           {fp8_with(R"(["up_proj"])"), "leaves model.layers.0.mlp.experts.0.up_proj as it was"},
           {fp8_with(R"(["model.layers.1"])"), "leaves model.layers.1.mlp.experts.0.gate_proj"},
           {awq_with(R"(["mlp","lm_head"])"), "modules_to_not_convert: \"mlp\" " + first},
           {awq_with(R"(["lm_head","mlp.experts.10"])"),
            "leaves model.layers.0.mlp.experts.10.gate_proj"},
           {modelopt_with(R"(["*mlp.experts.1?.down*"])"),
            "leaves model.layers.0.mlp.experts.10.down_proj"},
           {gptq_with("-:.*experts.0.*"), config + "dynamic: \"-:.*experts.0.*\" " + first},
           {auto_round_with(
                R"("extra_config":{"model.layers.0.mlp.experts.0.up_proj":{"bits":16}})"),
            config + "extra_config: \"model.layers.0.mlp.experts.0.up_proj\" leaves "},
           {auto_round_with(R"("extra_config":{"experts\\.7\\.":{"bits":16}})"),
            "extra_config: \"experts\\.7\\.\" leaves model.layers.0.mlp.experts.7.gate_proj"}}) {
    EXPECT_THAT(format_of(quantization), HasSubstr(text));
  }
  const std::string mxfp4 = R"({"quant_method":"mxfp4","modules_to_not_convert":["mlp.experts"]})";
  EXPECT_THAT(format_of(mxfp4, Architecture::kGptOss),
              HasSubstr("\"mlp.experts\" leaves model.layers.0.mlp.experts as it was"));
  EXPECT_THAT(format_of(awq_with(R"(["w3"])"), Architecture::kMixtral),
              HasSubstr("leaves model.layers.0.block_sparse_moe.experts.0.w3"));
}

// GPTQ lists what it quantised instead, by names within a block.
TEST(KeptExperts, AListOfWhatIsQuantisedMustHaveThemAll) {
  const auto listed = [](const std::string& names) {
    return format_of(R"({"quant_method":"gptq","bits":4,"group_size":128,
        "modules_in_block_to_quantize":[["self_attn.q_proj"],[)" + names + "]]}");
  };
  const auto each = [](const std::string& before, int count, const std::string& after) {
    std::string names;
    for (int e = 0; e < count; ++e) {
      names += (e == 0 ? "\"" : ",\"") + before + std::to_string(e) + after + "\"";
    }
    return names;
  };
  const std::string gate = each("mlp.experts.", 12, ".gate_proj");
  const std::string up = each("mlp.experts.", 12, ".up_proj");
  const std::string list = "quantization_config: modules_in_block_to_quantize: ";
  const std::string alike = "; this engine knows experts that are all quantised alike";
  EXPECT_THAT(listed(gate + "," + up),
              HasSubstr(list + "\"mlp.experts.0.gate_proj\" is of experts, and no entry is of "
                        "model.layers.0.mlp.experts.0.down_proj" + alike));
  EXPECT_THAT(listed(gate + "," + up + "," + each("mlp.experts.", 11, ".down_proj")),
              HasSubstr("no entry is of model.layers.0.mlp.experts.11.down_proj" + alike));
  EXPECT_THAT(listed("\"model.layers.0.mlp.experts\""),
              HasSubstr(list + "\"model.layers.0.mlp.experts\" is of experts, and no entry is of "
                        "model.layers.1.mlp.experts.0.gate_proj" + alike));
  for (const std::string& all :
       {gate + "," + up + "," + each("mlp.experts.", 12, ".down_proj"), each("experts.", 12, ""),
        gate + "," + up + ",\"down_proj\"", std::string("\"experts\""),
        std::string("\"0.mlp.experts\",\"layers.1.mlp\""),
        each("mlp.experts.", 11, "") + ",\"1.mlp.experts.11\",\"layers.0.mlp.experts.11\""}) {
    EXPECT_THAT(listed(all), HasSubstr("int4 group 128")) << all;
  }
}

// The largest lists that a file can have, against the largest model.
TEST(KeptModules, AListCostsNoMoreThanItsBound) {
  ModelConfig config = model(Architecture::kQwen3Moe);
  config.layer_count = 1024;
  config.expert_count = 4096;
  const auto refusal = [&](const std::function<std::string(int)>& pattern) {
    std::string kept = "[";
    for (int i = 0; i < 3000; ++i) kept += (i == 0 ? "\"" : ",\"") + pattern(i) + "\"";
    simdjson::dom::parser parser;
    const std::string text = "{\"quantization_config\":" + fp8_with(kept + "]") + "}";
    const auto fields = JsonFields::parse(parser, text, "config.json", {1 << 20, 16});
    EXPECT_TRUE(fields.ok()) << fields.error().message();
    const Status parsed = parse_quantization(*fields, config);
    return parsed.ok() ? "ok" : parsed.error().to_string();
  };
  const auto repeated = [](const std::string& text, int i) {
    std::string all;
    while (all.size() < 220) all += text;
    return all + std::to_string(i) + "_";
  };
  EXPECT_EQ(refusal([](int i) { return fmt::format("layers.{}.self_attn.q_proj", i); }), "ok");
  const auto bounded = HasSubstr("modules_to_not_convert: to match its 3000 patterns of modules "
                                 "against those of this model takes more than 67108864 steps");
  EXPECT_THAT(refusal([](int i) { return fmt::format("*{}?_", i); }), bounded);
  EXPECT_THAT(refusal([&](int i) { return repeated("*e*l", i); }), bounded);
  EXPECT_THAT(refusal([&](int i) { return "re:" + repeated(".?", i); }), bounded);
  // A model of today with a list of today.
  config.layer_count = 128;
  config.expert_count = 512;
  EXPECT_EQ(refusal([](int i) { return fmt::format("model.layers.{}.self*", i % 128); }), "ok");
}

TEST(KeptExperts, RoutersAndWhatElsePublishersListAreNoExperts) {
  const std::string gpt_oss = R"({"quant_method":"mxfp4","modules_to_not_convert":
      ["model.layers.*.self_attn","model.layers.*.mlp.router","model.embed_tokens","lm_head"]})";
  EXPECT_THAT(format_of(gpt_oss, Architecture::kGptOss), HasSubstr("mxfp4, activations none"));
  EXPECT_EQ(modules_of(fp8_with(R"(["lm_head","model.layers.0.input_layernorm",
      "model.layers.0.mlp.gate","model.layers.1.mlp.gate","model.layers.2.mlp.experts",
      "mlp.gate_proj","model.layers.1.mlp.experts.12","self_attn"])")), "none");
  EXPECT_THAT(format_of(awq_with(R"(["gate"])"), Architecture::kMixtral), HasSubstr("as awq"));
  EXPECT_THAT(format_of(awq_with(R"(["gate","mlp.gate","expert","model.layers.1."])")),
              HasSubstr("as awq"));
  EXPECT_EQ(modules_of(modelopt_with(R"(["*router*","*output_layer*","*block_sparse_moe.gate*",
      "*mlp.gate.*","*mlp.gate","*lm_head*","*proj_out.*","model.layers.?.self_attn*"])")), "none");
  EXPECT_EQ(modules_of(compressed_with(R"(["lm_head","re:.*mlp.gate","re:.*gate$",
      "re:.*self_attn.*","re:.*shared_expert.*","re:model.layers.\\d+.mlp.experts$"])")), "none");
  EXPECT_EQ(modules_of(gptq_with("-:.*mlp\\\\.gate.*")), kAttention);
}

TEST(AutoRound, KeysOfExtraConfigMayBeExpressions) {
  const std::string gate = R"("mlp.gate":{"bits":16},"lm_head":{"bits":16})";
  const std::string query = R"("extra_config":{".*q_proj.*":{"bits":16},)" + gate + "}";
  EXPECT_EQ(modules_of(auto_round_with(query)),
            "self_attn.k_proj, self_attn.o_proj, self_attn.v_proj of layers 0-1");
  EXPECT_EQ(modules_of(auto_round_with(R"("extra_config":{"^model.*attn":{"bits":16},)" + gate +
                                       "}")),
            "none");
  EXPECT_EQ(modules_of(auto_round_with(R"("extra_config":{"[qk]_proj":{"bits":16}})")),
            "unsupported: config.json: quantization_config: extra_config: pattern "
            "\"re:.*[qk]_proj\" has a [; "
            "this engine knows literals, . \\d \\SIGN * + ? and a final $");
  EXPECT_THAT(modules_of(auto_round_with(R"("extra_config":{".*[":{"bits":16}})")),
              HasSubstr("pattern \"re:.*.*[\" has a ["));
}

TEST(AutoRound, BlocksThatWereQuantisedHaveAllExperts) {
  const std::string gate = R"("extra_config":{"mlp.gate":{"bits":16}},)";
  for (const char* key : {"block_name_to_quantize", "to_quant_block_names"}) {
    const auto of = [&](const std::string& blocks) {
      return modules_of(auto_round_with(gate + "\"" + key + "\":" + blocks));
    };
    EXPECT_EQ(of("null"), "lm_head; " + std::string(kAttention));
    EXPECT_EQ(of("\"\""), "lm_head; " + std::string(kAttention));
    EXPECT_EQ(of("\"model.layers\""), kAttention);
    EXPECT_EQ(of("\"visual, model.layers\""), kAttention);
    EXPECT_EQ(of(R"([["model.layers.0","model.layers.1"]])"), kAttention);
    EXPECT_EQ(of(R"(["model.layers.0.mlp","model.layers.1"])"),
              "self_attn.k_proj, self_attn.o_proj, self_attn.q_proj, self_attn.v_proj of layers 1");
    EXPECT_EQ(of(R"(["model.layers.0","model.layers.10"])"),
              "unsupported: config.json: quantization_config: " + std::string(key) +
                  " is [\"model.layers.0\",\"model.layers.10\"]; this engine knows names with all "
                  "experts, and model.layers.1.mlp.experts is in none");
    EXPECT_THAT(of("[7]"), HasSubstr("expected names of blocks"));
  }
}

}  // namespace
}  // namespace holdfast::config
