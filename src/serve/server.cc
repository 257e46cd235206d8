#include "serve/server.h"

#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "serve/log.h"
#include "serve/serve_options.h"
#include "serve/stop_signals.h"

namespace holdfast::serve {
namespace {

using Clock = std::chrono::steady_clock;

// For answers that a drain's end cuts short, and for connections to close.
constexpr std::chrono::seconds kLastAnswers{5};

std::string name_of_model(const ServeOptions& options) {
  if (!options.served_model_name.empty()) return options.served_model_name;
  std::error_code ignored;
  const auto path = std::filesystem::canonical(options.engine.model_directory, ignored);
  return path.empty() ? options.engine.model_directory : path.filename().string();
}

// A connection is a file, and the usual limit of 1024 is for other programs.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

bool one_listener(const ServeOptions& options) {
  return options.port != 0 && options.port == options.control_port;
}

// The public listener's routes; the control listener has them, too.
void add_public_routes(Router& router, ServeContext& context) {
  add_health_routes(router, context);
  add_metrics_route(router, context);
  add_openai_routes(router, context);
  add_generate_routes(router, context);
}

void add_control_routes(Router& router, ServeContext& context) {
  add_public_routes(router, context);
  add_status_routes(router, context);
  add_rollout_routes(router, context);
}

// "http://127.0.0.1:8000", with brackets around an IPv6 address.
std::string url(const std::string& host, std::uint16_t port) {
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

// Everything that serves, in the order in which it must end: the server first.
class Serving {
 public:
  explicit Serving(const ServeOptions& options)
      : options_(options),
        log_(options.log_level, options.log_format),
        model_name_(name_of_model(options)),
        metrics_(model_name_) {}

  // Binds first: a port that is taken shows before a load of minutes.
  Status listen() {
    add_loading_routes(loading_);
    const bool shared = one_listener(options_);
    std::vector<HttpListener> listeners(1);
    listeners[0].name = "public";
    listeners[0].address = options_.host;
    listeners[0].port = options_.port;
    listeners[0].api_key =
        shared && !options_.control_token.empty() ? options_.control_token : options_.api_key;
    listeners[0].router = &loading_;
    if (!shared) {
      listeners.push_back({.name = "control",
                           .address = options_.control_host,
                           .port = options_.control_port,
                           .api_key = options_.control_token,
                           .router = &loading_});
    }
    HttpServer::Options http;
    http.limits = options_.limits;
    http.io_threads = options_.io_threads;
    http.on_answer = [this](const HttpAnswer& answer) { on_answer(answer); };
    HF_ASSIGN(server_, HttpServer::start(std::move(listeners), std::move(http)));
    return {};
  }

  Status load() {
    HF_ASSIGN(host_, EngineHost::open(options_.engine, observer()));
    HF_ASSIGN(chat_, ChatFormat::open(host_->tokenizer(), options_.chat_format));
    context_.emplace(ServeContext{.host = *host_,
                                  .metrics = metrics_,
                                  .options = options_,
                                  .chat = *chat_,
                                  .model_name = model_name_});
    context_->connections = [this] { return server_->connections(); };
    const bool shared = one_listener(options_);
    if (!shared) add_public_routes(public_, *context_);
    add_control_routes(control_, *context_);
    server_->use("public", shared ? control_ : public_);
    if (!shared) server_->use("control", control_);
    return {};
  }

  std::string ready_line(double seconds) const {
    const std::string main = url(options_.host, server_->port("public"));
    const std::string control =
        one_listener(options_) ? main : url(options_.control_host, server_->port("control"));
    return fmt::format("ready: {} (control {}) model {} in {:.1f} s", main, control, model_name_,
                       seconds);
  }

  // Lets requests end; a pause that nobody will lift does not hold the process.
  void drain(StopSignals& signals) {
    log_.write(LogLevel::kInfo, "draining",
               {{"connections", std::to_string(server_->connections())},
                {"timeout_s", std::to_string(options_.drain_timeout_s)}});
    const auto drained = std::make_shared<Notice>();
    host_->drain([drained] { drained->set(); });
    const HostSnapshot now = host_->snapshot();
    if (now.paused || now.pausing) host_->cancel_all([](std::size_t) {});
    // Whoever balances load still asks /health and /ready, and what is refused says 503.
    server_->begin_drain();
    const auto pending = [this] { return server_->pending(); };
    const auto until = Clock::now() + std::chrono::seconds(options_.drain_timeout_s);
    const char* how = "drained";
    // Ended requests are answers under way: those are given the same time.
    if (!signals.wait_for(*drained, until) || !wait_for_none(signals, until, pending)) {
      const bool late = Clock::now() >= until;
      how = late ? "drain timed out" : "ended by a second signal";
      // Who still waits gets the tokens so far.
      host_->cancel_all([](std::size_t) {});
      if (late) wait_for_none(signals, Clock::now() + kLastAnswers, pending);
    }
    server_->stop_accepting();
    wait_for_none(signals, Clock::now() + kLastAnswers, [this] { return server_->connections(); });
    log_.write(LogLevel::kInfo, how, {{"connections", std::to_string(server_->connections())}});
  }

  Status failure() const {
    const HostSnapshot snapshot = host_->snapshot();
    if (!snapshot.failed) return {};
    return Error(ErrorCode::kDevice, "the engine has failed for good: " + snapshot.failure);
  }

 private:
  static bool wait_for_none(StopSignals& signals, Clock::time_point until,
                            const std::function<std::size_t()>& count) {
    while (count() > 0) {
      const auto next = std::min(until, Clock::now() + std::chrono::milliseconds(20));
      Notice never;
      signals.wait_for(never, next);
      if (signals.count() > 1 || Clock::now() >= until) return false;
    }
    return true;
  }

  HostObserver observer() {
    HostObserver observer;
    observer.on_step = [this](double seconds, std::uint64_t rows) {
      metrics_.on_step(seconds, rows);
    };
    observer.on_reload = [this](const ReloadReport& report) {
      metrics_.on_reload(report);
      log_.write(report.error.empty() ? LogLevel::kInfo : LogLevel::kWarning, "reload",
                 {{"id", std::to_string(report.id)},
                  {"state", report.state},
                  {"source", report.source},
                  {"version", report.version},
                  {"epoch", std::to_string(report.to_epoch)},
                  {"strategy", report.strategy},
                  {"stage_ms", fmt::format("{:.1f}", report.stage_ms)},
                  {"pause_us", fmt::format("{:.0f}", report.pause_us)},
                  {"error", report.error}});
    };
    observer.on_state = [this](std::string_view state, const std::string& why) {
      const bool bad = state == "poisoned" || state == "failed" || state == "not finite";
      log_.write(bad ? LogLevel::kError : LogLevel::kInfo, state, {{"why", why}});
    };
    return observer;
  }

  void on_answer(const HttpAnswer& answer) {
    metrics_.on_answer(answer.method, answer.route.empty() ? answer.path : answer.route,
                       answer.status, answer.seconds);
    if (!log_.wants(LogLevel::kDebug)) return;
    log_.write(LogLevel::kDebug, "request",
               {{"listener", answer.listener},
                {"method", answer.method},
                {"path", answer.path},
                {"status", std::to_string(answer.status)},
                {"ms", fmt::format("{:.1f}", answer.seconds * 1e3)},
                {"bytes", std::to_string(answer.bytes_sent)},
                {"whole", answer.whole ? "true" : "false"},
                {"id", answer.request_id}});
  }

  const ServeOptions& options_;
  Log log_;
  const std::string model_name_;
  Metrics metrics_;
  std::unique_ptr<EngineHost> host_;
  std::unique_ptr<ChatFormat> chat_;
  std::optional<ServeContext> context_;
  Router loading_, public_, control_;  // their handlers use what stands above
  std::unique_ptr<HttpServer> server_;
};

}  // namespace

Status run_server(const ServeOptions& options,
                  const std::function<void(const std::string& line)>& ready) {
  HF_TRY(check_serve_options(options));
  raise_file_limit();
  const Clock::time_point began = Clock::now();
  Serving serving(options);
  HF_TRY(serving.listen());
  StopSignals signals;
  HF_TRY(serving.load());
  signals.catch_signals();
  ready(serving.ready_line(std::chrono::duration<double>(Clock::now() - began).count()));
  signals.wait();
  serving.drain(signals);
  return serving.failure();
}

}  // namespace holdfast::serve
