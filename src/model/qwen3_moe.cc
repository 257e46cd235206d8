#include "model/qwen3_moe.h"

#include "model/transformer.h"

namespace holdfast::model {

Result<std::unique_ptr<Decoder>> define_qwen3_moe(storage::Registry& registry,
                                                  const config::ModelConfig& config,
                                                  const DecoderOptions& options) {
  HF_ASSIGN(TransformerBuilder model, TransformerBuilder::begin(registry, config, options));
  for (std::int64_t layer = 0; layer < config.layer_count; ++layer) {
    HF_TRY(model.attention(layer, {.head_norm = true}));
    if (config.is_dense(layer)) {
      HF_TRY(model.dense_mlp(layer));
    } else {
      HF_TRY(model.experts(layer, {.renormalise = config.renormalise}));
    }
  }
  return model.finish();
}

}  // namespace holdfast::model
