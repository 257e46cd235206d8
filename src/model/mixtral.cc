#include "model/mixtral.h"

#include "model/transformer.h"

namespace holdfast::model {

Result<std::unique_ptr<Decoder>> define_mixtral(storage::Registry& registry,
                                                const config::ModelConfig& config,
                                                const DecoderOptions& options) {
  HF_ASSIGN(TransformerBuilder model, TransformerBuilder::begin(registry, config, options));
  for (std::int64_t layer = 0; layer < config.layer_count; ++layer) {
    HF_TRY(model.attention(layer, {.window = config.sliding_window}));
    HF_TRY(model.experts(layer, {}));
  }
  return model.finish();
}

}  // namespace holdfast::model
