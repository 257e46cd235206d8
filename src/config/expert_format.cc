#include "config/expert_format.h"

#include <fmt/format.h>

namespace holdfast::config {

std::string_view expert_scheme_name(ExpertScheme scheme) {
  switch (scheme) {
    case ExpertScheme::kBF16: return "bf16";
    case ExpertScheme::kF16: return "f16";
    case ExpertScheme::kF32: return "f32";
    case ExpertScheme::kMxfp4: return "mxfp4";
    case ExpertScheme::kMxfp8: return "mxfp8";
    case ExpertScheme::kFp8Tensor: return "fp8-tensor";
    case ExpertScheme::kFp8Channel: return "fp8-channel";
    case ExpertScheme::kFp8Block: return "fp8-block";
    case ExpertScheme::kNvfp4: return "nvfp4";
    case ExpertScheme::kInt4: return "int4";
  }
  return "unknown";
}

std::optional<ExpertScheme> expert_scheme_from_name(std::string_view name) {
  for (int i = 0; i < kExpertSchemeCount; ++i) {
    const auto scheme = static_cast<ExpertScheme>(i);
    if (expert_scheme_name(scheme) == name) return scheme;
  }
  return std::nullopt;
}

std::string_view activation_scheme_name(ActivationScheme scheme) {
  switch (scheme) {
    case ActivationScheme::kNone: return "none";
    case ActivationScheme::kMxfp8: return "mxfp8";
    case ActivationScheme::kFp8Static: return "fp8-static";
    case ActivationScheme::kFp8Token: return "fp8-token";
    case ActivationScheme::kFp8TokenGroup: return "fp8-token-group";
    case ActivationScheme::kNvfp4: return "nvfp4";
  }
  return "unknown";
}

std::string_view expert_dialect_name(ExpertDialect dialect) {
  switch (dialect) {
    case ExpertDialect::kGptOssHub: return "gpt-oss (Hugging Face)";
    case ExpertDialect::kGptOssOriginal: return "gpt-oss (OpenAI original)";
    case ExpertDialect::kHub: return "hub";
    case ExpertDialect::kFp8Block: return "fp8 block";
    case ExpertDialect::kFp8: return "fp8";
    case ExpertDialect::kModelOptNvfp4: return "modelopt nvfp4";
    case ExpertDialect::kCompressedNvfp4: return "compressed-tensors nvfp4";
    case ExpertDialect::kCompressedInt4: return "compressed-tensors int4";
    case ExpertDialect::kMxfp4PerExpert: return "mxfp4 per expert";
    case ExpertDialect::kGptq: return "gptq";
    case ExpertDialect::kAwq: return "awq";
  }
  return "unknown";
}

std::string to_text(const ExpertFormat& format) {
  const ExpertFormat plain;
  std::string text(expert_scheme_name(format.scheme));
  if (format.scheme == ExpertScheme::kInt4) {
    text += fmt::format(" group {}{}{}", format.group_size, format.zero_points ? " zeros" : "",
                        format.act_order ? " act-order" : "");
  }
  if (format.dialect == ExpertDialect::kGptq && !format.gptq_v1) text += " v2";
  if (format.scale_dtype != plain.scale_dtype) {
    text += fmt::format(", scales {}", tensor::dtype_name(format.scale_dtype));
  }
  if (format.scalar_dtype != plain.scalar_dtype) {
    text += fmt::format(", scalars {}", tensor::dtype_name(format.scalar_dtype));
  }
  std::string dialect(expert_dialect_name(format.dialect));
  if (format.dialect == ExpertDialect::kMxfp4PerExpert) {
    dialect += format.packed_name == "weight" ? " (weight, as Quark)"
                                              : " (weight_packed, as INC and compressed-tensors)";
  }
  return fmt::format("{}, activations {}, as {}", text, activation_scheme_name(format.activations),
                     dialect);
}

}  // namespace holdfast::config
