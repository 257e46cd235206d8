// ServeContext: what the routes share. Built once by run_server; outlives the HTTP server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/chat.h"
#include "serve/generation.h"
#include "serve/host.h"
#include "serve/http.h"
#include "serve/metrics.h"

namespace holdfast::serve {

struct ServeOptions {
  EngineOptions engine;
  std::string served_model_name;  // empty: the directory's last part
  std::string chat_format = "auto";
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  std::string control_host = "127.0.0.1";
  std::uint16_t control_port = 8001;  // the same as port: one listener for both
  std::string api_key;                // of the public listener
  std::string control_token;          // bearer token; required where control_host is not loopback
  std::vector<std::string> model_roots;  // directories that a reload may name something below;
                                         // empty: the parent of the model's directory
  HttpLimits limits;
  int io_threads = 1;
  std::size_t max_prompt_tokens = 0;      // 0: the context
  std::int64_t max_choices = 128;         // n times prompts of one request
  std::int32_t max_logprobs = -1;         // -1: the vocabulary
  std::size_t max_streams = 4096;         // open streams
  std::string logprobs_mode = "raw";      // "raw" or "processed": the default of requests
  std::int64_t default_max_tokens = 16;   // of /v1/completions, as OpenAI has it
  std::uint64_t max_upload_bytes = std::uint64_t{1} << 40;
  std::string log_format = "text";        // "text" or "json"
  std::string log_level = "info";
  int drain_timeout_s = 60;               // on SIGTERM
};

struct ServeContext {
  EngineHost& host;
  Metrics& metrics;
  const ServeOptions& options;
  const ChatFormat& chat;
  std::string model_name;
  // Open connections of all listeners, for metrics; set once the server runs. Empty: not known.
  std::function<std::size_t()> connections = {};
  // Who generates now, by the clients' request ids.
  std::shared_ptr<GenerationRegistry> registry = make_generation_registry();
};

// The routes, by room. The public listener gets the first two; the control listener all.
void add_openai_routes(Router& router, ServeContext& context);    // serve/openai_routes.cc
void add_generate_routes(Router& router, ServeContext& context);  // serve/generate_routes.cc
// The control listener's: one Rollout for the routes of every dialect.
void add_rollout_routes(Router& router, ServeContext& context);  // serve/reload_routes.cc
void add_status_routes(Router& router, ServeContext& context);  // serve/status_routes.cc
// GET /health (the process lives), /ready (or 503 with why not), /version: on both listeners.
void add_health_routes(Router& router, ServeContext& context);  // serve/health_routes.cc
// The same while the model loads; everything else is 503.
void add_loading_routes(Router& router);  // serve/health_routes.cc
// GET /metrics: on both listeners (once, where they are one).
void add_metrics_route(Router& router, ServeContext& context);  // serve/status_routes.cc

}  // namespace holdfast::serve
