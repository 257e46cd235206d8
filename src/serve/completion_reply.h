// Replies of /v1/completions, whole and streamed, and what all dialects' replies share. Used on the
// engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serve/completion_request.h"
#include "serve/generation.h"
#include "serve/token_json.h"

namespace holdfast::serve {

// What a reply says of itself and of the server.
struct ReplyContext {
  const Tokenizer& tokenizer;  // outlives the engine thread
  std::string id = {};         // "cmpl-..."
  std::string model = {};
  std::int64_t created_s = 0;  // Unix time
  std::vector<std::int32_t> eos_token_ids = {};
  RoutingShape routing = {};
};

std::unique_ptr<ReplyFormat> completion_reply(const CompletionRequest& request,
                                              ReplyContext context);

// The parts of a choice that /v1/completions and /v1/chat/completions have alike.
// "finish_reason" (`reason`, or null while it goes on) and "stop_reason": the stop string or the
// stop token that ended it; null for the model's own end.
void write_finish(JsonWriter& out, const Choice& choice, const ReplyContext& context,
                  std::string_view reason);
void write_token_ids(JsonWriter& out, const Choice& choice, std::size_t first);
std::string_view logprobs_mode_name(LogprobsMode mode);
// "id", "object", "created", "model" of an object that has begun.
void write_head(JsonWriter& out, const ReplyContext& context, std::string_view object);
// The chunk without choices that ends a stream with include_usage.
std::string usage_chunk(const ReplyContext& context, std::string_view object, const Usage& usage);
std::int64_t unix_seconds();

}  // namespace holdfast::serve
