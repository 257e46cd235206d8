#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "tensor/codecs.h"

// The tensors of gpt-oss as openai/gpt-oss-20b names them on the hub; E experts, H hidden,
// I intermediate. Gate and up are interleaved rows (or columns) in both layouts.
namespace holdfast::checkpoint {
namespace {

using tensor::DType;

class Builder {
 public:
  explicit Builder(std::vector<ExpectedTensor>& out) : out_(out) {}
  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }
  void add(std::string_view name, tensor::Shape shape, DType dtype = DType::kBF16) {
    out_.push_back({fmt::format("{}{}", prefix_, name), dtype, shape});
  }
  // NAME.weight [rows, columns] and NAME.bias [rows].
  void add_linear(std::string_view name, std::int64_t rows, std::int64_t columns) {
    add(fmt::format("{}.weight", name), {rows, columns});
    add(fmt::format("{}.bias", name), {rows});
  }

 private:
  std::vector<ExpectedTensor>& out_;
  std::string prefix_;
};

class GptOssDialect : public Dialect {
 public:
  std::vector<ExpectedTensor> expected(const config::ModelConfig& config) const final {
    std::vector<ExpectedTensor> tensors;
    Builder builder(tensors);
    builder.add("model.embed_tokens.weight", {config.vocab_size, config.hidden_size});
    for (std::int64_t layer = 0; layer < config.layer_count; ++layer) {
      builder.set_prefix(fmt::format("model.layers.{}.", layer));
      add_attention(config, builder);
      builder.add_linear("mlp.router", config.expert_count, config.hidden_size);
      add_experts(config, builder);
    }
    builder.set_prefix("");
    builder.add("model.norm.weight", {config.hidden_size});
    builder.add("lm_head.weight", {config.vocab_size, config.hidden_size});
    return tensors;
  }

 private:
  static void add_attention(const config::ModelConfig& config, Builder& builder) {
    const std::int64_t query_width = config.query_head_count * config.head_dim;
    const std::int64_t kv_width = config.kv_head_count * config.head_dim;
    builder.add("input_layernorm.weight", {config.hidden_size});
    builder.add_linear("self_attn.q_proj", query_width, config.hidden_size);
    builder.add_linear("self_attn.k_proj", kv_width, config.hidden_size);
    builder.add_linear("self_attn.v_proj", kv_width, config.hidden_size);
    builder.add_linear("self_attn.o_proj", config.hidden_size, query_width);
    builder.add("self_attn.sinks", {config.query_head_count});
    builder.add("post_attention_layernorm.weight", {config.hidden_size});
  }
  virtual void add_experts(const config::ModelConfig& config, Builder& builder) const = 0;
};

// Blocks of 32 along the input: codes [E, out, in/32, 16], scales [E, out, in/32].
class GptOssMxfp4 final : public GptOssDialect {
 public:
  std::string_view name() const override { return "gpt-oss mxfp4 (Hugging Face)"; }

 private:
  void add_experts(const config::ModelConfig& config, Builder& builder) const override {
    add_projection(builder, "mlp.experts.gate_up_proj",
                   {config.expert_count, 2 * config.intermediate_size, config.hidden_size});
    add_projection(builder, "mlp.experts.down_proj",
                   {config.expert_count, config.hidden_size, config.intermediate_size});
  }
  // `size` is [E, out, in].
  static void add_projection(Builder& builder, std::string_view name, const tensor::Shape& size) {
    constexpr std::int64_t kBlockBytes = tensor::kMxBlock / 2;
    const std::int64_t blocks = size[2] / tensor::kMxBlock;
    builder.add(fmt::format("{}_blocks", name), {size[0], size[1], blocks, kBlockBytes},
                DType::kU8);
    builder.add(fmt::format("{}_scales", name), {size[0], size[1], blocks}, DType::kU8);
    builder.add(fmt::format("{}_bias", name), {size[0], size[1]});
  }
};

// Input-major: [E, in, out].
class GptOssBf16 final : public GptOssDialect {
 public:
  std::string_view name() const override { return "gpt-oss bf16 (Hugging Face)"; }

 private:
  void add_experts(const config::ModelConfig& config, Builder& builder) const override {
    const std::int64_t gate_up = 2 * config.intermediate_size;
    builder.add("mlp.experts.gate_up_proj", {config.expert_count, config.hidden_size, gate_up});
    builder.add("mlp.experts.gate_up_proj_bias", {config.expert_count, gate_up});
    builder.add("mlp.experts.down_proj",
                {config.expert_count, config.intermediate_size, config.hidden_size});
    builder.add("mlp.experts.down_proj_bias", {config.expert_count, config.hidden_size});
  }
};

}  // namespace

Result<std::unique_ptr<Dialect>> choose_dialect(const config::ModelConfig& config) {
  switch (config.architecture) {
    case config::Architecture::kGptOss:
      if (config.expert_format.scheme == config::ExpertScheme::kMxfp4) {
        return std::unique_ptr<Dialect>(std::make_unique<GptOssMxfp4>());
      }
      return std::unique_ptr<Dialect>(std::make_unique<GptOssBf16>());
  }
  return make_error(ErrorCode::kUnsupported, "no dialect for {} with {} experts; known are gpt_oss "
                    "with mxfp4 and with bf16",
                    config::architecture_name(config.architecture),
                    config::expert_scheme_name(config.expert_format.scheme));
}

}  // namespace holdfast::checkpoint
