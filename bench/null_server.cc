// null_server: the HTTP server and OpenAI's completions over a model that costs nothing, to measure
// the server layer alone. Every step gives one token to every request.
//   null_server MODEL_DIRECTORY PORT [STEP_US]
// MODEL_DIRECTORY: for its tokenizer. STEP_US: how long a step takes at least; 0 by default. Serves
// until stdin ends, then says as one line of JSON what it has given and what CPU time that took.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <list>
#include <thread>

#include "holdfast/tokenizer.h"
#include "serve/completion_reply.h"
#include "serve/generation.h"
#include "serve/http.h"

namespace holdfast::serve {
namespace {

constexpr std::int64_t kVocabulary = 1024, kContext = 4096;

// The engine thread without an engine.
class NullEngine {
 public:
  explicit NullEngine(std::chrono::microseconds step)
      : step_(step), thread_([this] { run(); }) {}
  ~NullEngine() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  NullEngine(const NullEngine&) = delete;
  NullEngine& operator=(const NullEngine&) = delete;

  GenerationPorts ports() {
    GenerationPorts out;
    out.submit = [this](Request request, Sink sink,
                        std::function<void(Result<RequestId>)> accepted) {
      const std::lock_guard lock(mutex_);
      arrived_.push_back({{++last_id_}, std::move(request), std::move(sink), std::move(accepted)});
      changed_.notify_all();
    };
    out.cancel = [this](RequestId id) {
      const std::lock_guard lock(mutex_);
      cancelled_.push_back(id);
    };
    out.failure = [] { return std::string(); };
    out.registry = registry_;
    return out;
  }
  std::uint64_t tokens() const { return tokens_; }
  std::size_t most_running() const { return most_running_; }

 private:
  struct Running {
    RequestId id;
    Request request;
    Sink sink;
    std::function<void(Result<RequestId>)> accepted;
    std::int64_t made = 0;
  };

  void run() {
    while (true) {
      std::list<Running> arrived;
      std::vector<RequestId> cancelled;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ending_ || !arrived_.empty() || !running_.empty(); });
        if (ending_) return;
        arrived.swap(arrived_);
        cancelled.swap(cancelled_);
      }
      for (Running& one : arrived) one.accepted(one.id);
      running_.splice(running_.end(), arrived);
      for (const RequestId id : cancelled) cancel(id);
      most_running_ = std::max<std::size_t>(most_running_, running_.size());
      step();
      if (step_.count() > 0) std::this_thread::sleep_for(step_);
    }
  }
  void cancel(RequestId id) {
    for (auto at = running_.begin(); at != running_.end(); ++at) {
      if (!(at->id == id)) continue;
      Event event{.request = id, .token = {}, .prompt_logprobs = {},
                  .finish_reason = FinishReason::kAbort};
      at->sink({event, version_});
      running_.erase(at);
      return;
    }
  }
  void step() {
    for (auto at = running_.begin(); at != running_.end();) {
      const auto id = static_cast<std::int32_t>(at->made++ % 1000);
      Event event{.request = at->id, .token = Token{.id = id, .logprob = -0.5f, .epoch = 1},
                  .prompt_logprobs = {}, .finish_reason = {}};
      event.text = " word";
      const bool last = at->made >= at->request.max_tokens;
      if (last) event.finish_reason = FinishReason::kLength;
      at->sink({event, version_});
      ++tokens_;
      at = last ? running_.erase(at) : std::next(at);
    }
  }

  const std::chrono::microseconds step_;
  const std::string version_ = "default";
  std::shared_ptr<GenerationRegistry> registry_ = make_generation_registry();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Running> arrived_, running_;
  std::vector<RequestId> cancelled_;
  std::uint64_t last_id_ = 0;
  std::atomic<std::uint64_t> tokens_ = 0;
  std::atomic<std::size_t> most_running_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

// As the real route, but for the engine behind it.
void complete(NullEngine& engine, const Tokenizer& tokenizer, const HttpRequest& http,
              const ResponderPtr& responder) {
  static const RequestLimits limits{.vocab_size = kVocabulary,
                                    .max_context = kContext,
                                    .max_prompt_tokens = kContext,
                                    .max_logprobs = kVocabulary};
  JsonDocument document;
  if (const auto error = JsonDocument::parse(http.body, document)) {
    return reply_error(*responder, *error);
  }
  RequestErrors errors;
  CompletionRequest request = parse_completion(document.root(), limits, errors);
  GenerationPlan plan =
      make_plan(request, {.tokenizer = tokenizer, .limits = limits, .random = 1}, errors);
  if (errors.any()) return reply_error(*responder, *errors.first());
  ReplyContext context{.tokenizer = tokenizer, .id = "cmpl-" + http.id, .model = "null",
                       .created_s = unix_seconds()};
  Generation::start(engine.ports(), std::move(plan), completion_reply(request, std::move(context)),
                    responder);
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);  // as many as there are will do
}

int serve(const std::string& directory, std::uint16_t port, std::int64_t step_us) {
  raise_descriptor_limit();
  const Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::open(directory);
  if (!tokenizer.ok()) {
    fmt::print(stderr, "{}\n", tokenizer.error().message());
    return 1;
  }
  NullEngine engine{std::chrono::microseconds(step_us)};
  Router router;
  router.add("GET", "/v1/models", [](HttpRequest, ResponderPtr responder) {
    responder->reply(200, "application/json", R"({"object":"list","data":[{"id":"null"}]})");
  });
  router.add("POST", "/v1/completions", [&](HttpRequest request, ResponderPtr responder) {
    complete(engine, **tokenizer, request, responder);
  });
  HttpServer::Options options;
  options.limits.max_connections = 1u << 16;
  Result<std::unique_ptr<HttpServer>> server =
      HttpServer::start({{.name = "public", .port = port, .api_key = {}, .router = &router}},
                        options);
  if (!server.ok()) {
    fmt::print(stderr, "{}\n", server.error().message());
    return 1;
  }
  const double before = cpu_seconds();
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  const double cpu_s = cpu_seconds() - before;
  const auto tokens = static_cast<double>(engine.tokens());
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  fmt::print("{{\"tokens\": {}, \"cpu_s\": {:.3f}, \"cpu_ms_per_1k_tokens\": {:.3f}, "
             "\"most_streams\": {}, \"peak_rss_mb\": {:.1f}}}\n",
             engine.tokens(), cpu_s, tokens > 0 ? cpu_s * 1e6 / tokens : 0, engine.most_running(),
             static_cast<double>(usage.ru_maxrss) / 1024);
  server->reset();
  return 0;
}

}  // namespace
}  // namespace holdfast::serve

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: null_server MODEL_DIRECTORY PORT [STEP_US]\n");
    return 2;
  }
  return holdfast::serve::serve(argv[1], static_cast<std::uint16_t>(std::atoi(argv[2])),
                                argc > 3 ? std::atoll(argv[3]) : 0);
}
