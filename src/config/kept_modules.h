// KeptModules: which modules a quantization_config left as they were. Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/json_fields.h"
#include "config/model_config.h"
#include "config/name_pattern.h"

namespace holdfast::config {

inline constexpr std::size_t kMaxKeptPatterns = 4096;

class KeptModules {
 public:
  // Adds the texts of the list at `key`, if it is there. Errors: kInvalidArgument for anything but
  // a list of texts, kUnsupported for a pattern that is not understood or too many.
  Status add_list(const JsonFields& fields, std::string_view key);
  Status add(const JsonFields& fields, std::string_view pattern);

  // This engine keeps all but the experts as published: attention, router, dense MLPs and lm_head
  // must be among the kept. `where` is the field that says so. Errors: kUnsupported naming the
  // first module that is not, and how many there are.
  Status check(const JsonFields& fields, std::string_view where, const ModelConfig& config) const;

 private:
  bool covers(std::string_view module) const;
  std::vector<NamePattern> patterns_;
};

}  // namespace holdfast::config
