#include "serve/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace holdfast::serve {
namespace {

double seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

}  // namespace

// ------------------------------------------------------------------------------ registry

std::shared_ptr<GenerationRegistry> make_generation_registry() {
  return std::make_shared<GenerationRegistry>();
}

bool GenerationRegistry::add(const std::shared_ptr<Generation>& generation,
                             std::size_t max_streams) {
  const std::lock_guard lock(mutex_);
  if (generation->stream_) {
    if (max_streams != 0 && streams_ >= max_streams) return false;
    ++streams_;
  }
  ++open_;
  for (std::size_t prompt = 0; prompt < generation->names_.size(); ++prompt) {
    for (const std::string& name : generation->names_[prompt]) {
      entries_.emplace(
          name, Entry{.generation = generation, .key = generation.get(), .prompt = prompt});
    }
  }
  generation->registered_ = true;
  return true;
}

void GenerationRegistry::remove(const Generation& generation) {
  const std::lock_guard lock(mutex_);
  if (generation.stream_) --streams_;
  --open_;
  for (const std::vector<std::string>& names : generation.names_) {
    for (const std::string& name : names) {
      auto [at, end] = entries_.equal_range(name);
      while (at != end) {
        // Another open generation may have the same name.
        at = at->second.key == &generation ? entries_.erase(at) : std::next(at);
      }
    }
  }
}

// Without the lock: a generation locks itself first and this registry then.
std::size_t GenerationRegistry::abort_entries(const std::vector<Entry>& entries) {
  std::size_t count = 0;
  for (const Entry& entry : entries) {
    if (const auto generation = entry.generation.lock()) {
      count += generation->abort_prompt(entry.prompt);
    }
  }
  return count;
}

std::size_t GenerationRegistry::abort(const std::string& name) {
  std::vector<Entry> found;
  {
    const std::lock_guard lock(mutex_);
    const auto [begin, end] = entries_.equal_range(name);
    for (auto at = begin; at != end; ++at) found.push_back(at->second);
  }
  return abort_entries(found);
}

std::size_t GenerationRegistry::abort_prefix(std::string_view prefix) {
  std::vector<Entry> found;
  {
    const std::lock_guard lock(mutex_);
    for (auto at = entries_.lower_bound(prefix);
         at != entries_.end() && std::string_view(at->first).starts_with(prefix); ++at) {
      found.push_back(at->second);
    }
  }
  return abort_entries(found);
}

std::size_t GenerationRegistry::abort_all() { return abort_prefix({}); }

std::size_t GenerationRegistry::open_streams() const {
  const std::lock_guard lock(mutex_);
  return streams_;
}

std::size_t GenerationRegistry::names() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

std::size_t GenerationRegistry::open() const {
  const std::lock_guard lock(mutex_);
  return open_;
}

// ------------------------------------------------------------------------------ ports

GenerationPorts ports_of(EngineHost& host) {
  GenerationPorts ports;
  ports.submit = [&host](Request request, Sink sink,
                         std::function<void(Result<RequestId>)> accepted) {
    host.submit(std::move(request), std::move(sink), std::move(accepted));
  };
  ports.cancel = [&host](RequestId request) { host.cancel(request); };
  ports.failure = [&host]() -> std::string {
    const HostSnapshot now = host.snapshot();
    return now.poisoned || now.failed ? now.failure : std::string();
  };
  return ports;
}

// ------------------------------------------------------------------------------ begin

Generation::Generation(GenerationPorts ports, GenerationPlan& plan,
                       std::unique_ptr<ReplyFormat> format, ResponderPtr responder)
    : ports_(std::move(ports)),
      per_prompt_(std::max<std::size_t>(plan.per_prompt, 1)),
      names_(std::move(plan.names)),
      stream_(plan.stream),
      format_(std::move(format)),
      responder_(std::move(responder)),
      choices_(plan.requests.size()),
      lanes_(plan.requests.size()) {
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    choices_[i].index = i;
    choices_[i].prompt = i / per_prompt_;
    choices_[i].prompt_ids = plan.requests[i].prompt_ids;
    if (choices_[i].prompt < plan.filters.size()) {
      choices_[i].filter = plan.filters[choices_[i].prompt];
    }
    lanes_[i].begin_ns = clock_.now_ns();
    lanes_[i].max_tokens = plan.requests[i].max_tokens;
  }
}

