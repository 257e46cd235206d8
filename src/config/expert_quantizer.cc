#include "config/expert_quantizer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/assert.h"
#include "base/error.h"
#include "config/tensor_names.h"
#include "tensor/codecs.h"
#include "tensor/int4_codecs.h"

namespace holdfast::config {
namespace {

using tensor::DType;
using tensor::MatrixCode;
using tensor::MatrixSize;
using tensor::QuantizeRule;

bool is_plain(ExpertScheme scheme) {
  return scheme == ExpertScheme::kBF16 || scheme == ExpertScheme::kF16 ||
         scheme == ExpertScheme::kF32;
}

DType plain_dtype(ExpertScheme scheme) {
  if (scheme == ExpertScheme::kF16) return DType::kF16;
  return scheme == ExpertScheme::kF32 ? DType::kF32 : DType::kBF16;
}

// As compressed-tensors publishes scales that are plain floats: bf16, scalars as [1].
ExpertFormat compressed_fp8(ExpertScheme scheme) {
  return {.scheme = scheme, .activations = ActivationScheme::kFp8Token,
          .dialect = ExpertDialect::kFp8, .scale_dtype = DType::kBF16,
          .scalar_dtype = DType::kBF16, .scalars_have_axis = true};
}

ExpertFormat usual_format(const ModelConfig& source, const QuantizeTarget& target) {
  const bool gpt_oss = source.architecture == Architecture::kGptOss;
  switch (target.scheme) {
    case ExpertScheme::kMxfp4:
      if (gpt_oss) return {.scheme = target.scheme, .dialect = ExpertDialect::kGptOssHub};
      return {.scheme = target.scheme, .dialect = ExpertDialect::kMxfp4PerExpert,
              .packed_name = "weight_packed"};
    case ExpertScheme::kMxfp8:
      return {.scheme = target.scheme, .activations = ActivationScheme::kMxfp8,
              .dialect = ExpertDialect::kFp8};
    case ExpertScheme::kFp8Block:
      return {.scheme = target.scheme, .activations = ActivationScheme::kFp8TokenGroup,
              .dialect = ExpertDialect::kFp8Block};
    case ExpertScheme::kFp8Tensor:
    case ExpertScheme::kFp8Channel: return compressed_fp8(target.scheme);
    case ExpertScheme::kNvfp4:
      return {.scheme = target.scheme, .dialect = ExpertDialect::kCompressedNvfp4,
              .scalars_have_axis = true};
    case ExpertScheme::kInt4:
      return {.scheme = target.scheme, .dialect = ExpertDialect::kCompressedInt4,
              .group_size = target.group_size, .zero_points = target.zero_points,
              .scale_dtype = DType::kBF16};
    default: break;
  }
  return {.scheme = target.scheme,
          .dialect = gpt_oss ? ExpertDialect::kGptOssHub : ExpertDialect::kHub};
}

QuantizeRule rule_of(const ExpertFormat& format, MatrixSize size) {
  QuantizeRule rule{.dtype = format.scale_dtype};
  switch (format.scheme) {
    case ExpertScheme::kMxfp4: rule.code = MatrixCode::kMxfp4; break;
    case ExpertScheme::kMxfp8: rule.code = MatrixCode::kMxfp8; break;
    case ExpertScheme::kNvfp4: rule.code = MatrixCode::kNvfp4; break;
    case ExpertScheme::kFp8Tensor:
      rule.code = MatrixCode::kFp8;
      rule.group = size;
      break;
    case ExpertScheme::kFp8Channel:
      rule.code = MatrixCode::kFp8;
      rule.group = {1, size.cols};
      break;
    case ExpertScheme::kFp8Block:
      rule.code = MatrixCode::kFp8;
      rule.group = {tensor::kFp8Block, tensor::kFp8Block};
      break;
    case ExpertScheme::kInt4:
      rule.code = MatrixCode::kInt4;
      rule.group = {1, format.group_size};
      rule.zeros = format.zero_points ? tensor::Int4Zeros::kAsymmetric
                                      : tensor::Int4Zeros::kSymmetric;
      break;
    default:
      rule.code = MatrixCode::kCast;
      rule.dtype = plain_dtype(format.scheme);
  }
  return rule;
}

// Modules other than the experts' that have a matrix: what a quantiser leaves alone.
std::vector<std::string> kept_modules(const ModelConfig& config) {
  std::vector<std::string> names{"lm_head"};
  for (std::int64_t layer = 0; layer < config.layer_count; ++layer) {
    const LayerNames layer_name = layer_names(config, layer);
    names.insert(names.end(), layer_name.qkv.begin(), layer_name.qkv.end());
    names.push_back(layer_name.attention_out);
    if (!config.is_dense(layer)) {
      names.push_back(layer_name.router);
      continue;
    }
    for (const std::string* name : {&layer_name.gate, &layer_name.up, &layer_name.down}) {
      names.push_back(*name);
    }
  }
  return names;
}

// Names of modules are plain: letters, digits, dots and underscores.
std::string kept_json(const ModelConfig& config) {
  std::string text;
  for (const std::string& name : kept_modules(config)) {
    text += fmt::format("{}\n   \"{}\"", text.empty() ? "" : ",", name);
  }
  return fmt::format("[{}\n  ]", text);
}

std::string compressed_config(const ModelConfig& config, std::string_view kind,
                              std::string_view weights, std::string_view inputs) {
  return fmt::format(
      R"({{
  "config_groups": {{
   "group_0": {{
    "input_activations": {},
    "output_activations": null,
    "targets": [
     "Linear"
    ],
    "weights": {}
   }}
  }},
  "format": "{}",
  "global_compression_ratio": null,
  "ignore": {},
  "kv_cache_scheme": null,
  "quant_method": "compressed-tensors",
  "quantization_status": "compressed"
 }})",
      inputs, weights, kind, kept_json(config));
}

