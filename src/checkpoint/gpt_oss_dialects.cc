#include <fmt/format.h>

#include "base/assert.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "config/expert_tensors.h"

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

class GptOssDialect final : public Dialect {
 public:
  explicit GptOssDialect(const config::ModelConfig& config)
      : name_(fmt::format("gpt-oss {} (Hugging Face)",
                          config::expert_scheme_name(config.expert_format.scheme))) {}
  std::string_view name() const override { return name_; }
  std::vector<ExpectedTensor> expected(const config::ModelConfig& config) const override {
    std::vector<ExpectedTensor> tensors;
    Builder builder(tensors);
    builder.add("model.embed_tokens.weight", {config.vocab_size, config.hidden_size});
    for (std::int64_t layer = 0; layer < config.layer_count; ++layer) {
      builder.set_prefix(fmt::format("model.layers.{}.", layer));
      add_attention(config, builder);
      builder.add_linear("mlp.router", config.expert_count, config.hidden_size);
      builder.set_prefix(config::experts_prefix(config, layer) + ".");
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
  static void add_experts(const config::ModelConfig& config, Builder& builder) {
    const auto experts = config::expert_tensors(config);
    HF_ASSERT(experts.ok(), "choose_dialect has asked for the experts' tensors");
    for (const config::ExpertTensor& tensor : *experts) {
      if (!tensor.per_expert) {
        builder.add(tensor.name, with_experts(config.expert_count, tensor.shape), tensor.dtype);
        continue;
      }
      for (std::int64_t expert = 0; expert < config.expert_count; ++expert) {
        builder.add(tensor.part_name(expert), tensor.shape, tensor.dtype);
      }
    }
  }
  static tensor::Shape with_experts(std::int64_t count, const tensor::Shape& shape) {
    std::vector<std::int64_t> dims{count};
    dims.insert(dims.end(), shape.dims().begin(), shape.dims().end());
    return *tensor::Shape::from_dims(dims);
  }
  std::string name_;
};

}  // namespace

Result<std::unique_ptr<Dialect>> choose_dialect(const config::ModelConfig& config) {
  HF_TRY(config::expert_tensors(config));
  return std::unique_ptr<Dialect>(std::make_unique<GptOssDialect>(config));
}

}  // namespace holdfast::checkpoint
