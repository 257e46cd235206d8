#include <fmt/format.h>

#include <map>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "config/expert_tensors.h"
#include "config/linear_modules.h"
#include "config/tensor_names.h"

// One dialect for all architectures: names come from config/tensor_names.h and
// config/expert_tensors.h, and which tensors there are from the config.
namespace holdfast::checkpoint {
namespace {

using config::ModelConfig;
using tensor::DType;
using tensor::Shape;

// The tensors of the linear layers that are quantised besides the experts, by their names.
using QuantizedLinears = std::map<std::string, std::vector<config::LinearTensor>>;

class Builder {
 public:
  Builder(const QuantizedLinears& quantized, std::vector<ExpectedTensor>& out)
      : quantized_(quantized), out_(out) {}
  void add(std::string name, Shape shape) {
    add(std::move(name), shape, DType::kBF16);
    out_.back().any_float = true;
  }
  void add(std::string name, Shape shape, DType dtype) {
    out_.push_back({std::move(name), dtype, shape});
  }
  void add_expert(std::string name, Shape shape, const config::ExpertTensor& tensor) {
    add(std::move(name), shape, tensor.dtype);
    out_.back().any_float = config::is_any_float(tensor);
  }
  void add_linear(const std::string& name, Shape shape, bool bias) {
    if (const auto found = quantized_.find(name); found != quantized_.end()) {
      for (const config::LinearTensor& tensor : found->second) {
        add(tensor.name, tensor.shape, tensor.dtype);
      }
    } else {
      add(name + ".weight", shape);
    }
    if (bias) add(name + ".bias", {shape[0]});
  }
  void may_lack() { out_.back().may_lack = true; }

 private:
  const QuantizedLinears& quantized_;
  std::vector<ExpectedTensor>& out_;
};

void add_attention(const ModelConfig& config, const config::LayerNames& names, Builder& builder) {
  const std::int64_t query_width = config.query_head_count * config.head_dim;
  const std::int64_t kv_width = config.kv_head_count * config.head_dim;
  builder.add(names.input_norm, {config.hidden_size});
  if (names.qkv.size() == 1) {
    builder.add_linear(names.qkv[0], {query_width + 2 * kv_width, config.hidden_size},
                       config.attention_bias);
  } else {
    for (std::size_t i = 0; i < names.qkv.size(); ++i) {
      builder.add_linear(names.qkv[i], {i == 0 ? query_width : kv_width, config.hidden_size},
                         config.attention_bias);
    }
  }
  if (config.query_key_norm) {
    builder.add(names.query_norm, {config.head_dim});
    builder.add(names.key_norm, {config.head_dim});
  }
  builder.add_linear(names.attention_out, {config.hidden_size, query_width},
                     config.attention_bias);
  if (!names.key_scale.empty()) {
    const Shape scalar = config.cache_scales.have_axis ? Shape{1} : Shape{};
    builder.add(names.key_scale, scalar, config.cache_scales.dtype);
    builder.add(names.value_scale, scalar, config.cache_scales.dtype);
  }
  if (config.attention_sinks) builder.add(names.sinks, {config.query_head_count});
  builder.add(names.post_attention_norm, {config.hidden_size});
}

Shape with_experts(std::int64_t count, const Shape& shape) {
  std::vector<std::int64_t> dims{count};
  dims.insert(dims.end(), shape.dims().begin(), shape.dims().end());
  return *Shape::from_dims(dims);
}

void add_experts(const ModelConfig& config, const std::vector<config::ExpertTensor>& experts,
                 std::int64_t layer, Builder& builder) {
  const std::string prefix = config::experts_prefix(config, layer) + ".";
  for (const config::ExpertTensor& tensor : experts) {
    if (!tensor.per_expert) {
      builder.add_expert(prefix + tensor.name, with_experts(config.expert_count, tensor.shape),
                         tensor);
      continue;
    }
    for (std::int64_t expert = 0; expert < config.expert_count; ++expert) {
      builder.add_expert(prefix + tensor.part_name(expert), tensor.shape, tensor);
    }
  }
}

void add_dense(const ModelConfig& config, const config::LayerNames& names, Builder& builder) {
  const std::int64_t inner = config.dense_intermediate_size;
  builder.add_linear(names.gate, {inner, config.hidden_size}, false);
  builder.add_linear(names.up, {inner, config.hidden_size}, false);
  builder.add_linear(names.down, {config.hidden_size, inner}, false);
}

class PublishedDialect final : public Dialect {
 public:
  PublishedDialect(const ModelConfig& config, std::vector<config::ExpertTensor> experts,
                   QuantizedLinears quantized)
      : experts_(std::move(experts)), quantized_(std::move(quantized)) {
    const bool gpt_oss = config.expert_format.dialect == config::ExpertDialect::kGptOssHub;
    const auto scheme = config::expert_scheme_name(config.expert_format.scheme);
    name_ = gpt_oss ? fmt::format("gpt-oss {} (Hugging Face)", scheme)
                    : fmt::format("{} {} ({})", config::architecture_name(config.architecture),
                                  scheme, expert_dialect_name(config.expert_format.dialect));
  }
  std::string_view name() const override { return name_; }

  std::vector<ExpectedTensor> expected(const ModelConfig& config) const override {
    std::vector<ExpectedTensor> tensors;
    Builder builder(quantized_, tensors);
    const Shape vocabulary{config.vocab_size, config.hidden_size};
    const config::TensorNames outer = config::tensor_names(config);
    builder.add(outer.embedding, vocabulary);
    for (std::int64_t layer = 0; layer < config.layer_count; ++layer) {
      const config::LayerNames names = config::layer_names(config, layer);
      add_attention(config, names, builder);
      if (config.is_dense(layer)) {
        add_dense(config, names, builder);
        continue;
      }
      builder.add_linear(names.router, {config.expert_count, config.hidden_size},
                         config.router_bias);
      add_experts(config, experts_, layer, builder);
    }
    builder.add(outer.final_norm, {config.hidden_size});
    builder.add_linear(outer.head.substr(0, outer.head.rfind(".weight")), vocabulary, false);
    if (config.tied_embeddings) builder.may_lack();
    return tensors;
  }

 private:
  std::vector<config::ExpertTensor> experts_;
  QuantizedLinears quantized_;
  std::string name_;
};

}  // namespace

Result<std::unique_ptr<Dialect>> choose_dialect(const ModelConfig& config) {
  HF_ASSIGN(auto experts, config::expert_tensors(config));
  QuantizedLinears quantized;
  for (const config::LinearModule& module : config::linear_modules(config)) {
    if (!config.is_quantized(module.name)) continue;
    HF_ASSIGN(quantized[module.name], config::linear_tensors(config, module));
  }
  return std::unique_ptr<Dialect>(std::make_unique<PublishedDialect>(config, std::move(experts),
                                                                     std::move(quantized)));
}

}  // namespace holdfast::checkpoint