Generation::~Generation() {
  if (registered_) ports_.registry->remove(*this);
}

void Generation::start(GenerationPorts ports, GenerationPlan plan,
                       std::unique_ptr<ReplyFormat> format, ResponderPtr responder) {
  const std::shared_ptr<Generation> self(
      new Generation(std::move(ports), plan, std::move(format), responder));
  const GenerationPorts& its = self->ports_;
  if (!its.registry->add(self, its.max_streams)) {
    if (its.metrics != nullptr) its.metrics->on_rejected();
    const std::lock_guard lock(self->mutex_);
    self->responder_.reset();
    reply_error(*responder,
                {.status = 429,
                 .message = fmt::format("{} streams are open, the most that may (max_streams); "
                                        "try again when one has ended",
                                        its.max_streams)});
    return;
  }
  self->submit_all(std::move(plan.requests));
  // Last: the callback may come at once, and then there is something to cancel.
  responder->on_gone([weak = self->weak_from_this()] {
    if (const auto generation = weak.lock()) generation->on_gone();
  });
}

void Generation::submit_all(std::vector<Request> requests) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    auto self = shared_from_this();
    ports_.submit(
        std::move(requests[i]),
        [self, i](const Output& output) { self->on_output(i, output); },
        [self, i](Result<RequestId> id) { self->on_accepted(i, id); });
  }
}

// ------------------------------------------------------------------------------ what comes back

void Generation::on_accepted(std::size_t index, const Result<RequestId>& id) {
  const std::lock_guard lock(mutex_);
  Lane& lane = lanes_[index];
  if (!id.ok()) {
    if (id.error().code() == ErrorCode::kResourceExhausted && ports_.metrics != nullptr) {
      ports_.metrics->on_rejected();
    }
    ++accepted_;
    ++ended_;
    lane.ended = true;
    fail(refused_request(id.error()));
    if (ended_ == lanes_.size()) finish();
    return;
  }
  lane.request = *id;
  lane.accepted = true;
  ++accepted_;
  // The client may be gone, or have aborted it, or another choice may have been refused.
  if (lane.cancelled) ports_.cancel(lane.request);
  if (accepted_ == lanes_.size()) {
    for (std::size_t i = 0; i < lanes_.size(); ++i) tell(i);
  }
}

void Generation::on_output(std::size_t index, const Output& output) {
  const std::lock_guard lock(mutex_);
  Lane& lane = lanes_[index];
  Choice& choice = choices_[index];
  if (lane.ended) return;
  if (output.event.restarted && lane.told && lane.told_tokens + lane.told_text > 0) {
    // The client has read tokens that are void now; it is told so, and not given others instead.
    choice.finish = FinishReason::kAbort;
    cancel_lanes(index, index + 1);
    end_lane(index);
    return;
  }
  const std::size_t before = choice.tokens.size();
  choice.take(output);
  if (choice.tokens.size() > before) {
    const std::int64_t now = clock_.now_ns();
    if (lane.first_ns < 0) lane.first_ns = now;
    if (lane.last_ns >= 0 && ports_.metrics != nullptr) {
      ports_.metrics->on_inter_token(seconds(now - lane.last_ns));
    }
    lane.last_ns = now;
  }
  if (choice.finish) {
    end_lane(index);
  } else {
    tell(index);
  }
}

