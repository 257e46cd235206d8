#include "model/gpt_oss.h"

#include "model/transformer.h"

namespace holdfast::model {

Result<std::unique_ptr<Decoder>> define_gpt_oss(storage::Registry& registry,
                                                const config::ModelConfig& config,
                                                const DecoderOptions& options) {
  HF_ASSIGN(TransformerBuilder model, TransformerBuilder::begin(registry, config, options));
  for (std::int64_t layer = 0; layer < config.layer_count; ++layer) {
    const bool sliding =
        config.layer_kinds[static_cast<std::size_t>(layer)] == config::AttentionKind::kSliding;
    HF_TRY(model.attention(layer, {.bias = true,
                                   .sinks = true,
                                   .window = sliding ? config.sliding_window : 0}));
    HF_TRY(model.experts(layer, {.bias = true}));
  }
  return model.finish();
}

}  // namespace holdfast::model
