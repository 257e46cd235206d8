#include "checkpoint/random_model.h"

#include <fmt/ranges.h>

#include <cstdint>

#include "base/error.h"
#include "holdfast/random_checkpoint.h"

namespace holdfast::checkpoint {
namespace {

struct Numbers {
  int layers, experts, experts_per_token;
  int hidden, intermediate;
  int query_heads, kv_heads, head_dim;
  int vocab, window, max_positions, original_positions;
  double rope_factor;
  int bos, eos, pad;
  int other_eos[2];
};

constexpr Numbers kGptOss20b = {.layers = 24, .experts = 32, .experts_per_token = 4,
                                .hidden = 2880, .intermediate = 2880,
                                .query_heads = 64, .kv_heads = 8, .head_dim = 64,
                                .vocab = 201088, .window = 128, .max_positions = 131072,
                                .original_positions = 4096, .rope_factor = 32.0,
                                .bos = 199998, .eos = 200002, .pad = 199999,
                                .other_eos = {199999, 200012}};
// The numbers of models/gptoss-tiny-A, which can replace it and lend it a tokenizer.
constexpr Numbers kTiny = {.layers = 4, .experts = 8, .experts_per_token = 2,
                           .hidden = 256, .intermediate = 64,
                           .query_heads = 8, .kv_heads = 2, .head_dim = 32,
                           .vocab = 1024, .window = 32, .max_positions = 1024,
                           .original_positions = 256, .rope_factor = 4.0,
                           .bos = 1014, .eos = 1016, .pad = 1015, .other_eos = {1015, 1022}};

constexpr Numbers with(Numbers numbers, int layers, int experts) {
  numbers.layers = layers;
  numbers.experts = experts;
  return numbers;
}

std::string layer_types(int layers) {
  std::vector<std::string_view> types;
  for (int i = 0; i < layers; ++i) {
    types.push_back(i % 2 == 0 ? "\"sliding_attention\"" : "\"full_attention\"");
  }
  return fmt::format("{}", fmt::join(types, ",\n  "));
}

std::string config_json(const Numbers& n) {
  std::string text = "{\n \"architectures\": [\n  \"GptOssForCausalLM\"\n ],\n";
  const auto add = [&text](std::string_view key, const auto& value) {
    text += fmt::format(" \"{}\": {},\n", key, value);
  };
  add("attention_bias", true);
  add("attention_dropout", "0.0");
  add("eos_token_id", n.eos);
  add("experts_per_token", n.experts_per_token);
  add("head_dim", n.head_dim);
  add("hidden_act", "\"silu\"");
  add("hidden_size", n.hidden);
  add("initial_context_length", n.original_positions);
  add("initializer_range", "0.02");
  add("intermediate_size", n.intermediate);
  add("layer_types", fmt::format("[\n  {}\n ]", layer_types(n.layers)));
  add("max_position_embeddings", n.max_positions);
  add("model_type", "\"gpt_oss\"");
  add("num_attention_heads", n.query_heads);
  add("num_experts_per_tok", n.experts_per_token);
  add("num_hidden_layers", n.layers);
  add("num_key_value_heads", n.kv_heads);
  add("num_local_experts", n.experts);
  add("output_router_logits", false);
  add("pad_token_id", n.pad);
  add("quantization_config",
      "{\n  \"modules_to_not_convert\": [\n   \"model.layers.*.self_attn\",\n"
      "   \"model.layers.*.mlp.router\",\n   \"model.embed_tokens\",\n   \"lm_head\"\n  ],\n"
      "  \"quant_method\": \"mxfp4\"\n }");
  add("rms_norm_eps", "1e-05");
  add("rope_scaling",
      fmt::format("{{\n  \"beta_fast\": 32.0,\n  \"beta_slow\": 1.0,\n  \"factor\": {:.1f},\n"
                  "  \"original_max_position_embeddings\": {},\n  \"rope_type\": \"yarn\",\n"
                  "  \"truncate\": false\n }}",
                  n.rope_factor, n.original_positions));
  add("rope_theta", 150000);
  add("router_aux_loss_coef", "0.9");
  add("sliding_window", n.window);
  add("swiglu_limit", "7.0");
  add("tie_word_embeddings", false);
  add("transformers_version", "\"4.55.0.dev0\"");
  add("use_cache", true);
  return text + fmt::format(" \"vocab_size\": {}\n}}\n", n.vocab);
}

std::string generation_json(const Numbers& n) {
  return fmt::format("{{\n \"bos_token_id\": {},\n \"do_sample\": true,\n \"eos_token_id\": [\n"
                     "  {},\n  {},\n  {}\n ],\n \"pad_token_id\": {},\n"
                     " \"transformers_version\": \"4.55.0.dev0\"\n}}\n",
                     n.bos, n.eos, n.other_eos[0], n.other_eos[1], n.pad);
}

}  // namespace

Result<RandomModel> random_model(std::string_view like, std::string_view scale) {
  if (scale != "full" && scale != "tiny") {
    return make_error(ErrorCode::kInvalidArgument, "scale is {}, expected full or tiny", scale);
  }
  Numbers numbers = kTiny;
  if (like == "gpt-oss-20b") {
    if (scale == "full") numbers = kGptOss20b;
  } else if (like == "gpt-oss-120b") {
    numbers = scale == "full" ? with(kGptOss20b, 36, 128) : with(kTiny, 6, 32);
  } else if (like != "tiny") {
    return make_error(ErrorCode::kInvalidArgument, "no model is known as {}; known are {}", like,
                      fmt::join(random_checkpoint_models(), ", "));
  }
  return RandomModel{config_json(numbers), generation_json(numbers)};
}

}  // namespace holdfast::checkpoint

namespace holdfast {

std::vector<std::string> random_checkpoint_models() {
  return {"gpt-oss-20b", "gpt-oss-120b", "tiny"};
}

}  // namespace holdfast
