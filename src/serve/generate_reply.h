// Replies of /inference/v1/generate (vLLM) and /generate (SGLang), whole and streamed. Used on the
// engine thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serve/completion_reply.h"
#include "serve/generate_request.h"

namespace holdfast::serve {

std::unique_ptr<ReplyFormat> tokens_reply(const TokensRequest& request, ReplyContext context);
// `names`: meta_info.id of each prompt.
std::unique_ptr<ReplyFormat> sglang_reply(const SglangRequest& request,
                                          std::vector<std::string> names, ReplyContext context);

}  // namespace holdfast::serve
