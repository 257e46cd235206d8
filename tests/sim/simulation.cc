#include "simulation.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "device/cpu/cpu_device.h"

namespace holdfast::sim {

namespace {

constexpr std::size_t kMaxOpenRequests = 10;
constexpr int kMaxDrainSteps = 4000;

}  // namespace

Simulation::Simulation(const SimulationOptions& options, FaultTable& table)
    : options_(options), table_(table), rng_(options.seed) {}

Simulation::~Simulation() = default;

Error Simulation::violation(const std::string& what) const {
  return make_error(ErrorCode::kMismatch, "event {} ({}): {}", event_index_, event_name_, what);
}

void Simulation::log(const std::string& line) const {
  if (options_.verbose) std::printf("%4d  %s\n", event_index_, line.c_str());
}

Status Simulation::run() {
  event_name_ = "open";
  HF_TRY(open());
  HF_TRY(check("open"));
  for (event_index_ = 1; event_index_ <= options_.events; ++event_index_) {
    clock_.advance_ns(static_cast<std::int64_t>(below(1'000'000)));
    HF_TRY(event());
    HF_TRY(check(event_name_));
    ++table_.events;
  }
  event_name_ = "drain";
  HF_TRY(drain());
  HF_TRY(check("drain"));
  HF_TRY(check_census());
  HF_TRY(check_requests());
  ++table_.seeds;
  return {};
}

// ------------------------------------------------------------------------------ the engine

Status Simulation::open() {
  shape_ = draw_shape(rng_);
  log(shape_.to_string());
  for (int i = 0; i < 3; ++i) {
    add_version({.seed = rng_.next(),
                 .shards = 1 + static_cast<int>(below(3)),
                 .other_constants = i > 0 && one_in(4)});
  }
  HF_ASSIGN(engine_options_.model_directory, directory_of(0));
  engine_options_.threads = 1;
  engine_options_.max_context = shape_.positions - static_cast<std::int64_t>(below(3));
  engine_options_.max_sequences = 1 + static_cast<std::int64_t>(below(5));
  engine_options_.prefill_chunk = 1 + static_cast<std::int64_t>(below(9));
  // Mostly too few pages for all that may run.
  if (!one_in(4)) {
    engine_options_.kv_tokens =
        engine_options_.max_context + static_cast<std::int64_t>(below(24));
  }
  engine_options_.prefix_cache = !one_in(4);
  engine_options_.kernels = one_in(4) ? "reference" : "fast";
  engine_options_.experts = one_in(3) ? "reference" : "auto";
  engine_options_.commit = one_in(2) ? "copy" : "remap";

  reference_ = std::make_unique<Reference>(
      engine_options_, [this](std::size_t version) { return directory_of(version).value(); });
  HF_TRY(reference_->digests(0));
  hooks_.on_read = [this](std::uint64_t read) { on_source_read(read); };
  hooks_.abort = [this] { static_cast<void>(core_->abort_reload()); };
  hooks_.pass_deadline = [this] { clock_.advance_ns(std::int64_t{2} * 3'600'000'000'000); };
  if (one_in(4)) HF_TRY(open_under_faults());

  auto device = std::make_unique<device::SimDevice>(device::make_cpu_device());
  device_ = device.get();
  HF_ASSIGN(core_, engine::EngineCore::open(engine_options_, make_parts(std::move(device))));
  for (const storage::Slot& slot : core_->runtime().registry().slots()) {
    addresses_.push_back(slot.range.begin);
  }
  return {};
}

engine::EngineParts Simulation::make_parts(std::unique_ptr<device::Device> device) {
  engine::EngineParts parts;
  parts.device = std::move(device);
  if (!options_.background) parts.clock = &clock_;
  parts.on_keys = [this](RequestId request, std::int64_t positions) {
    on_keys(request, positions);
  };
  parts.reloader.on_calling_thread = !options_.background;
  parts.reloader.open_source =
      [this](const std::string& directory) -> Result<std::unique_ptr<reload::Source>> {
    HF_ASSIGN(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
              checkpoint::Checkpoint::open(directory));
    return std::unique_ptr<reload::Source>(
        std::make_unique<FaultySource>(reload::make_checkpoint_source(std::move(checkpoint)),
                                       directory, source_fault_, hooks_, source_fired_));
  };
  return parts;
}

// The first load is a transaction too: it fails whole, and says why, or it has not been hindered.
Status Simulation::open_under_faults() {
  auto owned = std::make_unique<device::SimDevice>(device::make_cpu_device());
  device::SimDevice& device = *owned;
  const auto fault = static_cast<device::Fault>(below(device::kFaultCount));
  device.arm({{.fault = fault, .at_call = below(20), .at_byte = below(64)}});
  const auto opened = engine::EngineCore::open(engine_options_, make_parts(std::move(owned)));
  if (!opened.ok()) return {};
  if (!device.fired().empty()) {
    return violation(fmt::format("the first load went through in spite of {}",
                                 device::fault_name(fault)));
  }
  return {};
}

Status Simulation::drain() {
  disarm();
  core_->hold_admission(false);
  HF_TRY(observe({}));
  if (open_ && one_in(2) && core_->reload_phase() == ReloadPhase::kReady) HF_TRY(abort_reload());
  for (int steps = 0; open_; ++steps) {
    HF_TRY(finish_reload(false));
    if (!drains_on()) break;
    if (steps == kMaxDrainSteps) return violation("a reload drains for ever");
    HF_TRY(step(true));
  }
  if (expected_.poisoned) {
    HF_TRY(begin_reload(false));
    HF_TRY(finish_reload(false));
    if (expected_.poisoned) return violation("a complete reload did not heal a poisoned engine");
  }
  for (int steps = 0; !core_->idle(); ++steps) {
    if (steps == kMaxDrainSteps) return violation("requests run on for ever");
    HF_TRY(step(true));
  }
  const EngineStats stats = core_->stats();
  if (stats.running != 0 || stats.waiting != 0 || stats.kv_pages_used != 0) {
    return violation(fmt::format("idle, with {} running, {} waiting and {} pages in use",
                                 stats.running, stats.waiting, stats.kv_pages_used));
  }
  table_.preemptions += stats.preemptions;
  table_.prefix_hits += stats.prefix_hits;
  return {};
}

// ------------------------------------------------------------------------------ events

Status Simulation::event() {
  const std::uint64_t draw = below(100);
  if (draw < 14) return submit();
  if (draw < 16) return submit_invalid();
  if (draw < 18) return cancel_request();
  if (draw < 19) return one_in(4) ? cancel_all() : change_admission();
  if (draw < 21) return pressure();
  if (draw < 22) return plan_only();
  if (draw < 24) return verify();
  if (draw < 48) return reload_event();
  return step(false);
}

Status Simulation::reload_event() {
  HF_TRY(observe({}));
  if (!open_) return begin_reload(true);
  switch (core_->reload_phase()) {
    case ReloadPhase::kStaging: return one_in(3) ? abort_reload() : finish_reload(true);
    case ReloadPhase::kReady:
      if (one_in(12)) return abort_reload();
      return one_in(3) ? finish_reload(true) : commit_reload();
    case ReloadPhase::kVerifying:
      // With a thread that verifies at the same time it would be a race of this program.
      if (one_in(6) && !stray_pending_ && !options_.background) return stray_write();
      return finish_reload(true);
    default: return finish_reload(true);
  }
}

// Something new, or what begins as an earlier request with its output did.
std::vector<std::int32_t> Simulation::draw_prompt() {
  std::vector<std::int32_t> prompt;
  const auto context = static_cast<std::uint64_t>(engine_options_.max_context);
  if (!requests_.empty() && !one_in(3)) {
    const RequestRecord& earlier = requests_[below(requests_.size())]->record;
    prompt = earlier.request.prompt_ids;
    for (const Token& token : earlier.generated) prompt.push_back(token.id);
    if (one_in(2)) prompt.resize(1 + below(prompt.size()));
    prompt.resize(std::min<std::size_t>(prompt.size(), context));
  }
  std::uint64_t more = 1 + below(one_in(4) ? context : std::min<std::uint64_t>(context, 9));
  for (more = std::min(more, context - prompt.size()); more > 0; --more) {
    prompt.push_back(static_cast<std::int32_t>(below(static_cast<std::uint64_t>(shape_.vocab))));
  }
  return prompt;
}

Request Simulation::draw_request() {
  Request request;
  request.prompt_ids = draw_prompt();
  request.priority = static_cast<std::int64_t>(below(3)) - 1;
  if (one_in(5)) request.cache_salt = "salt";
  request.max_tokens = static_cast<std::int64_t>(below(one_in(3) ? 60 : 12));
  request.ignore_eos = one_in(2);
  request.prompt_logprobs = one_in(4);
  if (one_in(4)) {
    request.stop_token_ids.push_back(
        static_cast<std::int32_t>(below(static_cast<std::uint64_t>(shape_.vocab))));
  }
  if (one_in(2)) {
    Sampling& sampling = request.sampling;
    sampling.temperature = 0.2f + 1.5f * static_cast<float>(rng_.next_unit());
    sampling.seed = rng_.next();
    if (one_in(2)) sampling.top_k = static_cast<std::int32_t>(1 + below(9));
    if (one_in(2)) sampling.top_p = 0.1f + 0.9f * static_cast<float>(rng_.next_unit());
    if (one_in(3)) sampling.min_p = 0.3f * static_cast<float>(rng_.next_unit());
  }
  return request;
}

std::size_t Simulation::open_requests() const {
  return static_cast<std::size_t>(std::count_if(
      requests_.begin(), requests_.end(),
      [](const auto& tracked) { return !tracked->record.reason.has_value(); }));
}

Status Simulation::submit() {
  event_name_ = "submit";
  if (open_requests() >= kMaxOpenRequests) return {};
  auto tracked = std::make_unique<Tracked>();
  RequestRecord& record = tracked->record;
  record.request = draw_request();
  const auto prompt_tokens = static_cast<std::int64_t>(record.request.prompt_ids.size());
  record.output_limit =
      std::min(record.request.max_tokens, engine_options_.max_context - prompt_tokens + 1);
  Request request = record.request;
  if (one_in(3)) listen(request, *tracked);
  const auto id = core_->submit(std::move(request));
  log(fmt::format("submit {} tokens, {} to come", prompt_tokens, record.output_limit));
  if (expected_.poisoned) {
    if (id.ok() || id.error().code() != ErrorCode::kPoisoned) {
      return violation("a poisoned engine took a request");
    }
    return {};
  }
  if (!id.ok()) return violation("a valid request was refused: " + id.error().to_string());
  record.id = *id;
  requests_.push_back(std::move(tracked));
  return {};
}

// Has the request's prompt told to the simulation.
void Simulation::listen(Request& request, Tracked& tracked) {
  Tracked* const seen = &tracked;
  request.prompt_logits = [this, seen](std::int64_t position, std::span<const float> logits) {
    std::vector<base::Digest>& prompt = seen->record.prompt;
    if (position == 0 && !prompt.empty()) prompt.clear();  // restarted: see apply_policy
    if (position == 0) seen->begun_in = call_serial_;
    seen->told_in = call_serial_;
    if (position != static_cast<std::int64_t>(prompt.size())) {
      seen->problem =
          fmt::format("prompt position {} was told after {} others", position, prompt.size());
    }
    prompt.push_back(base::digest_of(std::as_bytes(logits)));
  };
}

Status Simulation::submit_invalid() {
  event_name_ = "submit invalid";
  Request request = draw_request();
  switch (below(5)) {
    case 0: request.prompt_ids.clear(); break;
    case 1: request.prompt_ids.back() = static_cast<std::int32_t>(shape_.vocab); break;
    case 2: request.prompt_ids.resize(static_cast<std::size_t>(engine_options_.max_context) + 1);
            break;
    case 3: request.max_tokens = -1; break;
    default: request.sampling.top_p = 0; break;
  }
  const auto id = core_->submit(std::move(request));
  const ErrorCode wanted = expected_.poisoned ? ErrorCode::kPoisoned : ErrorCode::kInvalidArgument;
  if (id.ok() || id.error().code() != wanted) return violation("an invalid request was taken");
  return {};
}

Status Simulation::cancel_request() {
  event_name_ = "cancel";
  for (const auto& tracked : requests_) {
    if (tracked->record.reason || tracked->record.cancelled || !one_in(2)) continue;
    log(fmt::format("cancel request {}", tracked->record.id.value));
    const Status status = core_->cancel(tracked->record.id);
    // Its end may be on its way already.
    if (!status.ok() && status.error().code() != ErrorCode::kNotFound) {
      return violation("cancel: " + status.error().to_string());
    }
    tracked->record.cancelled = status.ok();
    return {};
  }
  return {};
}

Status Simulation::cancel_all() {
  event_name_ = "cancel all";
  const bool waiting = one_in(2);
  log(waiting ? "cancel all" : "cancel all that run");
  static_cast<void>(core_->cancel_all(waiting));
  for (const auto& tracked : requests_) {
    if (tracked->record.reason) continue;
    tracked->may_abort = true;
    tracked->must_abort |= waiting;
  }
  return {};
}

// Whether waiting requests may start, and what of the prefixes.
Status Simulation::change_admission() {
  event_name_ = "admission";
  if (one_in(3)) {
    core_->reset_prefix_cache();
  } else {
    core_->hold_admission(one_in(3));
  }
  return {};
}

Status Simulation::pressure() {
  event_name_ = "allocation pressure";
  // It would run into what is armed for a staging thread.
  if (seen_ == ReloadPhase::kStaging) return {};
  const Status status = core_->allocation_pressure(static_cast<std::int64_t>(1 + below(6)),
                                                   static_cast<std::int64_t>(1 + below(1 << 16)));
  if (!status.ok()) return violation("pressure: " + status.error().to_string());
  return {};
}

// ------------------------------------------------------------------------------ a step

// `nested`: in the middle of staging, or after all is over: no new faults.
Status Simulation::step(bool nested) {
  const bool staging = seen_ == ReloadPhase::kStaging;
  if (!nested) {
    event_name_ = "step";
    // What a staging thread runs into is armed already.
    nested = staging;
    if (!nested && one_in(8)) arm(Phase::kStep);
  }
  ++call_serial_;
  const auto events = core_->step();
  const Fired fired = take_fired();
  if (!nested) disarm();
  ++table_.steps;
  // In the middle of staging what fired has struck the step alone; a thread may have met it too.
  HF_TRY(observe(staging && !options_.background ? Fired() : fired));
  HF_TRY(resolve_keys());
  if (events.ok()) {
    if (expected_.poisoned) return violation("a poisoned engine ran a step");
    return take_events(*events);
  }
  log("step: " + events.error().to_string());
  if (expected_.poisoned) {
    if (events.error().code() == ErrorCode::kPoisoned) return {};
    return violation("a step of a poisoned engine: " + events.error().to_string());
  }
  if (events.error().code() != ErrorCode::kDevice || fired.empty()) {
    return violation("a step failed without a fault: " + events.error().to_string());
  }
  note(fired, Outcome::kServedOn);
  return {};
}

void Simulation::on_keys(RequestId request, std::int64_t positions) {
  for (const auto& tracked : requests_) {
    if (tracked->record.id == request) tracked->record.on_keys(positions, call_serial_);
  }
}

// What this step computed was computed under the weights that are live now.
Status Simulation::resolve_keys() {
  for (const auto& tracked : requests_) {
    if (!tracked->problem.empty()) return violation(tracked->problem);
    if (tracked->record.resolve(expected_.version)) {
      if (expected_.poisoned) return violation("a poisoned engine computed");
      tracked->keys_commit = commit_serial_;
    }
    if (tracked->told_in == call_serial_) tracked->last_commit = commit_serial_;
  }
  return {};
}

Status Simulation::take_events(const std::vector<Event>& events) {
  for (const Event& event : events) {
    const auto at = std::find_if(requests_.begin(), requests_.end(), [&](const auto& tracked) {
      return tracked->record.id == event.request;
    });
    if (at == requests_.end()) return violation("an event of an unknown request");
    Tracked& tracked = **at;
    RequestRecord& record = tracked.record;
    if (record.reason) {
      return violation(fmt::format("request {} went on after its end", record.id.value));
    }
    if (event.restarted) {
      if (!std::exchange(tracked.may_restart, false)) return violation("restarted by nobody");
      tracked.must_restart = false;
      continue;
    }
    if (!event.prompt_logprobs.empty()) record.prompt_logprobs = event.prompt_logprobs;
    if (event.token) {
      if (event.token->epoch != expected_.epoch) {
        return violation(fmt::format("request {}: a token of epoch {} in a step of epoch {}",
                                     record.id.value, event.token->epoch, expected_.epoch));
      }
      if (tracked.must_abort) return violation("a request outlived the weights of its keys");
      if (tracked.must_restart) return violation("a request went on over a restart");
      record.generated.push_back(*event.token);
      tracked.last_commit = commit_serial_;
      ++table_.tokens;
    }
    if (!event.finish_reason) continue;
    record.reason = event.finish_reason;
    if (*record.reason == FinishReason::kAbort && !record.cancelled && !tracked.may_abort) {
      return violation(fmt::format("request {} was aborted by nobody", record.id.value));
    }
  }
  return {};
}

}  // namespace holdfast::sim
