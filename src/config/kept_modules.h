// KeptModules: which modules a quantization_config left as they were. Pure; one thread.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
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
  // `pattern` is what the entry `stated` of `list` means.
  struct Entry {
    std::string list;
    std::string_view stated;
    std::string_view pattern;
  };
  Status add(const Entry& entry);

  // Errors: kUnsupported when one of the experts' matrices is among the kept, which this engine has
  // all quantised alike, naming list, entry and matrix; or when all matching so far took more than
  // kMaxMatchSteps, so that what it said is not to be used.
  Status check_experts(const ModelConfig& config) const;
  // The same for a list of what is quantised instead of what is kept: each of the experts' matrices
  // must be among it. Names the first entry that is of experts.
  Status check_lists_experts(const ModelConfig& config) const;
  bool empty() const { return kept_.empty(); }

  // The linear layers besides the experts that are not among the kept, ascending.
  std::vector<std::string> others(const ModelConfig& config) const;
  bool covers(std::string_view module) const;

 private:
  struct Kept {
    NamePattern pattern;
    std::string list;    // "config.json: quantization_config: ignore"
    std::string stated;  // as it stands there
  };
  Status check_work() const;
  std::vector<Kept> kept_;
  std::unordered_set<std::string> names_;  // of those that are names
  mutable MatchWork work_;
};

}  // namespace holdfast::config
