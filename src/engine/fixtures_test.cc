// The model and the engine against the references of tests/golden/reference: Hugging Face's
// float32 outputs, computed independently. Tolerances are those of the fixtures: logits within
// 1e-3 (20 times the float32 error of the reference itself), greedy tokens identical.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"
#include "device/cpu/cpu_device.h"
#include "engine/engine_core.h"
#include "engine/test_support.h"

namespace holdfast::engine {

std::vector<ReferencePrompt> read_reference_prompts(const std::string& name) {
  std::ifstream file(source_path("tests/golden/reference/" + name + ".json"));
  const nlohmann::json json = nlohmann::json::parse(file);
  std::vector<ReferencePrompt> prompts;
  for (const auto& prompt : json.at("prompts")) {
    prompts.push_back({.ids = prompt.at("ids"),
                       .logprobs = prompt.at("logprobs"),
                       .greedy_ids = prompt.at("greedy_ids"),
                       .greedy_logprobs = prompt.at("greedy_logprobs")});
  }
  return prompts;
}

namespace {

constexpr float kLogitTolerance = 1e-3f;
// Of intermediates: absolute, plus relative to the largest element of the tensor, because the
// residual stream reaches the hundreds and a float32 error grows with it.
constexpr float kActivationTolerance = 1e-4f;

struct Array {
  std::vector<float> values;
  std::int64_t width = 1;
  std::span<const float> row(std::int64_t index) const {
    return std::span(values).subspan(static_cast<std::size_t>(index * width),
                                     static_cast<std::size_t>(width));
  }
  std::int64_t rows() const { return static_cast<std::int64_t>(values.size()) / width; }
};

class Reference {
 public:
  explicit Reference(const std::string& name)
      : prompts(read_reference_prompts(name)),
        file_(checkpoint::SafetensorsFile::open(
                  source_path("tests/golden/reference/" + name + ".safetensors"))
                  .value()) {}

  Array array(const std::string& name) const {
    const checkpoint::TensorEntry* entry = file_->find(name);
    if (entry == nullptr) throw std::runtime_error("the reference lacks " + name);
    Array result;
    result.values.resize(static_cast<std::size_t>(entry->shape.element_count()));
    const std::byte* data = file_->data(*entry).data();
    for (std::size_t i = 0; i < result.values.size(); ++i) {
      if (entry->dtype == tensor::DType::kI32) {
        std::int32_t value;
        std::memcpy(&value, data + i * 4, 4);
        result.values[i] = static_cast<float>(value);
      } else {
        std::memcpy(&result.values[i], data + i * 4, 4);
      }
    }
    if (entry->shape.rank() > 0) result.width = entry->shape[entry->shape.rank() - 1];
    return result;
  }

  std::vector<ReferencePrompt> prompts;

 private:
  std::unique_ptr<checkpoint::SafetensorsFile> file_;
};

float largest_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  float worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (!(difference <= worst)) worst = difference;  // a NaN counts as the worst
  }
  return worst;
}

struct Case {
  const char* label;
  std::string (*directory)();
  const char* reference;
  const char* kernels;
  const char* experts;
  // How many layers have intermediates, and which prompts have the logits of decoding.
  int layers = 2;
  std::vector<std::size_t> decoded = {2, 7};
};
// Of Qwen3-MoE and Mixtral the references hold less.
Case hub_case(const char* label, std::string (*directory)(), const char* reference,
              const char* kernels) {
  return {.label = label,
          .directory = directory,
          .reference = reference,
          .kernels = kernels,
          .experts = std::string_view(kernels) == "fast" ? "auto" : "reference",
          .layers = 1,
          .decoded = {2}};
}
void PrintTo(const Case& c, std::ostream* out) { *out << c.label; }

class Fixtures : public testing::TestWithParam<Case> {
 protected:
  EngineOptions options() const {
    EngineOptions options = test_options(GetParam().directory());
    options.kernels = GetParam().kernels;
    options.experts = GetParam().experts;
    options.expert_activations = "none";  // as in the references
    return options;
  }
  Reference reference_{GetParam().reference};
};

