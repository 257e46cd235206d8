// make_error: an Error whose message is formatted with fmt. Name the object and both values:
//   make_error(ErrorCode::kCorrupt, "shard {}: tensor {} ends at byte {}, file has {}", ...)
#pragma once

#include <fmt/format.h>

#include <utility>

#include "holdfast/result.h"

namespace holdfast::base {

template <typename... Args>
Error make_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace holdfast::base

namespace holdfast {
using base::make_error;
}
