#include "config/expert_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "tensor/codecs.h"
#include "tensor/int4_codecs.h"
#include "tensor/nvfp4_codecs.h"

// Names, dtypes and shapes as public checkpoints have them: openai/gpt-oss, Qwen3-MoE and its FP8
// releases, Mixtral; AutoFP8, ModelOpt, compressed-tensors (llm-compressor), AMD Quark, Intel
// AutoRound, AutoGPTQ and GPTQModel, AutoAWQ.
namespace holdfast::config {
namespace {

using tensor::DType;
using tensor::Shape;

constexpr std::int64_t kFp8BlockSide = 128;
constexpr std::int64_t kCodesPerByte = 2;

// One matrix [rows, columns] of an expert, as the architecture names it.
struct Matrix {
  Projection projection;
  std::string name;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  bool is_experts = true;
};

// Collects the tensors of one matrix.
class Tensors {
 public:
  Tensors(const ExpertFormat& format, std::vector<ExpertTensor>& out)
      : format_(format), out_(out) {}

  void begin(const Matrix& matrix, bool per_expert, bool input_major) {
    proto_ = {.projection = matrix.projection, .per_expert = per_expert,
              .input_major = input_major};
    name_ = matrix.name;
  }
  // NAME + `suffix`.
  void add(TensorRole role, std::string_view suffix, DType dtype, Shape shape) {
    ExpertTensor tensor = proto_;
    tensor.role = role;
    tensor.name = name_ + std::string(suffix);
    tensor.dtype = dtype;
    tensor.shape = shape;
    out_.push_back(std::move(tensor));
  }
  void add_scalar(TensorRole role, std::string_view suffix) {
    const DType dtype = role == TensorRole::kScale ? format_.scale_dtype : format_.scalar_dtype;
    add(role, suffix, dtype, format_.scalars_have_axis ? Shape{1} : Shape{});
  }
  // Only where the checkpoint has a scale for activations.
  void add_input_scale(std::string_view suffix) {
    if (format_.activations == ActivationScheme::kFp8Static ||
        format_.activations == ActivationScheme::kNvfp4) {
      add_scalar(TensorRole::kInputScale, suffix);
    }
  }

