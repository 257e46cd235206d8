// The tools of a conversation as harmony shows them to a model: each a type whose argument is its
// JSON schema in the manner of TypeScript. Character by character what OpenAI's own renderer
// writes, oddities included, since models have learned them. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "holdfast/chat.h"
#include "holdfast/result.h"

namespace holdfast::api {

inline constexpr std::size_t kMaxTools = 512;
inline constexpr std::size_t kMaxToolNameBytes = 64;
// Of all descriptions and schemas.
inline constexpr std::size_t kMaxToolBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxSchemaDepth = 32;

// Whether a model can be told of, and can call, a tool of this name: letters, digits, '_', '-' and
// '.'.
bool is_tool_name(std::string_view name);

// "# Tools" and all that follows. Errors: kInvalidArgument naming tool and field (a name that
// is_tool_name refuses or that is there twice, a schema that is not a JSON object, text that is not
// UTF-8); kResourceExhausted over the limits above.
Result<std::string> tools_section(std::span<const ChatTool> tools);

}  // namespace holdfast::api
