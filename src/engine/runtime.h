// Runtime: one loaded model, ready to run steps: device, registry, decoder, kernels, stream and
// captured graphs. Knows rows and weights, no requests. Owned by the engine; engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "checkpoint/checkpoint.h"
#include "engine/graph_set.h"
#include "engine/settings.h"
#include "engine/step_batch.h"

namespace holdfast::engine {

class Runtime {
 public:
  // Opens the checkpoint, defines and seals the storage, loads the weights by a transaction
  // (epoch 0 to 1), and captures every graph. Errors name the file, tensor or option.
  static Result<std::unique_ptr<Runtime>> open(const EngineOptions& options,
                                               std::unique_ptr<device::Device> device,
                                               const base::Clock& clock);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Writes the inputs and replays the smallest graph that fits. Asserts 1 to max_rows rows.
  // Errors: kDevice, kFailedPrecondition (the layout is not the captured one).
  Status run(const StepBatch& batch);
  // Logits f32 [vocab] of the `index`-th row of the last batch that wanted them; valid until the
  // next call of logits or run. Errors: kDevice.
  Result<std::span<const float>> logits(std::int64_t index);
  // Whether the device takes tokens; then choice(index) is the one that it has taken from that row,
  // and without asking for logits none leave the device. Errors: kDevice.
  bool chooses() const { return decoder_->slots().choices.has_value(); }
  Result<ops::Choice> choice(std::int64_t index);
  // Appends which experts rows [row, row + count) of the last batch went to: i16 [count, layers,
  // experts per token], likeliest first. Errors: kDevice.
  Status append_experts(std::int64_t row, std::int64_t count, std::vector<std::int16_t>& into);
  // The pages of sequence row `sequence`. Errors: kDevice.
  Status write_block_table(std::int32_t sequence, std::span<const std::int32_t> pages);

  // What a model of `config` with this runtime's settings would put into its constant slots, by
  // slot name. Any thread. Errors: those of define_decoder.
  Result<std::map<std::string, std::vector<std::byte>>> constants_of(
      const config::ModelConfig& config) const;

  const Settings& settings() const { return settings_; }
  // Of the live weights: a reload that changes constants writes it in the quiet moment.
  config::ModelConfig& config() { return config_; }
  const config::ModelConfig& config() const { return config_; }
  const model::Decoder& decoder() const { return *decoder_; }
  const GraphSet& graphs() const { return *graphs_; }
  // After a commit, in the quiet moment.
  void recheck_graphs(const base::Clock& clock) { graphs_->recheck(registry_, clock); }
  device::Device& device() { return *device_; }
  const device::Device& device() const { return *device_; }
  storage::Registry& registry() { return registry_; }
  const storage::Registry& registry() const { return registry_; }

 private:
  explicit Runtime(std::unique_ptr<device::Device> device) : device_(std::move(device)) {}
  model::DecoderOptions decoder_options() const;
  Status define();
  Status load(std::shared_ptr<const checkpoint::Checkpoint> checkpoint, const base::Clock& clock,
              const std::function<void(const Progress&)>& progress);
  Status capture();
  Status write_inputs(const StepBatch& batch);
  Status write_choice_inputs(const StepBatch& batch);
  template <typename T>
  Status write_input(storage::SlotId slot, std::span<const T> values);

  std::unique_ptr<device::Device> device_;
  config::ModelConfig config_;
  Settings settings_;
  storage::Registry registry_;
  std::unique_ptr<model::Decoder> decoder_;
  std::unique_ptr<ops::Kernels> kernels_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<GraphSet> graphs_;
  std::vector<std::int32_t> column_;  // one input slot's values
  std::vector<float> temperatures_;
  std::vector<double> draws_;
  // Only where the host cannot read device memory.
  std::vector<float> logits_;
  std::vector<std::int32_t> expert_ids_;  // of the last batch, once somebody asked
  bool has_expert_ids_ = false;
  std::int64_t logit_count_ = 0;       // of the last batch
  std::vector<ops::Choice> choices_;   // of the last batch, once somebody asked
};

}  // namespace holdfast::engine
