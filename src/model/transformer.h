// Transformer: the Decoder of every model here: an embedding, layers of attention and of experts or
// a dense MLP, a final norm and a head. A model declares its own through TransformerBuilder, one
// call after another in the order of its layers (gpt_oss.cc is the example).
#pragma once

#include <memory>

#include "model/attention_block.h"
#include "model/decoder.h"
#include "model/moe_block.h"

namespace holdfast::model {

class Transformer;

class TransformerBuilder {
 public:
  // What all models have: inputs, activations, embedding, rope tables, the experts' workspace.
  // Errors of all: the registry's, and kUnsupported when no experts backend has this format.
  static Result<TransformerBuilder> begin(storage::Registry& registry,
                                          const config::ModelConfig& config,
                                          const DecoderOptions& options);
  TransformerBuilder(TransformerBuilder&&) noexcept;
  ~TransformerBuilder();

  // Attention of layer `layer`, then its experts or dense MLP; layers in order.
  Status attention(std::int64_t layer, const AttentionTraits& traits);
  Status experts(std::int64_t layer, const RouterTraits& traits);
  Status dense_mlp(std::int64_t layer);
  // The final norm and the head, which is the embedding when the config ties them.
  Result<std::unique_ptr<Decoder>> finish();

 private:
  TransformerBuilder(storage::Registry& registry, const DecoderOptions& options,
                     std::unique_ptr<Transformer> made);
  storage::Registry& registry_;
  DecoderOptions options_;
  std::unique_ptr<Transformer> made_;
};

}  // namespace holdfast::model