 private:
  const ExpertFormat& format_;
  std::vector<ExpertTensor>& out_;
  ExpertTensor proto_;
  std::string name_;
};

std::int64_t blocks_of(std::int64_t count, std::int64_t side) { return (count + side - 1) / side; }

bool is_plain(ExpertScheme scheme) {
  return scheme == ExpertScheme::kBF16 || scheme == ExpertScheme::kF16 ||
         scheme == ExpertScheme::kF32;
}

DType plain_dtype(ExpertScheme scheme) {
  if (scheme == ExpertScheme::kF16) return DType::kF16;
  return scheme == ExpertScheme::kF32 ? DType::kF32 : DType::kBF16;
}

// Inputs to a scale; 0 where scales are not of groups.
std::int64_t group_of(const ExpertFormat& format) {
  switch (format.scheme) {
    case ExpertScheme::kMxfp4:
    case ExpertScheme::kMxfp8: return tensor::kMxBlock;
    case ExpertScheme::kNvfp4: return tensor::kNvfp4Block;
    case ExpertScheme::kInt4: return format.group_size;
    default: return 0;
  }
}

bool goes_with(ExpertDialect dialect, ExpertScheme scheme) {
  switch (dialect) {
    case ExpertDialect::kGptOssHub: return is_plain(scheme) || scheme == ExpertScheme::kMxfp4;
    case ExpertDialect::kHub: return is_plain(scheme);
    case ExpertDialect::kFp8Block: return scheme == ExpertScheme::kFp8Block;
    case ExpertDialect::kFp8:
      return scheme == ExpertScheme::kFp8Tensor || scheme == ExpertScheme::kFp8Channel ||
             scheme == ExpertScheme::kFp8Block || scheme == ExpertScheme::kMxfp8;
    case ExpertDialect::kModelOptNvfp4:
    case ExpertDialect::kCompressedNvfp4: return scheme == ExpertScheme::kNvfp4;
    case ExpertDialect::kGptOssOriginal:
    case ExpertDialect::kMxfp4PerExpert: return scheme == ExpertScheme::kMxfp4;
    case ExpertDialect::kCompressedInt4:
    case ExpertDialect::kGptq:
    case ExpertDialect::kAwq: return scheme == ExpertScheme::kInt4;
  }
  return false;
}

bool is_fused_gpt_oss(ExpertDialect dialect) {
  return dialect == ExpertDialect::kGptOssHub || dialect == ExpertDialect::kGptOssOriginal;
}

// gpt-oss fuses gate and up in all dialects, the others in none.
bool architecture_has(Architecture architecture, ExpertDialect dialect) {
  if (architecture != Architecture::kGptOss) return !is_fused_gpt_oss(dialect);
  return is_fused_gpt_oss(dialect) || dialect == ExpertDialect::kMxfp4PerExpert;
}

Status check(const ModelConfig& config, const Matrix& matrix) {
  const ExpertFormat& format = config.expert_format;
  const auto multiple = [&](const char* what, std::int64_t count, std::int64_t of) -> Status {
    if (of >= 1 && count % of == 0) return {};
    return make_error(ErrorCode::kInvalidArgument,
                      "{}{} [{}, {}]: {} {} must be a multiple of {} ({})",
                      matrix.is_experts ? "experts' " : "", matrix.name, matrix.rows,
                      matrix.columns, what, count, of, to_text(format));
  };
  if (format.scheme == ExpertScheme::kInt4 || group_of(format) != 0) {
    HF_TRY(multiple("inputs", matrix.columns, group_of(format)));
  }
  if (format.scheme != ExpertScheme::kInt4) return {};
  // Words of eight codes: along the inputs, and for AWQ's codes and all zero points the outputs.
  HF_TRY(multiple("inputs", matrix.columns, tensor::kInt4PerWord));
  return multiple("outputs", matrix.rows, tensor::kInt4PerWord);
}

std::vector<Matrix> matrices_of(const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t inner = config.intermediate_size;
  switch (config.architecture) {
    case Architecture::kGptOss: {
      const bool original = config.expert_format.dialect == ExpertDialect::kGptOssOriginal;
      return {{Projection::kGateUp, original ? "mlp1" : "gate_up_proj", 2 * inner, hidden},
              {Projection::kDown, original ? "mlp2" : "down_proj", hidden, inner}};
    }
    case Architecture::kMixtral:
      return {{Projection::kGate, "w1", inner, hidden},
              {Projection::kUp, "w3", inner, hidden},
              {Projection::kDown, "w2", hidden, inner}};
    case Architecture::kQwen3Moe: break;
  }
  return {{Projection::kGate, "gate_proj", inner, hidden},
          {Projection::kUp, "up_proj", inner, hidden},
          {Projection::kDown, "down_proj", hidden, inner}};
}

// Interleaved gate and up in both schemes: columns in bf16, which is input-major, rows in MXFP4.
void add_gpt_oss(const ExpertFormat& format, const Matrix& matrix, Tensors& out) {
  constexpr std::int64_t kBlockBytes = tensor::kMxBlock / kCodesPerByte;
  const std::int64_t blocks = matrix.columns / tensor::kMxBlock;
  const bool original = format.dialect == ExpertDialect::kGptOssOriginal;
  if (format.scheme == ExpertScheme::kMxfp4) {
    out.begin(matrix, false, false);
    out.add(TensorRole::kWeight, original ? "_weight.blocks" : "_blocks", DType::kU8,
            {matrix.rows, blocks, kBlockBytes});
    out.add(TensorRole::kScale, original ? "_weight.scales" : "_scales", DType::kU8,
            {matrix.rows, blocks});
  } else {
    out.begin(matrix, false, true);
    out.add(TensorRole::kWeight, "", plain_dtype(format.scheme), {matrix.columns, matrix.rows});
    out.begin(matrix, false, false);
  }
  out.add(TensorRole::kBias, "_bias", DType::kBF16, {matrix.rows});
}

void add_fp8(const ExpertFormat& format, const Matrix& matrix, Tensors& out) {
  out.begin(matrix, true, false);
  out.add(TensorRole::kWeight, ".weight", DType::kF8E4M3, {matrix.rows, matrix.columns});
  switch (format.scheme) {
    case ExpertScheme::kFp8Channel:
      out.add(TensorRole::kScale, ".weight_scale", format.scale_dtype, {matrix.rows, 1});
      break;
    case ExpertScheme::kFp8Block:
      out.add(TensorRole::kScale,
              format.dialect == ExpertDialect::kFp8Block ? ".weight_scale_inv" : ".weight_scale",
              format.scale_dtype,
              {blocks_of(matrix.rows, kFp8BlockSide), blocks_of(matrix.columns, kFp8BlockSide)});
      break;
    case ExpertScheme::kMxfp8:
      out.add(TensorRole::kScale, ".weight_scale", DType::kU8,
              {matrix.rows, matrix.columns / tensor::kMxBlock});
      break;
    default: out.add_scalar(TensorRole::kScale, ".weight_scale");
  }
  out.add_input_scale(".input_scale");
}

void add_nvfp4(const ExpertFormat& format, const Matrix& matrix, Tensors& out) {
  const bool modelopt = format.dialect == ExpertDialect::kModelOptNvfp4;
  out.begin(matrix, true, false);
  out.add(TensorRole::kWeight, modelopt ? ".weight" : ".weight_packed", DType::kU8,
          {matrix.rows, matrix.columns / kCodesPerByte});
  out.add(TensorRole::kScale, ".weight_scale", DType::kF8E4M3,
          {matrix.rows, matrix.columns / tensor::kNvfp4Block});
  out.add_scalar(TensorRole::kGlobalScale, modelopt ? ".weight_scale_2" : ".weight_global_scale");
  out.add_input_scale(modelopt ? ".input_scale" : ".input_global_scale");
}

void add_mxfp4(const ExpertFormat& format, const Matrix& matrix, bool bias, Tensors& out) {
  out.begin(matrix, true, false);
  out.add(TensorRole::kWeight, "." + format.packed_name, DType::kU8,
          {matrix.rows, matrix.columns / kCodesPerByte});
  out.add(TensorRole::kScale, ".weight_scale", DType::kU8,
          {matrix.rows, matrix.columns / tensor::kMxBlock});
  out.add_input_scale(".input_scale");
  if (bias) out.add(TensorRole::kBias, ".bias", DType::kBF16, {matrix.rows});
}

void add_compressed_int4(const ExpertFormat& format, const Matrix& matrix, Tensors& out) {
  const std::int64_t groups = matrix.columns / format.group_size;
  out.begin(matrix, true, false);
  out.add(TensorRole::kWeight, ".weight_packed", DType::kI32,
          {matrix.rows, matrix.columns / tensor::kInt4PerWord});
  out.add(TensorRole::kScale, ".weight_scale", format.scale_dtype, {matrix.rows, groups});
  if (format.zero_points) {
    out.add(TensorRole::kZeros, ".weight_zero_point", DType::kI32,
            {matrix.rows / tensor::kInt4PerWord, groups});
  }
  if (format.act_order) {
    out.add(TensorRole::kGroupIndex, ".weight_g_idx", DType::kI32, {matrix.columns});
  }
  out.add(TensorRole::kShape, ".weight_shape", DType::kI64, {2});
}

// GPTQ packs eight inputs to a word, AWQ eight outputs; zeros are there in both, symmetric or not.
void add_input_major_int4(const ExpertFormat& format, const Matrix& matrix, Tensors& out) {
  const bool gptq = format.dialect == ExpertDialect::kGptq;
  const std::int64_t groups = matrix.columns / format.group_size;
  const std::int64_t row_words = matrix.rows / tensor::kInt4PerWord;
  out.begin(matrix, true, true);
  out.add(TensorRole::kWeight, ".qweight", DType::kI32,
          gptq ? Shape{matrix.columns / tensor::kInt4PerWord, matrix.rows}
               : Shape{matrix.columns, row_words});
  out.add(TensorRole::kScale, ".scales", format.scale_dtype, {groups, matrix.rows});
  out.add(TensorRole::kZeros, ".qzeros", DType::kI32, {groups, row_words});
  if (gptq) out.add(TensorRole::kGroupIndex, ".g_idx", DType::kI32, {matrix.columns});
}

void add_matrix(const ModelConfig& config, const Matrix& matrix, Tensors& out) {
  const ExpertFormat& format = config.expert_format;
  switch (format.dialect) {
    case ExpertDialect::kGptOssHub:
    case ExpertDialect::kGptOssOriginal: return add_gpt_oss(format, matrix, out);
    case ExpertDialect::kHub:
      out.begin(matrix, true, false);
      return out.add(TensorRole::kWeight, ".weight", plain_dtype(format.scheme),
                     {matrix.rows, matrix.columns});
    case ExpertDialect::kFp8Block:
    case ExpertDialect::kFp8: return add_fp8(format, matrix, out);
    case ExpertDialect::kModelOptNvfp4:
    case ExpertDialect::kCompressedNvfp4: return add_nvfp4(format, matrix, out);
    case ExpertDialect::kMxfp4PerExpert:
      return add_mxfp4(format, matrix,
                       matrix.is_experts && config.architecture == Architecture::kGptOss, out);
    case ExpertDialect::kCompressedInt4: return add_compressed_int4(format, matrix, out);
    case ExpertDialect::kGptq:
    case ExpertDialect::kAwq: return add_input_major_int4(format, matrix, out);
  }
}

}  // namespace

const char* projection_name(Projection projection) {
  switch (projection) {
    case Projection::kGate: return "gate";
    case Projection::kUp: return "up";
    case Projection::kGateUp: return "gate_up";
    case Projection::kDown: return "down";
  }
  return "unknown";
}

bool is_any_float(const ExpertTensor& tensor) {
  return tensor.role == TensorRole::kBias && tensor.dtype == DType::kBF16;
}

const char* tensor_role_name(TensorRole role) {
  switch (role) {
    case TensorRole::kWeight: return "weight";
    case TensorRole::kScale: return "scale";
    case TensorRole::kGlobalScale: return "global_scale";
    case TensorRole::kInputScale: return "input_scale";
    case TensorRole::kZeros: return "zeros";
    case TensorRole::kGroupIndex: return "group_index";
    case TensorRole::kShape: return "shape";
    case TensorRole::kBias: return "bias";
  }
  return "unknown";
}

std::string ExpertTensor::part_name(std::int64_t expert) const {
  return fmt::format("{}.{}", expert, name);
}

Result<std::vector<ExpertTensor>> expert_tensors(const ModelConfig& config) {
  const ExpertFormat& format = config.expert_format;
  if (!goes_with(format.dialect, format.scheme) ||
      !architecture_has(config.architecture, format.dialect)) {
    return make_error(ErrorCode::kUnsupported, "no experts of {} are known that are stored as {}",
                      architecture_name(config.architecture), to_text(format));
  }
  std::vector<ExpertTensor> tensors;
  Tensors out(format, tensors);
  for (const Matrix& matrix : matrices_of(config)) {
    HF_TRY(check(config, matrix));
    add_matrix(config, matrix, out);
  }
  return tensors;
}

Result<std::vector<ExpertTensor>> quantized_matrix_tensors(const ModelConfig& config,
                                                           const MatrixSpec& matrix) {
  const ExpertFormat& format = config.expert_format;
  if (is_plain(format.scheme) || !goes_with(format.dialect, format.scheme) ||
      is_fused_gpt_oss(format.dialect)) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: no linear layers are known that are stored as {}", matrix.name,
                      to_text(format));
  }
  const Matrix own{.projection = Projection::kDown,
                   .name = matrix.name,
                   .rows = matrix.rows,
                   .columns = matrix.columns,
                   .is_experts = false};
  HF_TRY(check(config, own));
  std::vector<ExpertTensor> tensors;
  Tensors out(format, tensors);
  add_matrix(config, own, out);
  return tensors;
}

