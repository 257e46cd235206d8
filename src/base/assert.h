// HF_ASSERT: programmer errors. On in every build; never reachable from a file, request or flag.
#pragma once

#include <string_view>

namespace holdfast::base {
[[noreturn]] void assertion_failed(const char* file, int line, const char* expression,
                                   std::string_view message);
}

#define HF_ASSERT(condition, message)                                                     \
  do {                                                                                    \
    if (!(condition)) [[unlikely]]                                                        \
      ::holdfast::base::assertion_failed(__FILE__, __LINE__, #condition, (message));      \
  } while (false)
