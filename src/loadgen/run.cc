#include "loadgen/run.h"

#include <sys/resource.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "loadgen/http_client.h"
#include "loadgen/reference.h"
#include "loadgen/sse.h"
#include "loadgen/workload.h"

namespace holdfast::loadgen {
namespace {

namespace asio = boost::asio;
using SteadyClock = std::chrono::steady_clock;

constexpr std::size_t kMaxBodyBytes = std::size_t{64} << 20;  // of an answer that is kept whole
constexpr double kMaxRetryAfter_s = 30;
constexpr auto kProgressEvery = std::chrono::milliseconds(500);

// Thousands of sockets need as many descriptors as this process may have.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);  // as many as there are will do
}

SteadyClock::duration seconds(double value) {
  return std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(value));
}

std::vector<std::pair<std::string, std::string>> bearer(const std::string& token) {
  if (token.empty()) return {};
  return {{"Authorization", "Bearer " + token}};
}

struct Answer {
  int status = 0;
  std::string body;
};

class Run {
 public:
  Run(const BenchOptions& options, Endpoint server, Endpoint control)
      : options_(options),
        client_(io_, std::move(server), {.idle_timeout_s = options.timeout_s}),
        control_(io_, std::move(control), {.idle_timeout_s = options.timeout_s}),
        progress_timer_(io_) {}

  Result<RunResult> go(std::vector<PlannedRequest> plan);

 private:
  // One request on its way.
  struct Stream {
    PlannedRequest request;
    Outcome outcome;
    SseParser events;
    std::string body;  // of an answer that is no stream
  };

  Result<Answer> ask(HttpClient& client, HttpCall call);
  Status find_model();
  Status load(const std::string& directory, const std::string& version);
  HttpCall reload_call(const std::string& directory, const std::string& version) const;
  void drive(std::vector<PlannedRequest> plan);
  Status verify_spans();
  void arrive(std::size_t index);
  void start_waiting();
  void send(std::size_t index);
  void take(Stream& stream, const ResponseParser& response, std::string_view part);
  void ended(std::size_t index, const Status& status, const ResponseParser& response);
  void finish(Stream& stream);
  void retry(std::size_t index, const std::string& after);
  void maybe_reload();
  void show_progress();
  double now() const {
    return std::chrono::duration<double>(SteadyClock::now() - began_).count();
  }

  const BenchOptions& options_;
  asio::io_context io_;
  HttpClient client_, control_;
  asio::steady_timer progress_timer_;
  OutcomeReader reader_;
  RunResult result_;
  SteadyClock::time_point began_ = SteadyClock::now();
  std::vector<std::unique_ptr<Stream>> streams_;
  std::deque<std::size_t> waiting_;
  std::int64_t active_ = 0;
  std::size_t ended_ = 0;
  std::int64_t tokens_ = 0, expected_tokens_ = 0;
  int reloads_begun_ = 0;
  bool reloading_ = false, measuring_ = false;
};

Result<Answer> Run::ask(HttpClient& client, HttpCall call) {
  auto answer = std::make_shared<Answer>();
  auto outcome = std::make_shared<Status>();
  call.on_body = [answer](const ResponseParser&, std::string_view part) {
    if (answer->body.size() + part.size() <= kMaxBodyBytes) answer->body += part;
  };
  call.on_end = [answer, outcome](const Status& status, const ResponseParser& response) {
    *outcome = status;
    answer->status = response.status();
  };
  client.send(std::move(call));
  io_.restart();
  io_.run();
  if (!outcome->ok()) return outcome->error();
  return *answer;
}

Status Run::find_model() {
  result_.model = options_.model;
  if (!result_.model.empty()) return {};
  HttpCall call{.path = "/v1/models", .headers = bearer(options_.api_key), .on_end = {}};
  HF_ASSIGN(const Answer answer, ask(client_, std::move(call)));
  const auto json = nlohmann::json::parse(answer.body, nullptr, false);
  const nlohmann::json::json_pointer first("/data/0/id");
  if (answer.status != 200 || json.is_discarded() || !json.contains(first) ||
      !json.at(first).is_string()) {
    return make_error(ErrorCode::kNotFound,
                      "GET {}/v1/models names no model ({}): say which with --model",
                      options_.base_url, reader_.error_text(answer.status, answer.body));
  }
  result_.model = json.at(first).get<std::string>();
  return {};
}

HttpCall Run::reload_call(const std::string& directory, const std::string& version) const {
  nlohmann::json body = {{"weight_dir", directory}, {"weight_version", version}};
  if (!options_.in_flight.empty()) body["in_flight"] = options_.in_flight;
  return {.method = "POST",
          .path = "/update_weights",
          .body = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
          .headers = bearer(options_.control_token),
          .may_repeat = false,
          .on_end = {}};
}

Status Run::load(const std::string& directory, const std::string& version) {
  HF_ASSIGN(const Answer answer, ask(control_, reload_call(directory, version)));
  if (answer.status == 200) return {};
  return make_error(ErrorCode::kFailedPrecondition, "loading {} before the run: {}", directory,
                    reader_.error_text(answer.status, answer.body));
}