std::string experts_prefix(const ModelConfig& config, std::int64_t layer) {
  if (config.expert_format.dialect == ExpertDialect::kGptOssOriginal) {
    return fmt::format("block.{}.mlp", layer);
  }
  return fmt::format("model.layers.{}.{}.experts", layer,
                     config.architecture == Architecture::kMixtral ? "block_sparse_moe" : "mlp");
}

std::vector<NameFamily> expert_modules(const ModelConfig& config) {
  NameFamily family{{"model"}, {"layers"}, {}};
  std::string experts;  // "mlp.experts"
  for (std::int64_t layer = 0; layer < config.layer_count; ++layer) {
    if (config.is_dense(layer)) continue;
    const std::string number = fmt::format("{}", layer);
    experts = experts_prefix(config, layer);
    experts.erase(0, std::strlen("model.layers.") + number.size() + 1);
    family[2].push_back(number);
  }
  for (std::size_t at = 0; at < experts.size();) {
    const std::size_t end = std::min(experts.find('.', at), experts.size());
    family.push_back({experts.substr(at, end - at)});
    at = end + 1;
  }
  std::vector<NameFamily> families;
  if (is_fused_gpt_oss(config.expert_format.dialect)) {
    families.push_back(family);
  } else {
    family.emplace_back();
    for (std::int64_t e = 0; e < config.expert_count; ++e) {
      family.back().push_back(fmt::format("{}", e));
    }
  }
  family.emplace_back();
  for (const Matrix& matrix : matrices_of(config)) family.back().push_back(matrix.name);
  families.push_back(std::move(family));
  return families;
}

}  // namespace holdfast::config
