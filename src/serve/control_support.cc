#include "serve/control_support.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace holdfast::serve {
namespace {

constexpr std::int64_t kMaxDeadlineMs = std::int64_t{1000} * 60 * 60 * 24;  // as the engine has it
constexpr std::size_t kMaxNames = 1u << 16;
constexpr std::int32_t kMaxLayer = 1 << 20;

constexpr std::array kPolicies = {InFlight::kContinue, InFlight::kRecompute, InFlight::kRestart,
                                  InFlight::kAbort, InFlight::kDrain};

}  // namespace

bool parse_body(const HttpRequest& request, JsonDocument& document, Responder& responder) {
  const bool blank = std::all_of(request.body.begin(), request.body.end(), [](unsigned char c) {
    return std::isspace(c) != 0;
  });
  const auto error = JsonDocument::parse(blank ? std::string_view("{}") : request.body, document);
  if (error) reply_error(responder, *error);
  return !error;
}

bool read_body(const HttpRequest& request, Responder& responder,
               const std::function<void(FieldReader& in)>& read, Refuse refuse) {
  JsonDocument document;
  if (!parse_body(request, document, responder)) return false;
  RequestErrors errors;
  FieldReader in(document.root(), "", errors);
  read(in);
  if (errors.any()) refuse(responder, *errors.first());
  return !errors.any();
}

void read_update_options(FieldReader& in, UpdateOptions& options) {
  std::string policy;
  if (in.one_of("in_flight", policy, {"continue", "recompute", "restart", "abort", "drain"})) {
    options.in_flight = *std::find_if(kPolicies.begin(), kPolicies.end(), [&](InFlight p) {
      return policy == in_flight_name(p);
    });
  }
  in.one_of("commit", options.commit, {"remap", "copy", "stream", "auto"});
  in.integer("deadline_ms", options.deadline_ms, {0, kMaxDeadlineMs});
  in.string("weight_version", options.version, 256);
  // An empty list would say "nothing" and mean "everything".
  for (const std::string_view name : {"names", "layers", "experts"}) {
    const auto list = in.value(name);
    if (list && list->kind() == JsonKind::kArray && list->size() == 0) {
      in.fail(name, std::string(name) + " is empty; leave it out to load everything");
    }
  }
  in.strings("names", options.names, kMaxNames);
  std::vector<std::int32_t> layers;
  if (in.ids("layers", layers, kMaxNames, {0, kMaxLayer})) {
    options.scope.layers.assign(layers.begin(), layers.end());
  }
  const auto experts = in.value("experts");
  if (!experts) return;
  if (experts->kind() != JsonKind::kArray) {
    return in.fail("experts",
                   "experts is " + experts->brief() + "; expected pairs [layer, expert]");
  }
  for (const JsonValue& pair : experts->elements()) {
    std::vector<std::int32_t> ids;
    if (pair.kind() != JsonKind::kArray || pair.ids_into(ids, {0, kMaxLayer}) || ids.size() != 2) {
      return in.fail("experts", "expected pairs [layer, expert], not " + pair.brief());
    }
    options.scope.experts.emplace_back(ids[0], ids[1]);
  }
}

void reply_json(Responder& responder, JsonWriter& body, int status) {
  responder.reply(status, "application/json", body.take());
}

void reply_message(Responder& responder, std::string_view message) {
  JsonWriter json;
  json.begin_object().field("message", message).end_object();
  reply_json(responder, json);
}

ApiError update_error(const Error& error) {
  ApiError answer = api_error(error);
  if (answer.status >= 500 || answer.status == 429) answer.status = 409;
  return answer;
}

void reply_update_error(Responder& responder, const Error& error) {
  reply_error(responder, update_error(error));
}

std::string query_or_field(const HttpRequest& request, FieldReader& in, std::string_view name) {
  std::string text = request.query_value(std::string(name));
  const auto value = in.value(name);
  if (!text.empty() || !value) return text;
  if (const auto string = value->string()) return std::string(*string);
  return value->text();
}

bool is_true(std::string_view text) { return text == "true" || text == "True" || text == "1"; }

void write_report(JsonWriter& json, const ReloadReport& report) {
  json.begin_object()
      .field("id", report.id)
      .field("state", report.state)
      .field("source", report.source)
      .field("scope", report.scope)
      .field("version", report.version)
      .field("strategy", report.strategy)
      .field("from_epoch", report.from_epoch)
      .field("to_epoch", report.to_epoch)
      .field("source_bytes", report.source_bytes)
      .field("versioned_bytes", report.versioned_bytes)
      .field("preserved_bytes", report.preserved_bytes)
      .field("stage_ms", report.stage_ms)
      .field("prepare_ms", report.prepare_ms)
      .field("pause_us", report.pause_us)
      .field("expected_pause_us", report.expected_pause_us)
      .field("verify_ms", report.verify_ms)
      .field("declared_peak_bytes", report.declared_peak_bytes)
      .field("measured_peak_bytes", report.measured_peak_bytes)
      .field("slots_moved", report.slots_moved)
      .field("slots_changed", report.slots_changed)
      .array("warnings", report.warnings)
      .field("error", report.error)
      .end_object();
}

void write_status(JsonWriter& json, const ReloadStatus& status) {
  json.begin_object()
      .field("id", status.id)
      .field("phase", reload_phase_name(status.phase))
      .field("source", status.source)
      .field("version", status.version)
      .field("strategy", status.strategy)
      .field("pushed", status.pushed)
      .field("bytes_expected", status.bytes_expected)
      .field("bytes_arrived", status.bytes_arrived)
      .field("awaited_count", status.awaited_count)
      .array("awaited", status.awaited)
      .field("deadline_left_ms", status.deadline_left_ms)
      .field("error", status.error)
      .end_object();
}

}  // namespace holdfast::serve
