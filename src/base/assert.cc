#include "base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace holdfast::base {

void assertion_failed(const char* file, int line, const char* expression,
                      std::string_view message) {
  std::fprintf(stderr, "holdfast: %s:%d: assertion %s failed: %.*s\n", file, line, expression,
               static_cast<int>(message.size()), message.data());
  std::abort();
}

}  // namespace holdfast::base
