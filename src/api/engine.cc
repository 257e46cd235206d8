#include "holdfast/engine.h"

#include <utility>

#include "api/graph_census.h"
#include "api/text_output.h"
#include "api/tokenizer_impl.h"
#include "engine/engine_core.h"
#include "engine/push_manifest.h"
#include "engine/read_tensor.h"

namespace holdfast {

struct Engine::Impl {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<engine::EngineCore> core;
  std::optional<api::TextOutput> texts;  // set by open

  void fill_text(std::vector<Event>& events) {
    for (const RequestId ended : texts->fill(events)) {
      // Its last event comes with the next step and is dropped there.
      if (!core->cancel(ended).ok()) texts->forget(ended);
    }
  }
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options) {
  auto impl = std::make_unique<Impl>();
  HF_ASSIGN(impl->tokenizer, Tokenizer::open_or_absent(options.model_directory));
  HF_ASSIGN(impl->core, engine::EngineCore::open(options));
  const Status fits = api::check_tokenizer_fits(*impl->tokenizer,
                                                impl->core->runtime().config().vocab_size);
  if (!fits.ok()) return fits.error().with_context(options.model_directory);
  impl->texts.emplace(impl->tokenizer->impl_->tokenizer);
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Result<RequestId> Engine::submit(Request request) {
  HF_ASSIGN(api::TextSettings text, api::take_text_settings(request));
  // Text that is wanted is empty then; a string that could never match is a mistake.
  if (!text.stop.empty()) HF_TRY(impl_->tokenizer->impl_->tokenizer.check_present());
  HF_ASSIGN(const RequestId id, impl_->core->submit(std::move(request)));
  if (text.wanted()) impl_->texts->add(id, std::move(text));
  return id;
}
Result<std::vector<Event>> Engine::step() {
  HF_ASSIGN(std::vector<Event> events, impl_->core->step());
  impl_->fill_text(events);
  return events;
}
Result<std::vector<Event>> Engine::between_steps() {
  HF_ASSIGN(std::vector<Event> events, impl_->core->between_steps());
  impl_->fill_text(events);
  return events;
}
bool Engine::idle() const { return impl_->core->idle(); }
Status Engine::cancel(RequestId request) { return impl_->core->cancel(request); }
std::size_t Engine::cancel_all(bool waiting) { return impl_->core->cancel_all(waiting); }
void Engine::hold_admission(bool held) { impl_->core->hold_admission(held); }
void Engine::reset_prefix_cache() { impl_->core->reset_prefix_cache(); }
void Engine::recompute_running() { impl_->core->recompute_running(); }
EngineStats Engine::stats() const { return impl_->core->stats(); }

Status Engine::begin_reload(const std::string& directory, const ReloadOptions& options) {
  return impl_->core->begin_reload(directory, options);
}
Status Engine::begin_reload(std::vector<MemoryTensor> tensors, const ReloadOptions& options) {
  return impl_->core->begin_reload(std::move(tensors), options);
}
Result<std::shared_ptr<const void>> Engine::page_lock(std::span<std::byte> memory) {
  return impl_->core->runtime().device().page_lock(memory);
}
ReloadPhase Engine::reload_phase() const { return impl_->core->reload_phase(); }
Status Engine::commit_reload() { return impl_->core->commit_reload(); }
Result<ReloadReport> Engine::finish_reload() { return impl_->core->finish_reload(); }
Status Engine::abort_reload() { return impl_->core->abort_reload(); }
Result<std::uint64_t> Engine::begin_push(std::vector<TensorInfo> tensors,
                                         const ReloadOptions& options) {
  return impl_->core->begin_push(tensors, options);
}
Status Engine::push(std::uint64_t reload_id, const std::string& tensor,
                    std::uint64_t offset_bytes, std::span<const std::byte> bytes,
                    const std::string& dtype) {
  return impl_->core->push(reload_id, tensor, offset_bytes, bytes, dtype);
}
Status Engine::end_push(std::uint64_t reload_id, const std::string& version) {
  return impl_->core->end_push(reload_id, version);
}
ReloadStatus Engine::reload_status() const { return impl_->core->reload_status(); }
std::vector<TensorInfo> Engine::loadable_tensors() const {
  return engine::loadable_tensors(impl_->core->runtime().registry());
}
Status Engine::check_loadable(std::span<const TensorInfo> tensors) const {
  return engine::check_loadable(impl_->core->runtime().registry(), tensors);
}
Result<std::vector<float>> Engine::read_tensor(const std::string& name, std::size_t most) const {
  return engine::read_tensor(impl_->core->runtime().registry(), name, most);
}
std::optional<ReloadReport> Engine::last_reload() const { return impl_->core->last_reload(); }
Result<PlanReport> Engine::plan_reload(const std::string& directory,
                                       const ReloadOptions& options) const {
  return impl_->core->plan_reload(directory, options);
}
Result<VerifyReport> Engine::verify() const { return impl_->core->verify(); }
std::string Engine::version() const { return impl_->core->version(); }

std::uint64_t Engine::epoch() const { return impl_->core->epoch(); }
bool Engine::poisoned() const { return impl_->core->poisoned(); }
std::string Engine::model_type() const { return impl_->core->runtime().config().model_type; }
std::string Engine::device_name() const { return impl_->core->runtime().device().name(); }
std::string Engine::experts_backend() const {
  return impl_->core->runtime().decoder().experts_choice().reason;
}
std::int64_t Engine::vocab_size() const { return impl_->core->runtime().config().vocab_size; }
std::int64_t Engine::max_context() const { return impl_->core->runtime().settings().max_context; }
std::vector<std::int32_t> Engine::eos_token_ids() const {
  return impl_->core->runtime().config().eos_token_ids;
}
const Tokenizer& Engine::tokenizer() const { return *impl_->tokenizer; }
std::vector<std::string> Engine::experts_constant_slots() const {
  return impl_->core->runtime().decoder().experts_constant_slots();
}
Result<CensusReport> Engine::census() const { return impl_->core->census(); }
Result<GraphCensusReport> Engine::graph_census() const {
  const engine::Runtime& runtime = impl_->core->runtime();
  return api::make_graph_census(runtime.registry(), runtime.graphs());
}
std::uint64_t Engine::peak_bytes() const {
  return impl_->core->runtime().device().usage().peak_bytes;
}
std::uint64_t Engine::live_bytes() const {
  return impl_->core->runtime().device().usage().live_bytes;
}
void Engine::reset_peak() { impl_->core->runtime().device().reset_peak(); }
Status Engine::allocation_pressure(std::int64_t blocks, std::int64_t bytes) {
  return impl_->core->allocation_pressure(blocks, bytes);
}

}  // namespace holdfast