void Generation::tell(std::size_t index) {
  Lane& lane = lanes_[index];
  Choice& choice = choices_[index];
  // Until every choice is accepted, an error can still have its status.
  if (!stream_ || !responder_ || accepted_ < lanes_.size()) return;
  const bool has_news = choice.tokens.size() > lane.told_tokens ||
                        choice.text.size() > lane.told_text || choice.finish || !lane.told;
  if (!has_news) return;
  if (!began_) {
    began_ = true;
    responder_->begin_stream("text/event-stream");
  }
  std::string bytes = format_->chunk(
      choice, {.first_token = lane.told_tokens,
               .text = std::string_view(choice.text).substr(lane.told_text),
               .first = !lane.told});
  lane.told = true;
  lane.told_tokens = choice.tokens.size();
  lane.told_text = choice.text.size();
  if (!bytes.empty() && !responder_->write(std::move(bytes))) {
    responder_.reset();
    cancel_lanes(0, lanes_.size());
  }
}

void Generation::end_lane(std::size_t index) {
  Lane& lane = lanes_[index];
  tell(index);
  lane.ended = true;
  ++ended_;
  count(lane, choices_[index]);
  if (ended_ == lanes_.size()) finish();
}

void Generation::count(const Lane& lane, const Choice& choice) {
  if (ports_.metrics == nullptr) return;
  const std::int64_t now = clock_.now_ns();
  const auto tokens = static_cast<std::int64_t>(choice.tokens.size());
  RequestTimes times;
  times.end_to_end = seconds(now - lane.begin_ns);
  if (lane.first_ns >= 0) times.time_to_first_token = seconds(lane.first_ns - lane.begin_ns);
  if (tokens > 1) {
    times.per_output_token =
        seconds(lane.last_ns - lane.first_ns) / static_cast<double>(tokens - 1);
  }
  times.prompt_tokens = static_cast<std::int64_t>(choice.prompt_ids.size());
  times.output_tokens = tokens;
  times.max_tokens = lane.max_tokens;
  times.choices = static_cast<std::int64_t>(per_prompt_);
  times.finish_reason = choice.finish.value_or(FinishReason::kAbort);
  ports_.metrics->on_request(times);
}

// ------------------------------------------------------------------------------ end

void Generation::finish() {
  ports_.registry->remove(*this);
  registered_ = false;
  const ResponderPtr responder = std::exchange(responder_, nullptr);
  if (!responder) return;
  const auto is_aborted = [](const Choice& c) { return c.finish == FinishReason::kAbort; };
  const bool aborted = std::any_of(choices_.begin(), choices_.end(), is_aborted);
  const std::string failure = aborted && ports_.failure ? ports_.failure() : std::string();
  const ApiError error{.status = 503, .message = failure};
  if (stream_) {
    std::string bytes;
    if (!failure.empty()) bytes = sse_event(error_json(error));
    bytes += format_->last(choices_);
    if (!bytes.empty()) responder->write(std::move(bytes));
    responder->end();
    return;
  }
  // Tokens that were made are worth more than a status.
  const auto is_empty = [](const Choice& c) { return c.tokens.empty(); };
  if (!failure.empty() && std::all_of(choices_.begin(), choices_.end(), is_empty)) {
    reply_error(*responder, error);
    return;
  }
  responder->reply(200, "application/json", format_->body(choices_));
}

// Nothing has been streamed: that begins when all are accepted.
void Generation::fail(const ApiError& error) {
  const ResponderPtr responder = std::exchange(responder_, nullptr);
  if (responder) reply_error(*responder, error);
  cancel_lanes(0, lanes_.size());
}

void Generation::on_gone() {
  const std::lock_guard lock(mutex_);
  responder_.reset();
  cancel_lanes(0, lanes_.size());
}

void Generation::cancel_lanes(std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    Lane& lane = lanes_[i];
    if (lane.ended || lane.cancelled) continue;
    lane.cancelled = true;
    if (lane.accepted) ports_.cancel(lane.request);
  }
}

std::size_t Generation::abort_prompt(std::size_t prompt) {
  const std::lock_guard lock(mutex_);
  const std::size_t begin = prompt * per_prompt_;
  const std::size_t end = std::min(begin + per_prompt_, lanes_.size());
  std::size_t count = 0;
  for (std::size_t i = begin; i < end; ++i) count += !lanes_[i].ended && !lanes_[i].cancelled;
  cancel_lanes(begin, end);
  return count;
}

}  // namespace holdfast::serve
