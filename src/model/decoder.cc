#include "model/decoder.h"

#include "base/error.h"
#include "model/gpt_oss.h"
#include "model/mixtral.h"
#include "model/qwen3_moe.h"

namespace holdfast::model {

namespace {

constexpr std::int64_t kMaxRows = 1 << 16;
constexpr std::int64_t kMaxSequences = 1 << 16;
constexpr std::int64_t kMaxPageSize = 1 << 12;
constexpr std::int64_t kMaxPages = 1 << 24;

Status check_range(const char* name, std::int64_t value, std::int64_t most) {
  if (value >= 1 && value <= most) return {};
  return make_error(ErrorCode::kInvalidArgument, "decoder option {} is {}, expected 1 to {}", name,
                    value, most);
}

Status check(const config::ModelConfig& config, const DecoderOptions& options) {
  HF_TRY(check_range("max_rows", options.max_rows, kMaxRows));
  HF_TRY(check_range("max_sequences", options.max_sequences, kMaxSequences));
  HF_TRY(check_range("page_size", options.page_size, kMaxPageSize));
  HF_TRY(check_range("page_count", options.page_count, kMaxPages));
  return check_range("max_context", options.max_context, config.max_positions);
}

}  // namespace

Result<std::unique_ptr<Decoder>> define_decoder(storage::Registry& registry,
                                                const config::ModelConfig& config,
                                                const DecoderOptions& options) {
  HF_TRY(check(config, options));
  switch (config.architecture) {
    case config::Architecture::kGptOss:
      return define_gpt_oss(registry, config, options);
    case config::Architecture::kQwen3Moe:
      return define_qwen3_moe(registry, config, options);
    case config::Architecture::kMixtral:
      return define_mixtral(registry, config, options);
  }
  return make_error(ErrorCode::kUnsupported, "no decoder for model_type {}", config.model_type);
}

}  // namespace holdfast::model
