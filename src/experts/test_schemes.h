// Every scheme of weights and activations in each dialect that publishes it, at a small shape: what
// the tests of numbers and of reloads go through. Values; any thread.
#pragma once

#include <vector>

#include "experts/capabilities.h"
#include "experts/test_tensors.h"

namespace holdfast::experts::testing {

struct SchemeCase {
  const char* name;
  config::ExpertFormat format;
  ExpertsShape shape;
};

inline config::ExpertFormat int4(config::ExpertDialect dialect, bool zeros, bool act_order,
                                 DType scales) {
  return {.scheme = config::ExpertScheme::kInt4,
          .dialect = dialect,
          .group_size = 32,
          .zero_points = zeros,
          .act_order = act_order,
          .scale_dtype = scales};
}

inline std::vector<SchemeCase> scheme_cases() {
  using A = config::ActivationScheme;
  using D = config::ExpertDialect;
  using S = config::ExpertScheme;
  const ExpertsShape odd{3, 2, 37, 21, 9};
  const ExpertsShape blocks{3, 2, 192, 96, 9};
  config::ExpertFormat v2 = int4(D::kGptq, true, true, DType::kF16);
  v2.gptq_v1 = false;
  return {
      {"bf16", {S::kBF16, A::kNone, D::kHub}, odd},
      {"f16", {S::kF16, A::kNone, D::kHub}, odd},
      {"f32", {S::kF32, A::kNone, D::kHub}, odd},
      {"f32 fused", {S::kF32, A::kNone, D::kGptOssHub}, odd},
      {"mxfp4", {S::kMxfp4, A::kNone, D::kGptOssHub}, blocks},
      {"mxfp4 original", {S::kMxfp4, A::kNone, D::kGptOssOriginal}, blocks},
      {"mxfp4 per expert", {S::kMxfp4, A::kNone, D::kMxfp4PerExpert}, blocks},
      {"mxfp4 x mxfp8", {S::kMxfp4, A::kMxfp8, D::kGptOssHub}, blocks},
      {"mxfp4 x fp8", {S::kMxfp4, A::kFp8Static, D::kMxfp4PerExpert}, blocks},
      {"mxfp8 x mxfp8", {S::kMxfp8, A::kMxfp8, D::kFp8}, blocks},
      {"fp8 tensor", {S::kFp8Tensor, A::kNone, D::kFp8}, odd},
      {"fp8 tensor x static", {S::kFp8Tensor, A::kFp8Static, D::kFp8}, odd},
      {"fp8 tensor x token", {S::kFp8Tensor, A::kFp8Token, D::kFp8}, odd},
      {"fp8 channel x token", {S::kFp8Channel, A::kFp8Token, D::kFp8}, odd},
      {"fp8 channel x static", {S::kFp8Channel, A::kFp8Static, D::kFp8}, odd},
      {"fp8 block x group", {S::kFp8Block, A::kFp8TokenGroup, D::kFp8Block}, {2, 2, 300, 150, 5}},
      {"fp8 block", {S::kFp8Block, A::kNone, D::kFp8Block}, {2, 1, 256, 384, 5}},
      {"nvfp4", {S::kNvfp4, A::kNone, D::kModelOptNvfp4}, blocks},
      {"nvfp4 x nvfp4", {S::kNvfp4, A::kNvfp4, D::kModelOptNvfp4}, blocks},
      {"nvfp4 inverse", {S::kNvfp4, A::kNvfp4, D::kCompressedNvfp4}, blocks},
      {"int4 compressed", int4(D::kCompressedInt4, false, false, DType::kBF16), blocks},
      {"int4 compressed zeros", int4(D::kCompressedInt4, true, true, DType::kBF16), blocks},
      {"gptq", int4(D::kGptq, false, false, DType::kF16), blocks},
      {"gptq act-order", int4(D::kGptq, true, true, DType::kF16), blocks},
      {"gptq v2", v2, blocks},
      {"awq", int4(D::kAwq, true, false, DType::kF16), blocks},
      {"awq f32 scales", int4(D::kAwq, true, false, DType::kF32), blocks},
  };
}

inline std::vector<ExpertsBackendKind> backends_of(const config::ExpertFormat& format) {
  std::vector<ExpertsBackendKind> kinds;
  for (int i = 0; i < kExpertsBackendCount; ++i) {
    const auto kind = static_cast<ExpertsBackendKind>(i);
    if (capability_of({.backend = kind}, format).support != Support::kRefused) {
      kinds.push_back(kind);
    }
  }
  return kinds;
}

}  // namespace holdfast::experts::testing