struct Arguments {
  int bits;
  std::string_view type, strategy;
  std::int64_t group_size = 0;
  bool symmetric = true;
  bool dynamic = false;
};
std::string arguments_json(const Arguments& a) {
  return fmt::format(
      R"({{
     "actorder": null,
     "block_structure": null,
     "dynamic": {},
     "group_size": {},
     "num_bits": {},
     "observer": {},
     "observer_kwargs": {{}},
     "strategy": "{}",
     "symmetric": {},
     "type": "{}"
    }})",
      a.dynamic, a.group_size == 0 ? "null" : fmt::format("{}", a.group_size), a.bits,
      a.dynamic ? "null" : "\"minmax\"", a.strategy, a.symmetric, a.type);
}

std::string compressed_fp8_config(const ModelConfig& config, std::string_view strategy) {
  return compressed_config(
      config, "float-quantized", arguments_json({8, "float", strategy}),
      arguments_json({.bits = 8, .type = "float", .strategy = "token", .dynamic = true}));
}

std::string gpt_oss_config() {
  return R"({
  "modules_to_not_convert": [
   "model.layers.*.self_attn",
   "model.layers.*.mlp.router",
   "model.embed_tokens",
   "lm_head"
  ],
  "quant_method": "mxfp4"
 })";
}

std::string fp8_block_config(const ModelConfig& config) {
  return fmt::format(
      R"({{
  "activation_scheme": "dynamic",
  "fmt": "e4m3",
  "modules_to_not_convert": {},
  "quant_method": "fp8",
  "weight_block_size": [
   128,
   128
  ]
 }})",
      kept_json(config));
}

std::string modelopt_mxfp8_config(const ModelConfig& config) {
  constexpr std::string_view kPart =
      R"({"dynamic": false, "group_size": 32, "num_bits": 8, "type": "float"})";
  return fmt::format(
      R"({{
  "config_groups": {{
   "group_0": {{
    "input_activations": {},
    "targets": [
     "Linear"
    ],
    "weights": {}
   }}
  }},
  "ignore": {},
  "producer": {{
   "name": "holdfast"
  }},
  "quant_algo": "MXFP8",
  "quant_method": "modelopt"
 }})",
      kPart, kPart, kept_json(config));
}

Status check_bytes(const char* what, std::size_t have, std::size_t want) {
  if (have == want) return {};
  return make_error(ErrorCode::kMismatch, "experts' {}: {} bytes, the format has {}", what, have,
                    want);
}

// A role's one value. An empty span is a format that has none.
template <typename T, std::size_t N>
Status store(const char* what, const T (&values)[N], std::span<std::byte> to, bool wanted) {
  HF_TRY(check_bytes(what, to.size(), wanted ? sizeof(values) : 0));
  if (wanted) std::memcpy(to.data(), values, sizeof(values));
  return {};
}

Status pack_zeros(const QuantizeRule& rule, MatrixSize size, const std::vector<std::byte>& zeros,
                  std::span<std::byte> to) {
  HF_TRY(check_bytes("zeros", to.size(), zeros.size() / 2));
  if (zeros.empty()) return {};
  std::vector<std::int32_t> words(zeros.size() / tensor::kInt4PerWord);
  const std::span unpacked(reinterpret_cast<const std::uint8_t*>(zeros.data()), zeros.size());
  HF_TRY(tensor::pack_int4_zeros(tensor::Int4Packing::kCompressedTensors,
                                 {size.rows, size.cols, rule.group.cols}, unpacked, words));
  std::memcpy(to.data(), words.data(), to.size());
  return {};
}

}  // namespace