Result<RunResult> Run::go(std::vector<PlannedRequest> plan) {
  raise_descriptor_limit();
  HF_TRY(client_.resolve());
  HF_TRY(control_.resolve());
  HF_TRY(find_model());
  if (!options_.reload_dirs.empty()) {
    result_.versions.push_back("bench-0");
    HF_TRY(load(options_.reload_dirs.front(), result_.versions.front()));
  }
  for (const PlannedRequest& request : plan) expected_tokens_ += request.max_tokens;
  measuring_ = true;
  drive(std::move(plan));
  measuring_ = false;
  result_.most_connections = client_.most_connections();
  for (const auto& stream : streams_) {
    result_.duration_s = std::max(result_.duration_s, stream->outcome.end_s);
    result_.outcomes.push_back(std::move(stream->outcome));
  }
  if (options_.verify_spans > 0) HF_TRY(verify_spans());
  client_.close_idle();
  control_.close_idle();
  return std::move(result_);
}

// Sends what the plan says when it says it; returns once all have ended.
void Run::drive(std::vector<PlannedRequest> plan) {
  streams_.clear();
  ended_ = 0;
  for (PlannedRequest& request : plan) {
    auto stream = std::make_unique<Stream>();
    stream->outcome.prompt = request.prompt;
    stream->outcome.asked_tokens = request.max_tokens;
    stream->request = std::move(request);
    streams_.push_back(std::move(stream));
  }
  io_.restart();
  began_ = SteadyClock::now();
  arrive(0);
  if (measuring_) show_progress();
  io_.run();
}

// Request `index` and all that arrive with it.
void Run::arrive(std::size_t index) {
  while (index < streams_.size() && streams_[index]->request.arrival_s <= now()) {
    waiting_.push_back(index++);
  }
  start_waiting();
  if (index >= streams_.size()) return;
  const auto timer = std::make_shared<asio::steady_timer>(io_);
  timer->expires_at(began_ + seconds(streams_[index]->request.arrival_s));
  timer->async_wait([this, timer, index](boost::system::error_code) { arrive(index); });
}

void Run::start_waiting() {
  const std::int64_t limit = options_.max_concurrency;
  while (!waiting_.empty() && (limit == 0 || active_ < limit)) {
    const std::size_t index = waiting_.front();
    waiting_.pop_front();
    ++active_;
    if (measuring_) result_.most_streams = std::max(result_.most_streams, active_);
    streams_[index]->outcome.sent_s = now();
    send(index);
  }
}

void Run::send(std::size_t index) {
  Stream& stream = *streams_[index];
  client_.send(
      {.method = "POST",
       .path = options_.endpoint,
       .body = request_body(options_, result_.model, stream.request),
       .headers = bearer(options_.api_key),
       .on_body = [this, &stream](const ResponseParser& response,
                                  std::string_view part) { take(stream, response, part); },
       .on_end = [this, index](const Status& status, const ResponseParser& response) {
         ended(index, status, response);
       }});
}

void Run::take(Stream& stream, const ResponseParser& response, std::string_view part) {
  const bool streamed =
      response.status() == 200 && response.header("content-type").starts_with("text/event-stream");
  if (!streamed) {
    if (stream.body.size() + part.size() <= kMaxBodyBytes) stream.body += part;
    return;
  }
  const double arrived_s = now();
  Outcome& outcome = stream.outcome;
  const std::size_t before = outcome.token_times_s.size();
  const auto take_event = [&](std::string_view data) {
    const Status status = reader_.read_event(data, arrived_s, outcome);
    if (!status.ok() && outcome.error.empty()) outcome.error = status.error().message();
  };
  const Status status = stream.events.push(part, take_event);
  if (!status.ok() && outcome.error.empty()) outcome.error = status.error().message();
  tokens_ += static_cast<std::int64_t>(outcome.token_times_s.size() - before);
  maybe_reload();
}

void Run::ended(std::size_t index, const Status& status, const ResponseParser& response) {
  Stream& stream = *streams_[index];
  Outcome& outcome = stream.outcome;
  outcome.status = response.status();
  if (status.ok() && outcome.status == 429 && outcome.retries < options_.max_retries) {
    return retry(index, response.header("retry-after"));
  }
  outcome.end_s = now();
  if (!outcome.error.empty()) return finish(stream);
  if (!status.ok()) {
    outcome.error = status.error().message();
  } else if (outcome.status != 200) {
    outcome.error = reader_.error_text(outcome.status, stream.body);
  } else if (!outcome.done) {
    outcome.error = stream.body.empty() ? "the stream ended without [DONE]"
                                        : "the answer is no event stream";
  }
  finish(stream);
}

void Run::finish(Stream& stream) {
  stream.body.clear();
  ++ended_;
  --active_;
  start_waiting();
  if (ended_ == streams_.size()) progress_timer_.cancel();
}

