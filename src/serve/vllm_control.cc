// The rollout control of vLLM's dialect (the routes that it offers to RL trainers): translated to
// Rollout's calls and back. Exact fields and replies: docs/rollout.md.
#include <memory>
#include <utility>

#include "base/error.h"
#include "serve/control_support.h"
#include "serve/weight_upload.h"

namespace holdfast::serve {
namespace {

constexpr std::size_t kMaxRequestIds = 1u << 16;

// vLLM's own form of an error on these routes: {"error": "..."}.
void reply_plain_error(Responder& responder, int status, std::string_view message) {
  JsonWriter json;
  json.begin_object().field("error", message).end_object();
  reply_json(responder, json, status);
}

void reply_state(Responder& responder, std::string_view status) {
  JsonWriter json;
  json.begin_object().field("status", status).end_object();
  reply_json(responder, json);
}

// ------------------------------------------------------------------------------ pausing

void pause(const RolloutPtr& rollout, const HttpRequest& request, ResponderPtr responder) {
  std::string mode, clear;
  bool wait = false;
  const bool read = read_body(request, *responder, [&](FieldReader& in) {
    mode = query_or_field(request, in, "mode");
    wait = is_true(query_or_field(request, in, "wait_for_inflight_requests"));
    clear = query_or_field(request, in, "clear_cache");
  });
  if (!read) return;
  if (mode.empty()) mode = wait ? "wait" : "abort";
  PauseMode pause_mode = PauseMode::kAbort;
  if (mode == "keep") {
    pause_mode = PauseMode::kKeep;
  } else if (mode == "wait") {
    pause_mode = PauseMode::kWait;
  } else if (mode != "abort") {
    return reply_plain_error(*responder, 400,
                             "mode is \"" + mode + "\", expected abort, wait or keep");
  }
  const bool clear_cache = pause_mode != PauseMode::kKeep && (clear.empty() || is_true(clear));
  rollout->host().pause(pause_mode, [rollout, clear_cache, responder] {
    if (!clear_cache) return reply_state(*responder, "paused");
    rollout->host().post([responder](Engine& engine) {
      engine.reset_prefix_cache();
      reply_state(*responder, "paused");
    });
  });
}

void resume(const RolloutPtr& rollout, ResponderPtr responder) {
  rollout->host().resume([responder = std::move(responder)](const Status& resumed) {
    if (!resumed.ok()) return reply_update_error(*responder, resumed.error());
    reply_state(*responder, "resumed");
  });
}

void add_pauses(Router& router, const RolloutPtr& rollout) {
  router.add("POST", "/pause", [rollout](const HttpRequest& request, ResponderPtr responder) {
    pause(rollout, request, std::move(responder));
  });
  router.add("POST", "/resume", [rollout](const HttpRequest&, ResponderPtr responder) {
    resume(rollout, std::move(responder));
  });
  router.add("GET", "/is_paused", [rollout](const HttpRequest&, const ResponderPtr& responder) {
    JsonWriter json;
    json.begin_object().field("is_paused", rollout->host().snapshot().paused).end_object();
    reply_json(*responder, json);
  });
  router.add("POST", "/sleep", [rollout](const HttpRequest&, ResponderPtr responder) {
    rollout->host().sleep([responder = std::move(responder)] {
      responder->reply(200, "application/json", "{}");
    });
  });
  router.add("POST", "/wake_up", [rollout](const HttpRequest&, ResponderPtr responder) {
    rollout->host().wake([responder = std::move(responder)] {
      responder->reply(200, "application/json", "{}");
    });
  });
  router.add("GET", "/is_sleeping", [rollout](const HttpRequest&, const ResponderPtr& responder) {
    JsonWriter json;
    json.begin_object().field("is_sleeping", rollout->host().snapshot().sleeping).end_object();
    reply_json(*responder, json);
  });
}

// ------------------------------------------------------------------------------ weight updates

// Whatever the caller says of NCCL cannot be had; disk and HTTP need no rendezvous.
void init_transfer(const HttpRequest& request, Responder& responder) {
  std::string wanted;
  const bool read = read_body(request, responder, [&](FieldReader& in) {
    const auto info = in.value("init_info");
    if (!info) return;
    for (const auto& [name, value] : info->members()) {
      const bool rendezvous =
          name == "master_address" || name == "master_port" || name == "world_size";
      if (rendezvous && !value.is_null() && wanted.empty()) wanted = name;
    }
  });
  if (!read) return;
  if (wanted.empty()) return reply_message(responder, "Weight transfer initialized");
  reply_update_error(responder,
                     make_error(ErrorCode::kFailedPrecondition,
                                "init_info.{} asks for the NCCL transport, which this server has "
                                "not: send weight_dir, or upload safetensors to /update_weights",
                                wanted));
}

void start_update(const RolloutPtr& rollout, const HttpRequest& request, ResponderPtr responder) {
  UpdateOptions options;
  const bool read = read_body(request, *responder, [&](FieldReader& in) {
    read_update_options(in, options);
    bool checkpoint_format = true;
    in.boolean("is_checkpoint_format", checkpoint_format);
    if (!checkpoint_format) {
      in.fail("is_checkpoint_format", "must be true: tensors come under their checkpoint's names");
    }
    in.finish();
  });
  if (!read) return;
  rollout->start_update(std::move(options), [responder = std::move(responder)](const Status&) {
    reply_message(*responder, "Weight update started");
  });
}

struct UpdateBody {
  std::string directory;
  bool from_info = false;  // vLLM's own body, which is answered in another way
};

// Either {"weight_dir": ...} or {"update_info": {"backend": "disk", "path": ...}}.
UpdateBody read_update(FieldReader& in) {
  UpdateBody body;
  in.string("weight_dir", body.directory, 1u << 12);
  const auto info = in.value("update_info");
  if (info) {
    body.from_info = true;
    FieldReader fields(*info, "update_info", in.errors());
    std::string backend = "disk";
    fields.string("backend", backend, 64);
    for (const std::string_view name : {"path", "weight_dir", "model_path", "directory"}) {
      if (body.directory.empty()) fields.string(name, body.directory, 1u << 12);
    }
    if (fields.has("dtype_names") || fields.has("ipc_handles_pickled") || backend != "disk") {
      fields.fail("backend", "this server takes weights from disk (path) or as an upload of "
                             "safetensors; NCCL and CUDA IPC are not offered");
    }
  }
  if (body.directory.empty() && !in.errors().any()) {
    in.fail("weight_dir", "is missing; send weight_dir, update_info.path, or the tensors "
                          "themselves as safetensors");
  }
  return body;
}

void update_weights(const RolloutPtr& rollout, const HttpRequest& request,
                    ResponderPtr responder) {
  UpdateOptions options;
  UpdateBody body;
  const bool read = read_body(request, *responder, [&](FieldReader& in) {
    body = read_update(in);
    read_update_options(in, options);
    in.finish();
  });
  if (!read) return;
  const auto answer = [responder = std::move(responder),
                       from_info = body.from_info](const Result<ReloadReport>& report) {
    if (!report.ok()) return reply_update_error(*responder, report.error());
    if (from_info) return reply_message(*responder, "Weights updated");
    reply_state(*responder, "ok");
  };
  // weight_dir is from clients that know no bracket, for whom "ok" means that it is live.
  if (!body.from_info) return rollout->update_from_disk(body.directory, options, answer);
  rollout->update_in_bracket(body.directory, std::move(options), answer);
}

std::unique_ptr<Upload> upload_weights(const RolloutPtr& rollout, const HttpRequest& request,
                                       ResponderPtr responder) {
  UploadTarget target;
  target.open = [rollout](const std::vector<TensorInfo>& tensors) -> Result<std::uint64_t> {
    HF_TRY(rollout->host().check_loadable(tensors));
    return wait_for<std::uint64_t>([&](auto done) { rollout->open_push(std::move(done)); });
  };
  target.complete = [](std::uint64_t, const ResponderPtr& answer) {
    reply_message(*answer, "Weights updated");
  };
  target.fail = [rollout](std::uint64_t id) { rollout->fail_push(id); };
  return make_weight_upload(rollout->host(), std::move(target), request, std::move(responder),
                            rollout->context().options.max_upload_bytes);
}

void finish_update(const RolloutPtr& rollout, const HttpRequest& request,
                   ResponderPtr responder) {
  std::string version;
  const bool read = read_body(request, *responder, [&](FieldReader& in) {
    in.string("weight_version", version, 256);
    in.finish();
  });
  if (!read) return;
  rollout->finish_update(
      version, [responder = std::move(responder)](const Result<ReloadReport>& report) {
        if (!report.ok()) return reply_update_error(*responder, report.error());
        reply_message(*responder, "Weight update finished");
      });
}

void update_version(const RolloutPtr& rollout, const HttpRequest& request,
                    ResponderPtr responder) {
  std::string version;
  bool abort_all = false;
  const bool read = read_body(request, *responder, [&](FieldReader& in) {
    if (!in.string("new_version", version, 256)) in.fail("new_version", "is missing");
    in.boolean("abort_all_requests", abort_all);
    in.finish();
  });
  if (!read) return;
  if (abort_all) rollout->host().cancel_all([](std::size_t) {});
  rollout->host().set_version(version, [responder = std::move(responder), version] {
    JsonWriter json;
    json.begin_object()
        .field("success", true)
        .field("message", "Weight version updated")
        .field("new_version", version)
        .end_object();
    reply_json(*responder, json);
  });
}

void add_updates(Router& router, const RolloutPtr& rollout) {
  router.add("POST", "/init_weight_transfer_engine",
             [](const HttpRequest& request, const ResponderPtr& responder) {
               init_transfer(request, *responder);
             });
  router.add("POST", "/start_weight_update",
             [rollout](const HttpRequest& request, ResponderPtr responder) {
               start_update(rollout, request, std::move(responder));
             });
  router.add("POST", "/update_weights",
             [rollout](const HttpRequest& request, ResponderPtr responder) {
               update_weights(rollout, request, std::move(responder));
             });
  router.add_upload("POST", "/update_weights",
                    [rollout](const HttpRequest& request, ResponderPtr responder) {
                      return upload_weights(rollout, request, std::move(responder));
                    });
  router.add("POST", "/finish_weight_update",
             [rollout](const HttpRequest& request, ResponderPtr responder) {
               finish_update(rollout, request, std::move(responder));
             });
  router.add("POST", "/update_weight_version",
             [rollout](const HttpRequest& request, ResponderPtr responder) {
               update_version(rollout, request, std::move(responder));
             });
  router.add("GET", "/weight_info", [rollout](const HttpRequest&, const ResponderPtr& responder) {
    JsonWriter json;
    json.begin_object().field("weight_version", rollout->version()).end_object();
    reply_json(*responder, json);
  });
}

// ------------------------------------------------------------------------------ checks

void reply_checksums(const ResponderPtr& responder, const Result<Rollout::Checksums>& checksums) {
  if (!checksums.ok()) return reply_update_error(*responder, checksums.error());
  JsonWriter json;
  json.begin_object().key("checksums").begin_object();
  for (const auto& [name, digest] : *checksums) json.field(name, digest);
  json.end_object().end_object();
  reply_json(*responder, json);
}

void reply_compared(const ResponderPtr& responder, const Rollout::Checksums& baseline,
                    const Result<Rollout::Checksums>& checksums) {
  if (!checksums.ok()) return reply_update_error(*responder, checksums.error());
  std::vector<std::string> mismatches;
  for (const auto& [name, digest] : *checksums) {
    const auto found = baseline.find(name);
    if (found == baseline.end() || found->second != digest) mismatches.push_back(name);
  }
  for (const auto& [name, digest] : baseline) {
    if (!checksums->contains(name)) mismatches.push_back(name);
  }
  JsonWriter json;
  json.begin_object()
      .field("match", mismatches.empty())
      .array("mismatches", mismatches)
      .end_object();
  reply_json(*responder, json);
}

void check_weights(const RolloutPtr& rollout, const HttpRequest& request,
                   ResponderPtr responder) {
  std::string action;
  Rollout::Checksums baseline;
  const bool read = read_body(request, *responder, [&](FieldReader& in) {
    if (!in.one_of("action", action, {"checksum", "compare", "reset"}) && !in.errors().any()) {
      in.fail("action", "is missing; expected checksum or compare");
    }
    if (const auto given = in.value("baseline")) {
      for (const auto& [name, digest] : given->members()) {
        baseline.emplace(name, digest.string().value_or(""));
      }
    }
    in.finish();
    if (action == "reset") {
      in.fail("action", "\"reset\" would overwrite live weights, which are read-only between "
                        "commits; expected checksum or compare");
    }
  });
  if (!read) return;
  rollout->checksums([responder = std::move(responder), action, baseline = std::move(baseline)](
                         const Result<Rollout::Checksums>& checksums) {
    if (action == "checksum") return reply_checksums(responder, checksums);
    reply_compared(responder, baseline, checksums);
  });
}

// ------------------------------------------------------------------------------ requests, caches

void abort_requests(const RolloutPtr& rollout, const HttpRequest& request,
                    ResponderPtr responder) {
  std::vector<std::string> names;
  bool some = false;
  const bool read = read_body(request, *responder, [&](FieldReader& in) {
    some = in.strings("request_ids", names, kMaxRequestIds);
    in.finish();
  });
  if (!read) return;
  const auto answer = [responder = std::move(responder)](std::size_t aborted) {
    JsonWriter json;
    json.begin_object().field("status", "aborted").field("aborted", aborted).end_object();
    reply_json(*responder, json);
  };
  if (!some) return rollout->host().cancel_all(answer);
  std::size_t aborted = 0;
  for (const std::string& name : names) aborted += rollout->context().registry->abort(name);
  answer(aborted);
}

void reset_prefix_cache(const RolloutPtr& rollout, const HttpRequest& request,
                        ResponderPtr responder) {
  bool running = false;
  const bool read = read_body(request, *responder, [&](FieldReader& in) {
    running = is_true(query_or_field(request, in, "reset_running_requests"));
  });
  if (!read) return;
  rollout->host().post([responder = std::move(responder), running](Engine& engine) {
    if (running) engine.recompute_running();
    engine.reset_prefix_cache();
    responder->reply(200, "application/json", R"({"success":true})");
  });
}

void add_checks(Router& router, const RolloutPtr& rollout) {
  router.add("POST", "/weight_checker",
             [rollout](const HttpRequest& request, ResponderPtr responder) {
               check_weights(rollout, request, std::move(responder));
             });
  for (const char* path : {"/abort_requests", "/inference/v1/abort_requests"}) {
    router.add("POST", path, [rollout](const HttpRequest& request, ResponderPtr responder) {
      abort_requests(rollout, request, std::move(responder));
    });
  }
  router.add("POST", "/reset_prefix_cache",
             [rollout](const HttpRequest& request, ResponderPtr responder) {
               reset_prefix_cache(rollout, request, std::move(responder));
             });
  // There are no such caches, so that they are always clean.
  for (const char* path : {"/reset_mm_cache", "/reset_encoder_cache"}) {
    router.add("POST", path, [](const HttpRequest&, const ResponderPtr& responder) {
      responder->reply(200, "application/json", R"({"success":true})");
    });
  }
  router.add("GET", "/get_world_size", [](const HttpRequest&, const ResponderPtr& responder) {
    responder->reply(200, "application/json", R"({"world_size":1})");
  });
}

}  // namespace

void add_vllm_control_routes(Router& router, const RolloutPtr& rollout) {
  add_pauses(router, rollout);
  add_updates(router, rollout);
  add_checks(router, rollout);
}

}  // namespace holdfast::serve