Result<ExpertFormat> quantized_format(const ModelConfig& source, const QuantizeTarget& target) {
  if (!is_plain(source.expert_format.scheme)) {
    return make_error(ErrorCode::kUnsupported,
                      "the experts are {} already; bf16, f16 and f32 ones can be quantised",
                      to_text(source.expert_format));
  }
  ModelConfig config = source;
  config.expert_format = usual_format(source, target);
  HF_TRY(expert_tensors(config));
  if (target.scheme == ExpertScheme::kInt4 && target.group_size % tensor::kInt4PerWord != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "int4 in groups of {}: the kernels need a multiple of {}", target.group_size,
                      tensor::kInt4PerWord);
  }
  return config.expert_format;
}

std::string quantization_config_json(const ModelConfig& config) {
  const ExpertFormat& format = config.expert_format;
  switch (format.scheme) {
    case ExpertScheme::kMxfp4:
      if (format.dialect == ExpertDialect::kGptOssHub) return gpt_oss_config();
      return compressed_config(config, "mxfp4-pack-quantized",
                               arguments_json({4, "float", "group", tensor::kMxBlock}), "null");
    case ExpertScheme::kMxfp8: return modelopt_mxfp8_config(config);
    case ExpertScheme::kFp8Block: return fp8_block_config(config);
    case ExpertScheme::kFp8Tensor: return compressed_fp8_config(config, "tensor");
    case ExpertScheme::kFp8Channel: return compressed_fp8_config(config, "channel");
    case ExpertScheme::kNvfp4:
      return compressed_config(
          config, "nvfp4-pack-quantized",
          arguments_json({4, "float", "tensor_group", tensor::kNvfp4Block}), "null");
    case ExpertScheme::kInt4:
      return compressed_config(
          config, "pack-quantized",
          arguments_json({4, "int", "group", format.group_size, !format.zero_points}), "null");
    default: break;
  }
  HF_ASSERT(false, "a plain format has no quantization_config");
  return {};
}

bool shares_global_scale(const ExpertFormat& format) {
  return format.scheme == ExpertScheme::kNvfp4;
}

std::span<std::byte>* MatrixTensors::find(TensorRole role) {
  switch (role) {
    case TensorRole::kWeight: return &weight;
    case TensorRole::kScale: return &scale;
    case TensorRole::kGlobalScale: return &global_scale;
    case TensorRole::kZeros: return &zeros;
    case TensorRole::kShape: return &shape;
    case TensorRole::kInputScale:
    case TensorRole::kGroupIndex:
    case TensorRole::kBias: break;
  }
  return nullptr;
}

Status quantize_matrix(const ExpertFormat& format, const tensor::MatrixValues& values,
                       const MatrixAmax& amax, const MatrixTensors& out) {
  const MatrixSize size = values.size;
  QuantizeRule rule = rule_of(format, size);
  rule.whole = amax.own;
  const bool nvfp4 = format.scheme == ExpertScheme::kNvfp4;
  if (nvfp4) {
    const auto kind = format.dialect == ExpertDialect::kModelOptNvfp4
                          ? tensor::GlobalScale::kMultiplier
                          : tensor::GlobalScale::kDivisor;
    const tensor::Nvfp4Global global = tensor::choose_nvfp4_global(kind, amax.shared);
    rule.whole = global.multiplier;
    HF_TRY(store("global scale", {global.stored}, out.global_scale, true));
  } else {
    HF_TRY(check_bytes("global scale", out.global_scale.size(), 0));
  }
  HF_TRY(store("shape", {size.rows, size.cols}, out.shape,
               format.dialect == ExpertDialect::kCompressedInt4));
  HF_ASSIGN(const tensor::QuantizedBytes bytes, tensor::quantized_bytes(rule, size));
  std::vector<std::byte> zeros(bytes.zeros);
  HF_TRY(tensor::quantize_rows(rule, values, {0, size.rows}, {out.weight, out.scale, zeros}));
  return pack_zeros(rule, size, zeros, out.zeros);
}

std::uint64_t quantize_scratch_bytes(const ExpertFormat& format, MatrixSize size) {
  const auto cols = static_cast<std::uint64_t>(size.cols);
  const auto rows = static_cast<std::uint64_t>(size.rows);
  const std::uint64_t floats = (cols + 32) * static_cast<std::uint64_t>(tensor::kQuantizeUnit);
  const std::uint64_t zeros =
      format.zero_points ? rows * cols / static_cast<std::uint64_t>(format.group_size) * 2 : 0;
  return floats * sizeof(float) + zeros;
}

tensor::MatrixValues matrix_values(const ExpertTensor& tensor, const std::byte* data) {
  const std::int64_t first = tensor.shape[0];
  const std::int64_t second = tensor.shape[1];
  if (!tensor.input_major) return {tensor.dtype, data, {first, second}, second, 1};
  return {tensor.dtype, data, {second, first}, 1, second};
}

}  // namespace holdfast::config