INSTANTIATE_TEST_SUITE_P(
    Models, Fixtures,
    testing::Values(
        Case{"AMxfp4Fast", model_a, "gptoss-tiny-A", "fast", "auto"},
        Case{"AMxfp4Reference", model_a, "gptoss-tiny-A", "reference", "reference"},
        Case{"BMxfp4Fast", model_b, "gptoss-tiny-B", "fast", "auto"},
        Case{"BMxfp4Reference", model_b, "gptoss-tiny-B", "reference", "reference"},
        Case{"ABf16Fast", model_a_bf16, "gptoss-tiny-A", "fast", "auto"},
        Case{"ABf16Reference", model_a_bf16, "gptoss-tiny-A", "reference", "reference"},
        hub_case("QwenBf16Fast", model_qwen_bf16, "qwen3moe-tiny-bf16", "fast"),
        hub_case("QwenBf16Reference", model_qwen_bf16, "qwen3moe-tiny-bf16", "reference"),
        hub_case("QwenFp8Fast", model_qwen_fp8, "qwen3moe-tiny-fp8", "fast"),
        hub_case("QwenFp8Reference", model_qwen_fp8, "qwen3moe-tiny-fp8", "reference"),
        hub_case("MixtralFast", model_mixtral, "mixtral-tiny-bf16", "fast"),
        hub_case("MixtralReference", model_mixtral, "mixtral-tiny-bf16", "reference")),
    [](const auto& parameter) { return parameter.param.label; });

// Of one prompt.
struct Scores {
  std::vector<std::vector<float>> logits;  // of every position
  std::vector<float> logprobs;             // of every token but the first
};

// Scores all prompts together.
std::vector<Scores> score_all(EngineCore& core,
                              const std::vector<std::vector<std::int32_t>>& prompts) {
  std::vector<Scores> scores(prompts.size());
  std::vector<Request> requests;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    Request request;
    request.prompt_ids = prompts[i];
    request.max_tokens = 0;
    request.prompt_logprobs = true;
    request.prompt_logits = [&rows = scores[i].logits](std::int64_t position,
                                                       std::span<const float> values) {
      EXPECT_EQ(position, static_cast<std::int64_t>(rows.size())) << "positions come in order";
      rows.emplace_back(values.begin(), values.end());
    };
    requests.push_back(std::move(request));
  }
  const auto transcripts = run_together(core, std::move(requests));
  for (std::size_t i = 0; i < transcripts.size(); ++i) {
    EXPECT_TRUE(transcripts[i].ended && transcripts[i].ids.empty());
    EXPECT_EQ(transcripts[i].reason, FinishReason::kLength);
    scores[i].logprobs = transcripts[i].prompt_logprobs;
  }
  return scores;
}

TEST_P(Fixtures, EveryPromptsLogitsAndLogProbabilitiesAreThoseOfTheReference) {
  const auto core = open_core(options());
  std::vector<std::vector<std::int32_t>> prompts;
  for (const ReferencePrompt& prompt : reference_.prompts) prompts.push_back(prompt.ids);
  const auto scores = score_all(*core, prompts);
  float worst = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_EQ(scores[i].logits.size(), prompts[i].size());
    const Array last = reference_.array("last_logits." + std::to_string(i));
    const float off = largest_difference(scores[i].logits.back(), last.values);
    EXPECT_LE(off, kLogitTolerance) << "prompt " << i;
    worst = std::max(worst, off);
    EXPECT_LE(largest_difference(scores[i].logprobs, reference_.prompts[i].logprobs),
              kLogitTolerance)
        << "prompt " << i;
  }
  for (const std::size_t i : {1, 4}) {
    const Array all = reference_.array("all_logits." + std::to_string(i));
    ASSERT_EQ(all.rows(), static_cast<std::int64_t>(scores[i].logits.size()));
    for (std::int64_t position = 0; position < all.rows(); ++position) {
      const float off = largest_difference(scores[i].logits[position], all.row(position));
      EXPECT_LE(off, kLogitTolerance) << "prompt " << i << " position " << position;
      worst = std::max(worst, off);
    }
  }
  RecordProperty("largest_logit_difference", std::to_string(worst));
}

TEST_P(Fixtures, GreedyContinuationsAreIdenticalAloneAndTogether) {
  const auto core = open_core(options());
  auto requests = greedy_requests(reference_.prompts);
  const auto together = run_together(*core, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(together[i].ids, reference_.prompts[i].greedy_ids) << "prompt " << i;
    EXPECT_LE(largest_difference(together[i].logprobs, reference_.prompts[i].greedy_logprobs),
              kLogitTolerance)
        << "prompt " << i;
    EXPECT_EQ(together[i].reason, FinishReason::kLength);
  }
  // The plain loops are slow, and share all but the loops with the fast kernels.
  if (options().kernels == "reference") requests.resize(3);
  const auto alone = run_one_by_one(*core, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(together[i].same_tokens(alone[i])) << "prompt " << i << ": the batch shows";
  }
}

