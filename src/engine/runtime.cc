#include "engine/runtime.h"

#include "base/assert.h"
#include "engine/progress_source.h"
#include "reload/transaction.h"

namespace holdfast::engine {

namespace {

void report(const std::function<void(const Progress&)>& progress, const char* phase,
            double fraction) {
  if (progress) progress(Progress{.phase = phase, .fraction = fraction});
}

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::open(const EngineOptions& options,
                                               std::unique_ptr<device::Device> device,
                                               const base::Clock& clock) {
  report(options.progress, "open", 0);
  HF_ASSIGN(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
            checkpoint::Checkpoint::open(options.model_directory));
  std::unique_ptr<Runtime> runtime(new Runtime(std::move(device)));
  runtime->config_ = checkpoint->config();
  HF_ASSIGN(runtime->settings_, resolve_settings(options, runtime->config_));
  HF_TRY(runtime->define());
  HF_TRY(runtime->load(std::move(checkpoint), clock, options.progress));
  report(options.progress, "capture", 0);
  HF_TRY(runtime->capture());
  report(options.progress, "ready", 1);
  return runtime;
}

Runtime::~Runtime() {
  graphs_.reset();
  registry_.close();
}

model::DecoderOptions Runtime::decoder_options() const {
  return {.max_rows = settings_.max_rows,
          .max_sequences = settings_.max_sequences,
          .page_size = kPageSize,
          .page_count = settings_.page_count,
          .max_context = settings_.max_context,
          .experts_backend = settings_.experts,
          .device = device_->kind(),
          .expert_activations = settings_.expert_activations,
          .chooses = !device_->host_addressable(),
          .quantize_experts = settings_.quantize_experts};
}

Result<std::map<std::string, std::vector<std::byte>>> Runtime::constants_of(
    const config::ModelConfig& config) const {
  model::DecoderOptions options = decoder_options();
  options.experts_backend = decoder_->experts_choice().kind;
  // Never sealed, so that it holds no device memory.
  storage::Registry scratch;
  HF_ASSIGN(const auto decoder, model::define_decoder(scratch, config, options));
  std::map<std::string, std::vector<std::byte>> values;
  for (const storage::Slot& slot : scratch.slots()) {
    if (slot.spec.slot_class != storage::SlotClass::kConstant) continue;
    const auto value = scratch.constant_value(slot.id);
    values.emplace(slot.spec.name, std::vector<std::byte>(value.begin(), value.end()));
  }
  return values;
}

Status Runtime::define() {
  HF_ASSIGN(decoder_, model::define_decoder(registry_, config_, decoder_options()));
  HF_TRY(registry_.seal(*device_));
  HF_ASSIGN(stream_, device_->create_stream(settings_.threads));
  kernels_ = device_->kind() == device::DeviceKind::kCuda ? ops::make_cuda_kernels()
                                                          : make_kernels(settings_.kernels);
  column_.reserve(static_cast<std::size_t>(settings_.max_rows));
  if (!device_->host_addressable()) logits_.resize(static_cast<std::size_t>(config_.vocab_size));
  if (chooses()) {
    temperatures_.reserve(static_cast<std::size_t>(settings_.max_rows));
    draws_.reserve(static_cast<std::size_t>(settings_.max_rows));
    choices_.reserve(static_cast<std::size_t>(settings_.max_rows));
  }
  return {};
}

Status Runtime::load(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                     const base::Clock& clock,
                     const std::function<void(const Progress&)>& progress) {
  const auto source = make_progress_source(
      reload::make_checkpoint_source(std::move(checkpoint)),
      [&progress](double fraction) { report(progress, "load", fraction); });
  HF_ASSIGN(reload::ReloadPlan plan,
            reload::make_plan(registry_, config_, *source, settings_.commit));
  reload::TransactionOptions options;
  options.clock = &clock;
  HF_ASSIGN(const auto transaction,
            reload::Transaction::begin(registry_, std::move(plan), options));
  HF_TRY(transaction->stage(*source, *stream_));
  HF_TRY(transaction->prepare());
  HF_TRY(transaction->commit());
  return transaction->verify();
}

Status Runtime::capture() {
  const ops::OpContext context{.stream = *stream_, .kernels = *kernels_};
  HF_ASSIGN(graphs_, GraphSet::capture(registry_, *decoder_, context,
                                       {.max_sequences = settings_.max_sequences,
                                        .max_rows = settings_.max_rows}));
  return {};
}

Status Runtime::run(const StepBatch& batch) {
  has_expert_ids_ = false;
  choices_.clear();
  HF_TRY(write_inputs(batch));
  HF_TRY(graphs_->replay(*stream_, static_cast<std::int64_t>(batch.rows.size())));
  return stream_->synchronize();
}

Status Runtime::write_inputs(const StepBatch& batch) {
  const model::DecoderSlots& slots = decoder_->slots();
  const auto write_column = [&](storage::SlotId slot, std::int32_t StepRow::* field) -> Status {
    column_.clear();
    for (const StepRow& row : batch.rows) column_.push_back(row.*field);
    return write_input(slot, std::span<const std::int32_t>(column_));
  };
  HF_TRY(write_column(slots.token_ids, &StepRow::token));
  HF_TRY(write_column(slots.positions, &StepRow::position));
  HF_TRY(write_column(slots.row_sequence, &StepRow::sequence));
  HF_TRY(write_column(slots.slot_mapping, &StepRow::kv_slot));
  column_.clear();
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    if (batch.rows[i].wants_logits) column_.push_back(static_cast<std::int32_t>(i));
  }
  HF_TRY(write_input(slots.logit_rows, std::span<const std::int32_t>(column_)));
  logit_count_ = std::ssize(column_);
  const std::int32_t row_count = static_cast<std::int32_t>(batch.rows.size());
  const std::int32_t logit_count = static_cast<std::int32_t>(logit_count_);
  HF_TRY(write_input(slots.row_count, std::span<const std::int32_t>(&row_count, 1)));
  HF_TRY(write_input(slots.logit_count, std::span<const std::int32_t>(&logit_count, 1)));
  return chooses() ? write_choice_inputs(batch) : Status();
}

Status Runtime::write_choice_inputs(const StepBatch& batch) {
  temperatures_.clear();
  draws_.clear();
  for (const StepRow& row : batch.rows) {
    if (!row.wants_logits) continue;
    temperatures_.push_back(row.temperature);
    draws_.push_back(row.draw);
  }
  const model::ChoiceSlots& slots = *decoder_->slots().choices;
  HF_TRY(write_input(slots.temperatures, std::span<const float>(temperatures_)));
  return write_input(slots.draws, std::span<const double>(draws_));
}

template <typename T>
Status Runtime::write_input(storage::SlotId slot, std::span<const T> values) {
  const ops::TensorView view = registry_.view(slot);
  HF_ASSERT(values.size_bytes() <= view.bytes(), "the step is larger than its input slots");
  if (values.empty()) return {};
  return device_->write(view.address, reinterpret_cast<const std::byte*>(values.data()),
                        values.size_bytes());
}

Result<std::span<const float>> Runtime::logits(std::int64_t index) {
  const ops::TensorView row = registry_.view(decoder_->slots().logits).row(index);
  const auto count = static_cast<std::size_t>(config_.vocab_size);
  if (device_->host_addressable()) return std::span<const float>(row.as<const float>(), count);
  HF_TRY(device_->read(reinterpret_cast<std::byte*>(logits_.data()), row.address, row.bytes()));
  return std::span<const float>(logits_);
}

Result<ops::Choice> Runtime::choice(std::int64_t index) {
  HF_ASSERT(index >= 0 && index < logit_count_, "no such row of logits");
  if (choices_.empty()) {
    choices_.resize(static_cast<std::size_t>(logit_count_));
    const ops::TensorView view = registry_.view(decoder_->slots().choices->choices);
    HF_TRY(device_->read(reinterpret_cast<std::byte*>(choices_.data()), view.address,
                         choices_.size() * sizeof(ops::Choice)));
  }
  return choices_[static_cast<std::size_t>(index)];
}

Status Runtime::append_experts(std::int64_t row, std::int64_t count,
                               std::vector<std::int16_t>& into) {
  const ops::TensorView view = registry_.view(decoder_->slots().expert_ids);
  const std::int64_t layers = view.shape[0], rows = view.shape[1], experts = view.shape[2];
  HF_ASSERT(row >= 0 && count >= 0 && row + count <= rows, "no such rows");
  const std::int32_t* ids = expert_ids_.data();
  if (device_->host_addressable()) {
    ids = view.as<const std::int32_t>();
  } else if (!has_expert_ids_) {
    expert_ids_.resize(view.bytes() / sizeof(std::int32_t));
    ids = expert_ids_.data();
    // All at once: a read of each layer's few rows takes longer.
    HF_TRY(device_->read(reinterpret_cast<std::byte*>(expert_ids_.data()), view.address,
                         view.bytes()));
    has_expert_ids_ = true;
  }
  for (std::int64_t r = row; r < row + count; ++r) {
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const std::int32_t* const at = ids + (layer * rows + r) * experts;
      for (std::int64_t k = 0; k < experts; ++k) into.push_back(static_cast<std::int16_t>(at[k]));
    }
  }
  return {};
}

Status Runtime::write_block_table(std::int32_t sequence, std::span<const std::int32_t> pages) {
  const ops::TensorView row = registry_.view(decoder_->slots().block_tables).row(sequence);
  HF_ASSERT(pages.size_bytes() <= row.bytes(), "more pages than a block table row holds");
  if (pages.empty()) return {};
  return device_->write(row.address, reinterpret_cast<const std::byte*>(pages.data()),
                        pages.size_bytes());
}

}  // namespace holdfast::engine
