// The rollout control of SGLang's dialect, its disk subset: translated to Rollout's calls and back.
// Replies are {"success", "message"} with 200 or 400, where nothing else is said. Exact fields:
// docs/rollout.md.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/error.h"
#include "holdfast/version.h"
#include "serve/control_support.h"

namespace holdfast::serve {
namespace {

constexpr std::int64_t kMaxTruncate = 1 << 20;

void reply_outcome(Responder& responder, bool success, std::string_view message) {
  JsonWriter json;
  json.begin_object().field("success", success).field("message", message).end_object();
  reply_json(responder, json, success ? 200 : 400);
}
void reply_refusal(Responder& responder, const ApiError& error) {
  reply_outcome(responder, false, error.message);
}
void reply_ok(Responder& responder, std::string_view message) {
  JsonWriter json;
  json.begin_object().field("message", message).field("status", "ok").end_object();
  reply_json(responder, json);
}

// ------------------------------------------------------------------------------ pausing

void pause(const RolloutPtr& rollout, const HttpRequest& request, ResponderPtr responder) {
  std::string mode = "abort";
  const auto read = [&](FieldReader& in) {
    in.one_of("mode", mode, {"abort", "retract", "in_place"});
  };
  if (!read_body(request, *responder, read, reply_refusal)) return;
  const PauseMode pause_mode = mode == "abort" ? PauseMode::kAbort : PauseMode::kKeep;
  rollout->host().pause(pause_mode, [rollout, mode, responder = std::move(responder)] {
    if (mode != "retract") return reply_ok(*responder, "Generation paused (" + mode + ")");
    rollout->host().post([responder](Engine& engine) {
      engine.recompute_running();
      reply_ok(*responder, "Generation paused (retract)");
    });
  });
}

void add_pauses(Router& router, const RolloutPtr& rollout) {
  router.add("POST", "/pause_generation",
             [rollout](const HttpRequest& request, ResponderPtr responder) {
               pause(rollout, request, std::move(responder));
             });
  router.add("POST", "/continue_generation", [rollout](const HttpRequest&,
                                                       ResponderPtr responder) {
    rollout->host().resume([responder = std::move(responder)](const Status& resumed) {
      if (!resumed.ok()) return reply_outcome(*responder, false, resumed.error().to_string());
      reply_ok(*responder, "Generation continued");
    });
  });
  for (const char* method : {"GET", "POST"}) {
    router.add(method, "/flush_cache", [rollout](const HttpRequest&, ResponderPtr responder) {
      rollout->host().post([responder = std::move(responder)](Engine& engine) {
        const EngineStats stats = engine.stats();
        if (stats.running + stats.waiting > 0) {
          return reply_outcome(*responder, false,
                               fmt::format("{} requests run and {} wait; the cache is flushed "
                                           "when none does",
                                           stats.running, stats.waiting));
        }
        engine.reset_prefix_cache();
        reply_outcome(*responder, true, "Cache flushed.");
      });
    });
  }
  // Weights stay where graphs see them; what can be given back is the cache.
  router.add("POST", "/release_memory_occupation",
             [rollout](const HttpRequest&, ResponderPtr responder) {
               rollout->host().sleep([responder = std::move(responder)] {
                 reply_outcome(*responder, true, "asleep; the weights stay where they are");
               });
             });
  router.add("POST", "/resume_memory_occupation",
             [rollout](const HttpRequest&, ResponderPtr responder) {
               rollout->host().wake([responder = std::move(responder)] {
                 reply_outcome(*responder, true, "awake");
               });
             });
}

// ------------------------------------------------------------------------------ weights

void reply_updated(Responder& responder, const Result<ReloadReport>& report, bool paused) {
  JsonWriter json;
  json.begin_object().field("success", report.ok());
  if (report.ok()) {
    json.field("message", fmt::format("Weights of {} are live as epoch {}", report->source,
                                      report->to_epoch));
  } else {
    json.field("message", report.error().to_string());
  }
  json.field("num_paused_requests", paused ? 1 : 0).end_object();
  reply_json(responder, json, report.ok() ? 200 : 400);
}

void update_from_disk(const RolloutPtr& rollout, const HttpRequest& request,
                      ResponderPtr responder) {
  std::string path;
  UpdateOptions options;
  bool abort_all = false;
  const auto read = [&](FieldReader& in) {
    if (!in.string("model_path", path, 1u << 12)) in.fail("model_path", "is missing");
    read_update_options(in, options);
    in.boolean("abort_all_requests", abort_all);
    bool flush_cache = true;  // a commit leaves nothing in it
    in.boolean("flush_cache", flush_cache);
    // What loads how is the checkpoint's to say; graphs are never captured again.
    in.ignore({"load_format", "keep_pause", "recapture_cuda_graph", "is_async", "token_step",
               "torch_empty_cache", "manifest"});
    in.finish();
  };
  if (!read_body(request, *responder, read, reply_refusal)) return;
  if (abort_all) options.in_flight = InFlight::kAbort;
  const bool paused = rollout->host().snapshot().paused;
  rollout->update_from_disk(path, options,
                            [responder = std::move(responder),
                             paused](const Result<ReloadReport>& report) {
                              reply_updated(*responder, report, paused);
                            });
}

void weights_by_name(const RolloutPtr& rollout, const HttpRequest& request,
                     ResponderPtr responder) {
  std::string name = request.query_value("name");
  std::int64_t most = 100;
  const auto read = [&](FieldReader& in) {
    in.string("name", name, 1u << 12);
    in.integer("truncate_size", most, {0, kMaxTruncate});
    if (name.empty()) in.fail("name", "is missing");
  };
  if (!read_body(request, *responder, read, reply_refusal)) return;
  rollout->host().post([responder = std::move(responder), name, most](Engine& engine) {
    const auto values = engine.read_tensor(name, static_cast<std::size_t>(most));
    if (!values.ok()) return reply_outcome(*responder, false, values.error().to_string());
    JsonWriter json;
    json.begin_array();
    for (const float value : *values) json.value(value);
    json.end_array();
    reply_json(*responder, json);
  });
}

void check_weights(const RolloutPtr& rollout, const HttpRequest& request,
                   ResponderPtr responder) {
  std::string action;
  const auto read = [&](FieldReader& in) {
    if (!in.one_of("action", action, {"snapshot", "compare", "checksum", "reset_tensors"}) &&
        !in.errors().any()) {
      in.fail("action", "is missing; expected snapshot, compare or checksum");
    }
    if (action != "reset_tensors") return;
    in.fail("action", "\"reset_tensors\" would overwrite live weights, which are read-only between "
                      "commits; snapshot, update and compare tell whether an update took place");
  };
  if (!read_body(request, *responder, read, reply_refusal)) return;
  if (action == "snapshot") {
    return rollout->snapshot_checksums([responder = std::move(responder)](const Status& taken) {
      reply_outcome(*responder, taken.ok(),
                    taken.ok() ? "snapshot taken" : taken.error().message());
    });
  }
  if (action == "checksum") {
    return rollout->checksums(
        [responder = std::move(responder)](const Result<Rollout::Checksums>& sums) {
          if (!sums.ok()) return reply_outcome(*responder, false, sums.error().to_string());
          JsonWriter json;
          json.begin_object().field("success", true).field("message", "").key("checksums");
          json.begin_object();
          for (const auto& [name, digest] : *sums) json.field(name, digest);
          json.end_object().end_object();
          reply_json(*responder, json);
        });
  }
  rollout->compare_with_snapshot(
      [responder = std::move(responder)](const Result<std::vector<std::string>>& differ) {
        if (!differ.ok()) return reply_outcome(*responder, false, differ.error().message());
        if (differ->empty()) return reply_outcome(*responder, true, "weights equal the snapshot");
        reply_outcome(*responder, false,
                      fmt::format("{} slots differ from the snapshot, the first is {}",
                                  differ->size(), differ->front()));
      });
}

void add_weights(Router& router, const RolloutPtr& rollout) {
  router.add("POST", "/update_weights_from_disk",
             [rollout](const HttpRequest& request, ResponderPtr responder) {
               update_from_disk(rollout, request, std::move(responder));
             });
  for (const char* method : {"GET", "POST"}) {
    router.add(method, "/get_weights_by_name",
               [rollout](const HttpRequest& request, ResponderPtr responder) {
                 weights_by_name(rollout, request, std::move(responder));
               });
  }
  router.add("POST", "/weights_checker",
             [rollout](const HttpRequest& request, ResponderPtr responder) {
               check_weights(rollout, request, std::move(responder));
             });
  router.add("GET", "/get_weight_version",
             [rollout](const HttpRequest&, const ResponderPtr& responder) {
               JsonWriter json;
               json.begin_object().field("weight_version", rollout->version()).end_object();
               reply_json(*responder, json);
             });
  // They would need a process group that this server has not.
  for (const char* path :
       {"/init_weights_update_group", "/update_weights_from_distributed",
        "/update_weights_from_tensor", "/update_weights_from_ipc",
        "/destroy_weights_update_group"}) {
    router.add("POST", path, [path](const HttpRequest&, const ResponderPtr& responder) {
      reply_outcome(*responder, false,
                    fmt::format("{} needs NCCL or CUDA IPC, which this server does not offer: use "
                                "/update_weights_from_disk, or upload safetensors to "
                                "/update_weights",
                                path));
    });
  }
}

// ------------------------------------------------------------------------------ requests, state

void abort_request(const RolloutPtr& rollout, const HttpRequest& request,
                   ResponderPtr responder) {
  std::string rid;
  bool all = false;
  const auto read = [&](FieldReader& in) {
    in.string("rid", rid, 1024);
    in.boolean("abort_all", all);
    if (!rid.empty() || all || in.errors().any()) return;
    in.fail("rid", "is missing, and abort_all is not true");
  };
  if (!read_body(request, *responder, read, reply_refusal)) return;
  const auto answer = [responder = std::move(responder)](std::size_t aborted) {
    reply_outcome(*responder, true, fmt::format("{} requests aborted", aborted));
  };
  if (all) return rollout->host().cancel_all(answer);
  answer(rollout->context().registry->abort_prefix(rid));
}

// One token, to see that the engine makes one.
void health_generate(const RolloutPtr& rollout, ResponderPtr responder) {
  const HostSnapshot now = rollout->host().snapshot();
  if (now.paused || now.pausing || now.sleeping) {
    return reply_outcome(*responder, true, "paused: nothing is generated until it is continued");
  }
  Request request;
  request.prompt_ids = {0};
  request.max_tokens = 1;
  request.priority = -1;
  const auto answered = std::make_shared<bool>(false);
  rollout->host().submit(
      std::move(request),
      [responder, answered](const Output& output) {
        if (std::exchange(*answered, true)) return;
        const bool made = output.event.token.has_value();
        JsonWriter json;
        json.begin_object().field("success", made).field("message", made ? "" : "aborted");
        json.end_object();
        reply_json(*responder, json, made ? 200 : 503);
      },
      [responder](const Result<RequestId>& accepted) {
        if (!accepted.ok()) reply_error(*responder, refused_request(accepted.error()));
      });
}

void server_info(const RolloutPtr& rollout, Responder& responder) {
  const ServeContext& context = rollout->context();
  const HostSnapshot now = rollout->host().snapshot();
  JsonWriter json;
  json.begin_object()
      .field("version", std::string("holdfast ") + version())
      .field("model_path", context.host.model_directory())
      .field("served_model_name", context.model_name)
      .field("tp_size", 1)
      .field("pp_size", 1)
      .field("ep_size", 1)
      .field("dp_size", 1)
      .field("num_gpus", 1)
      .field("max_total_num_tokens", now.stats.kv_pages * 16)
      .field("context_length", context.host.max_context())
      .field("weight_version", rollout->version())
      .field("weight_epoch", now.epoch)
      .field("status", now.poisoned || now.failed ? "unhealthy" : "ready")
      .end_object();
  reply_json(responder, json);
}

void model_info(const RolloutPtr& rollout, Responder& responder) {
  const std::string& path = rollout->host().model_directory();
  JsonWriter json;
  json.begin_object()
      .field("model_path", path)
      .field("tokenizer_path", path)
      .field("is_generation", true)
      .field("weight_version", rollout->version())
      .end_object();
  reply_json(responder, json);
}

void loads(const RolloutPtr& rollout, Responder& responder) {
  const EngineStats stats = rollout->host().snapshot().stats;
  JsonWriter json;
  const auto numbers = [&] {
    json.field("num_reqs", stats.running + stats.waiting)
        .field("num_running_reqs", stats.running)
        .field("num_waiting_reqs", stats.waiting)
        .field("num_tokens", stats.kv_pages_used * 16)
        .field("max_total_num_tokens", stats.kv_pages * 16);
  };
  json.begin_object();
  numbers();
  json.key("loads").begin_array().begin_object().field("dp_rank", 0);
  numbers();
  json.end_object().end_array().end_object();
  reply_json(responder, json);
}

void add_state(Router& router, const RolloutPtr& rollout) {
  router.add("POST", "/abort_request",
             [rollout](const HttpRequest& request, ResponderPtr responder) {
               abort_request(rollout, request, std::move(responder));
             });
  router.add("GET", "/health_generate",
             [rollout](const HttpRequest&, ResponderPtr responder) {
               health_generate(rollout, std::move(responder));
             });
  const auto get = [&](const char* path, void (*answer)(const RolloutPtr&, Responder&)) {
    router.add("GET", path, [rollout, answer](const HttpRequest&, const ResponderPtr& responder) {
      answer(rollout, *responder);
    });
  };
  get("/server_info", server_info);
  get("/get_server_info", server_info);
  get("/model_info", model_info);
  get("/get_model_info", model_info);
  get("/v1/loads", loads);
}

}  // namespace

void add_sglang_control_routes(Router& router, const RolloutPtr& rollout) {
  add_pauses(router, rollout);
  add_weights(router, rollout);
  add_state(router, rollout);
}

}  // namespace holdfast::serve