TEST_P(Fixtures, TeacherForcedDecodeLogitsAreThoseOfTheReferenceAndOfDecoding) {
  const auto core = open_core(options());
  std::vector<std::size_t> with_logits = GetParam().decoded;
  if (options().kernels == "reference") with_logits = {2};  // the plain loops are slow
  for (const std::size_t i : with_logits) {
    const ReferencePrompt& prompt = reference_.prompts[i];
    std::vector<std::int32_t> forced = prompt.ids;
    forced.insert(forced.end(), prompt.greedy_ids.begin(), prompt.greedy_ids.end());
    const auto logits = score_all(*core, {forced}).front().logits;
    const Array expected = reference_.array("decode_logits." + std::to_string(i));
    ASSERT_EQ(expected.rows(), static_cast<std::int64_t>(prompt.greedy_ids.size()));
    for (std::int64_t step = 0; step < expected.rows(); ++step) {
      const auto position = static_cast<std::size_t>(step) + prompt.ids.size() - 1;
      EXPECT_LE(largest_difference(logits[position], expected.row(step)), kLogitTolerance)
          << "prompt " << i << " step " << step;
    }
    // Prefill in chunks and decode one by one are the same bits.
    const Transcript decoded = run_together(*core, {greedy_request(prompt)}).front();
    for (std::size_t step = 0; step < decoded.ids.size(); ++step) {
      const auto& row = logits[step + prompt.ids.size() - 1];
      EXPECT_EQ(decoded.logprobs[step],
                static_cast<float>(log_probability(row, decoded.ids[step])))
          << "prompt " << i << " step " << step;
    }
  }
}

// ------------------------------------------------------------------------------ intermediates

// One eager step over the reference's activations prompt, with a copy of each intermediate.
std::map<std::string, Array> tap_step(Runtime& runtime, ops::Kernels& kernels,
                                      const std::vector<std::int32_t>& ids) {
  const model::DecoderSlots& slots = runtime.decoder().slots();
  const auto write = [&runtime](storage::SlotId slot, const std::vector<std::int32_t>& values) {
    ASSERT_TRUE(runtime.device()
                    .write(runtime.registry().view(slot).address,
                           reinterpret_cast<const std::byte*>(values.data()), values.size() * 4)
                    .ok());
  };
  const auto rows = static_cast<std::int32_t>(ids.size());
  std::vector<std::int32_t> counting(ids.size());
  for (std::int32_t i = 0; i < rows; ++i) counting[static_cast<std::size_t>(i)] = i;
  write(slots.token_ids, ids);
  write(slots.positions, counting);
  write(slots.slot_mapping, counting);
  write(slots.logit_rows, counting);
  write(slots.row_sequence, std::vector<std::int32_t>(ids.size(), 0));
  write(slots.block_tables, {0, 1, 2});
  write(slots.row_count, {rows});
  write(slots.logit_count, {rows});

  std::map<std::string, Array> taps;
  const auto stream = runtime.device().create_stream(2).value();
  const Status stepped = runtime.decoder().step(
      {.stream = *stream, .kernels = kernels}, rows,
      [&taps](std::string_view name, const ops::TensorView& view) {
        Array& copy = taps[std::string(name)];
        copy.width = view.shape[1];
        copy.values.resize(static_cast<std::size_t>(view.shape.element_count()));
        for (std::size_t i = 0; i < copy.values.size(); ++i) {
          copy.values[i] = view.dtype == tensor::DType::kI32
                               ? static_cast<float>(view.as<std::int32_t>()[i])
                               : view.as<float>()[i];
        }
      });
  EXPECT_TRUE(stepped.ok());
  return taps;
}

Array columns(const Array& from, std::int64_t begin, std::int64_t count) {
  Array result{.values = {}, .width = count};
  for (std::int64_t r = 0; r < from.rows(); ++r) {
    const auto row = from.row(r).subspan(static_cast<std::size_t>(begin),
                                         static_cast<std::size_t>(count));
    result.values.insert(result.values.end(), row.begin(), row.end());
  }
  return result;
}

