// holdfast's own reload routes: a plan before anything moves, a reload and where it stands, and a
// whole update as one upload. And the one Rollout that the routes of every dialect share.
#include <charconv>
#include <memory>
#include <utility>

#include "base/error.h"
#include "serve/control_support.h"
#include "serve/weight_upload.h"

namespace holdfast::serve {
namespace {

ReloadOptions plan_options(const UpdateOptions& options) {
  ReloadOptions plan;
  plan.commit = options.commit;
  plan.scope = options.scope;
  plan.scope.parameters = options.names;
  return plan;
}

// {"directory": ..., and the options of an update}. False: it has answered with the error.
bool read_directory(const HttpRequest& request, std::string& directory, UpdateOptions& options,
                    bool* wait, Responder& responder) {
  return read_body(request, responder, [&](FieldReader& in) {
    if (!in.string("directory", directory, 1u << 12)) in.fail("directory", "is missing");
    read_update_options(in, options);
    if (wait != nullptr) in.boolean("wait", *wait);
    in.finish();
  });
}

void plan(const RolloutPtr& rollout, const HttpRequest& request, ResponderPtr responder) {
  std::string directory;
  UpdateOptions options;
  if (!read_directory(request, directory, options, nullptr, *responder)) return;
  Result<std::string> allowed = rollout->allowed_directory(directory);
  if (!allowed.ok()) return reply_update_error(*responder, allowed.error());
  rollout->host().post([responder = std::move(responder), path = std::move(*allowed),
                        options = plan_options(options)](Engine& engine) {
    const Result<PlanReport> report = engine.plan_reload(path, options);
    if (!report.ok()) return reply_update_error(*responder, report.error());
    JsonWriter json;
    json.begin_object()
        .field("strategy", report->strategy)
        .field("text", report->text)
        .key("plan")
        .raw(report->json)
        .end_object();
    reply_json(*responder, json);
  });
}

void reply_report(Responder& responder, const Result<ReloadReport>& report) {
  if (!report.ok()) return reply_update_error(responder, report.error());
  JsonWriter json;
  write_report(json, *report);
  reply_json(responder, json);
}

void reload(const RolloutPtr& rollout, const HttpRequest& request, ResponderPtr responder) {
  std::string directory;
  UpdateOptions options;
  bool wait = true;
  if (!read_directory(request, directory, options, &wait, *responder)) return;
  if (wait) {
    return rollout->update_from_disk(
        directory, options,
        [responder = std::move(responder)](const Result<ReloadReport>& report) {
          reply_report(*responder, report);
        });
  }
  rollout->begin_from_disk(directory, std::move(options),
                           [responder = std::move(responder)](const Result<std::uint64_t>& id) {
                             if (!id.ok()) return reply_update_error(*responder, id.error());
                             JsonWriter json;
                             json.begin_object().field("id", *id).end_object();
                             reply_json(*responder, json);
                           });
}

// The open reload or the last one, or one of the last reports by its id.
void show(const RolloutPtr& rollout, const std::string& parameter, Responder& responder) {
  std::uint64_t id = 0;
  const char* end = parameter.data() + parameter.size();
  const auto [stop, error] = std::from_chars(parameter.data(), end, id);
  if (!parameter.empty() && (error != std::errc() || stop != end)) {
    return reply_error(responder, 400, "a reload's id is a number, not \"" + parameter + "\"");
  }
  const ReloadStatus status = rollout->host().reload_status();
  const HostSnapshot snapshot = rollout->host().snapshot();
  const ReloadRecord* record = nullptr;
  for (const ReloadRecord& each : snapshot.reloads) {
    if (each.report.id == (parameter.empty() ? status.id : id)) record = &each;
  }
  const bool is_current = parameter.empty() || status.id == id;
  if (!is_current && record == nullptr) {
    return reply_error(responder, 404, "no reload has the id " + parameter);
  }
  JsonWriter json;
  json.begin_object().field("bracket_open", rollout->bracket_open());
  if (is_current) {
    json.key("status");
    write_status(json, status);
  }
  if (record != nullptr) {
    json.key("report");
    write_report(json, record->report);
    json.field("began_unix_ms", record->began_unix_ms)
        .field("ended_unix_ms", record->ended_unix_ms);
  }
  json.end_object();
  reply_json(responder, json);
}

void abort_reload(const RolloutPtr& rollout, const HttpRequest& request, ResponderPtr responder) {
  std::uint64_t id = 0;
  const std::string& text = request.parameter;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || stop != text.data() + text.size()) {
    return reply_error(*responder, 400, "a reload's id is a number, not \"" + text + "\"");
  }
  rollout->host().abort_reload(id, [responder = std::move(responder)](const Status& aborted) {
    if (!aborted.ok()) return reply_update_error(*responder, aborted.error());
    responder->reply(200, "application/json", R"({"state":"aborted"})");
  });
}

// POST /reload/upload: the whole update is one safetensors body; options come as the query.
std::unique_ptr<Upload> upload(const RolloutPtr& rollout, const HttpRequest& request,
                               ResponderPtr responder) {
  UpdateOptions options;
  options.version = request.query_value("weight_version");
  // Who waits for the end of the reload: set when all bytes have come.
  struct Ending {
    std::mutex mutex;
    std::optional<Result<ReloadReport>> report;
    ResponderPtr responder;
  };
  const auto ending = std::make_shared<Ending>();
  UploadTarget target;
  target.open = [rollout, options, ending](const std::vector<TensorInfo>& tensors) {
    return wait_for<std::uint64_t>([&](auto begun) {
      rollout->begin_push(tensors, options, std::move(begun),
                          [ending](const Result<ReloadReport>& report) {
                            ResponderPtr waiting;
                            {
                              const std::lock_guard lock(ending->mutex);
                              ending->report = report;
                              waiting = ending->responder;
                            }
                            if (waiting) reply_report(*waiting, report);
                          });
    });
  };
  target.complete = [rollout, ending](std::uint64_t id, ResponderPtr answer) {
    // A reload that fails here has its end told by what begin_push was given.
    const Status ended = rollout->host().end_push(id);
    std::optional<Result<ReloadReport>> report;
    {
      const std::lock_guard lock(ending->mutex);
      report = ending->report;
      if (!report) ending->responder = answer;
    }
    if (report) return reply_report(*answer, *report);
    if (!ended.ok() && ended.error().code() == ErrorCode::kFailedPrecondition) {
      reply_update_error(*answer, ended.error());
    }
  };
  target.fail = [rollout](std::uint64_t id) { rollout->fail_push(id); };
  return make_weight_upload(rollout->host(), std::move(target), request, std::move(responder),
                            rollout->context().options.max_upload_bytes);
}

void add_reload_routes(Router& router, const RolloutPtr& rollout) {
  router.add("POST", "/reload/plan",
             [rollout](const HttpRequest& request, ResponderPtr responder) {
               plan(rollout, request, std::move(responder));
             });
  router.add("POST", "/reload", [rollout](const HttpRequest& request, ResponderPtr responder) {
    reload(rollout, request, std::move(responder));
  });
  router.add("GET", "/reload", [rollout](const HttpRequest&, const ResponderPtr& responder) {
    show(rollout, "", *responder);
  });
  router.add("GET", "/reload/{id}",
             [rollout](const HttpRequest& request, const ResponderPtr& responder) {
               show(rollout, request.parameter, *responder);
             });
  router.add("DELETE", "/reload/{id}",
             [rollout](const HttpRequest& request, ResponderPtr responder) {
               abort_reload(rollout, request, std::move(responder));
             });
  router.add_upload("POST", "/reload/upload",
                    [rollout](const HttpRequest& request, ResponderPtr responder) {
                      return upload(rollout, request, std::move(responder));
                    });
}

}  // namespace

void add_rollout_routes(Router& router, ServeContext& context) {
  const auto rollout = std::make_shared<Rollout>(context);
  add_vllm_control_routes(router, rollout);
  add_sglang_control_routes(router, rollout);
  add_reload_routes(router, rollout);
}

}  // namespace holdfast::serve
