// What the control routes of every dialect share: optional bodies, fields that mean the same
// everywhere, answers. I/O threads.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "serve/api_error.h"
#include "serve/json_reader.h"
#include "serve/json_writer.h"
#include "serve/rollout.h"

namespace holdfast::serve {

using RolloutPtr = std::shared_ptr<Rollout>;

// The body as an object; none at all, or one of blanks, is an empty object. False: it has answered
// with the error.
bool parse_body(const HttpRequest& request, JsonDocument& document, Responder& responder);

// Reads the body's fields with `read`, which copies what it wants to keep; then answers with the
// first error that it has added, in the dialect's form. False: it has answered.
using Refuse = void (*)(Responder& responder, const ApiError& error);
bool read_body(const HttpRequest& request, Responder& responder,
               const std::function<void(FieldReader& in)>& read, Refuse refuse = reply_error);

// in_flight, commit, deadline_ms, weight_version, layers, experts, names.
void read_update_options(FieldReader& in, UpdateOptions& options);

void reply_json(Responder& responder, JsonWriter& body, int status = 200);
// {"message": ...}
void reply_message(Responder& responder, std::string_view message);
// Of a weight update: never 5xx, because clients send such requests again. A limit that is used up
// is 409, too.
ApiError update_error(const Error& error);
void reply_update_error(Responder& responder, const Error& error);

// A query parameter, or the field of that name in the body; empty: neither.
std::string query_or_field(const HttpRequest& request, FieldReader& in, std::string_view name);
bool is_true(std::string_view text);  // "true", "True", "1"

// The dialects, each in a file of its own name.
void add_vllm_control_routes(Router& router, const RolloutPtr& rollout);
void add_sglang_control_routes(Router& router, const RolloutPtr& rollout);

void write_report(JsonWriter& json, const ReloadReport& report);
void write_status(JsonWriter& json, const ReloadStatus& status);

}  // namespace holdfast::serve