void Run::retry(std::size_t index, const std::string& after) {
  const double asked_s = after.empty() ? 1 : std::strtod(after.c_str(), nullptr);
  Stream& stream = *streams_[index];
  ++stream.outcome.retries;
  stream.body.clear();
  stream.events.reset();
  const auto timer = std::make_shared<asio::steady_timer>(io_);
  timer->expires_after(seconds(std::clamp(asked_s, 0.0, kMaxRetryAfter_s)));
  timer->async_wait([this, timer, index](boost::system::error_code) { send(index); });
}

// Reload k of n begins once k / (n + 1) of all tokens have come, and not before the one before has
// ended.
void Run::maybe_reload() {
  if (!measuring_ || reloading_ || reloads_begun_ >= options_.reloads) return;
  const std::int64_t parts = options_.reloads + 1;
  if (tokens_ * parts < expected_tokens_ * (reloads_begun_ + 1)) return;
  reloading_ = true;
  ++reloads_begun_;
  const auto count = static_cast<std::size_t>(reloads_begun_);
  ReloadOutcome outcome;
  outcome.directory = options_.reload_dirs[count % options_.reload_dirs.size()];
  outcome.version = fmt::format("bench-{}", count);
  outcome.began_s = now();
  HttpCall call = reload_call(outcome.directory, outcome.version);
  result_.versions.push_back(outcome.version);
  result_.reloads.push_back(std::move(outcome));
  const auto body = std::make_shared<std::string>();
  call.on_body = [body](const ResponseParser&, std::string_view part) {
    if (body->size() + part.size() <= kMaxBodyBytes) *body += part;
  };
  call.on_end = [this, body](const Status& status, const ResponseParser& response) {
    ReloadOutcome& done = result_.reloads.back();
    done.ended_s = now();
    done.status = response.status();
    if (!status.ok()) {
      done.error = status.error().message();
    } else if (done.status != 200) {
      done.error = reader_.error_text(done.status, *body);
    }
    reloading_ = false;
    maybe_reload();
  };
  control_.send(std::move(call));
}

void Run::show_progress() {
  if (!options_.progress) return;
  const std::string reloads =
      options_.reloads == 0 ? "" : fmt::format(", reload {}/{}", reloads_begun_, options_.reloads);
  options_.progress(fmt::format("{}/{} requests, {} open, {} tokens{}, {:.0f} s", ended_,
                                streams_.size(), active_, tokens_, reloads, now()));
  if (ended_ == streams_.size()) return;
  progress_timer_.expires_after(kProgressEvery);
  progress_timer_.async_wait([this](boost::system::error_code error) {
    if (!error) show_progress();
  });
}

// Makes the tokens of sampled spans again, at rest, under the weights that are said to have made
// them.
Status Run::verify_spans() {
  const std::vector<ReferenceJob> jobs = plan_references(options_, result_);
  std::int64_t loads = 0;
  for (const std::string& directory : options_.reload_dirs) {
    std::vector<PlannedRequest> plan;
    std::vector<const ReferenceJob*> chosen;
    for (const ReferenceJob& job : jobs) {
      if (job.directory != directory) continue;
      plan.push_back(job.request);
      chosen.push_back(&job);
    }
    if (plan.empty()) continue;
    if (options_.progress) {
      options_.progress(fmt::format("making {} spans again with {}", plan.size(), directory));
    }
    HF_TRY(load(directory, fmt::format("bench-reference-{}", loads++)));
    drive(std::move(plan));
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      result_.spans.push_back(compare_with_reference(*chosen[i], result_, streams_[i]->outcome));
    }
  }
  return {};
}

Status check_options(const BenchOptions& options) {
  const auto wrong = [](std::string message) {
    return Error(ErrorCode::kInvalidArgument, std::move(message));
  };
  if (options.endpoint.find("chat") != std::string::npos || !options.endpoint.starts_with('/')) {
    return wrong(fmt::format("--endpoint is {}, expected one that takes token ids as its prompt, "
                             "as /v1/completions", options.endpoint));
  }
  if (options.reloads > 0 && options.reload_dirs.empty()) {
    return wrong(fmt::format("--reloads is {}, and no --reload-dir is given", options.reloads));
  }
  if (options.verify_spans > 0 && (options.reload_dirs.empty() || options.temperature != 0)) {
    return wrong("--verify-spans needs --reload-dir (else the weights are not known) and "
                 "--temperature 0 (else a span's draws cannot be made again)");
  }
  return {};
}

}  // namespace

Result<RunResult> run(const BenchOptions& given) {
  BenchOptions options = given;
  HF_TRY(check_options(options));
  // The server may have another working directory.
  for (std::string& directory : options.reload_dirs) {
    directory = std::filesystem::absolute(directory).lexically_normal().string();
  }
  HF_ASSIGN(std::vector<PlannedRequest> plan, plan_requests(options));
  HF_ASSIGN(Endpoint server, parse_url(options.base_url));
  HF_ASSIGN(Endpoint control,
            parse_url(options.control_url.empty() ? options.base_url : options.control_url));
  Run runner(options, std::move(server), std::move(control));
  return runner.go(std::move(plan));
}

}  // namespace holdfast::loadgen
