// The chat formats behind ChatFormat::open, and what they have in common. Immutable; any thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "holdfast/chat.h"
#include "tokenizer/harmony.h"
#include "tokenizer/stream_decoder.h"
#include "tokenizer/tokenizer.h"

namespace holdfast::api {

// What no format can render. Errors: as ChatFormat::render.
Status check_messages(std::span<const ChatMessage> messages, const ChatOptions& options);

// "2025-06-28".
bool is_date(std::string_view text);

std::unique_ptr<ChatFormat> harmony_format(tokenizer::Harmony harmony);
// Errors: kUnsupported naming the special tokens that are missing.
Result<std::unique_ptr<ChatFormat>> chatml_format(const tokenizer::Tokenizer& tokenizer);
// Errors: as chatml_format, for <s> and </s>.
Result<std::unique_ptr<ChatFormat>> mistral_format(const tokenizer::Tokenizer& tokenizer);
std::unique_ptr<ChatFormat> plain_format(const tokenizer::Tokenizer& tokenizer);

}  // namespace holdfast::api