Array difference(const Array& a, const Array& b) {
  Array result = a;
  for (std::size_t i = 0; i < a.values.size(); ++i) result.values[i] -= b.values[i];
  return result;
}

// The decoder fuses q, k and v, and adds residuals inside its ops: takes them apart again.
void split_fused(std::map<std::string, Array>& taps, const config::ModelConfig& config) {
  const std::int64_t q = config.query_head_count * config.head_dim;
  const std::int64_t kv = config.kv_head_count * config.head_dim;
  Array stream = taps.at("embed_out");
  for (std::int64_t i = 0; i < config.layer_count; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    const Array& projected = taps.at(layer + "qkv_proj_out");
    taps[layer + "q_proj_out"] = columns(projected, 0, q);
    taps[layer + "k_proj_out"] = columns(projected, q, kv);
    taps[layer + "v_proj_out"] = columns(projected, q + kv, kv);
    if (config.query_key_norm) {
      taps[layer + "q_norm_out"] = columns(taps.at(layer + "qkv_norm_out"), 0, q);
      taps[layer + "k_norm_out"] = columns(taps.at(layer + "qkv_norm_out"), q, kv);
    }
    taps[layer + "q_rope"] = columns(taps.at(layer + "qkv_rope"), 0, q);
    taps[layer + "k_rope"] = columns(taps.at(layer + "qkv_rope"), q, kv);
    const Array& middle = taps.at(layer + "after_attn_residual");
    taps[layer + "attn_out"] = difference(middle, stream);
    taps[layer + "moe_out"] = difference(taps.at(layer + "layer_out"), middle);
    stream = taps.at(layer + "layer_out");
  }
}

TEST_P(Fixtures, IntermediatesOfTheFirstLayersAreThoseOfTheReference) {
  const auto core = open_core(options());
  const auto kernels = make_kernels(core->runtime().settings().kernels);
  auto taps = tap_step(core->runtime(), *kernels, reference_.prompts[4].ids);
  split_fused(taps, core->runtime().config());
  std::vector<std::string> names = {"embed_out", "final_norm_out", "logits"};
  for (int i = 0; i < GetParam().layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    if (core->runtime().config().query_key_norm) {
      for (const char* name : {"q_norm_out", "k_norm_out"}) names.push_back(layer + name);
    }
    for (const char* name :
         {"input_layernorm_out", "q_proj_out", "k_proj_out", "v_proj_out", "q_rope", "k_rope",
          "attn_heads_out", "attn_out", "after_attn_residual", "post_attention_layernorm_out",
          "router_logits", "topk_ids", "topk_weights", "moe_out", "layer_out"}) {
      names.push_back(layer + name);
    }
  }
  for (const std::string& name : names) {
    const Array expected = reference_.array("act." + name);
    float largest = 0;
    for (const float value : expected.values) largest = std::max(largest, std::abs(value));
    EXPECT_LE(largest_difference(taps.at(name).values, expected.values),
              kActivationTolerance * (1.0f + largest))
        << name;
  }
}

// ------------------------------------------------------------------------------ invariance (I10)

TEST(Determinism, ChunkSizesThreadsAndGraphsNeverShowInTheBits) {
  const auto prompts = read_reference_prompts("gptoss-tiny-A");
  const auto requests = greedy_requests(prompts);
  const auto expected = run_together(*open_core(test_options(model_a())), requests);
  struct Variant {
    std::int64_t chunk;
    int threads;
    std::int64_t max_sequences;
  };
  for (const Variant variant : {Variant{1, 1, 8}, Variant{7, 1, 8}, Variant{64, 2, 8},
                                Variant{64, 1, 1}, Variant{64, 3, 3}, Variant{200, 1, 12}}) {
    EngineOptions options = test_options(model_a());
    options.prefill_chunk = variant.chunk;
    options.threads = variant.threads;
    options.max_sequences = variant.max_sequences;
    const auto transcripts = run_together(*open_core(options), requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(transcripts[i].same_tokens(expected[i]))
          << "prompt " << i << ", chunk " << variant.chunk << ", threads " << variant.threads
          << ", sequences " << variant.max_sequences;
    }
  }
}

}  // namespace
}  // namespace holdfast::engine
