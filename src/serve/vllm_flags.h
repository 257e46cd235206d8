// Flags that vLLM's users write by habit and that are no options here: taken where they ask for
// what is so anyway, else refused with what to do instead. Values; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "holdfast/result.h"

namespace holdfast::serve {

struct VllmFlag {
  std::string_view name;  // "--tensor-parallel-size"
  bool takes_value = true;
  std::vector<std::string_view> harmless;  // values that ask for nothing else than there is
  bool always_so = false;                  // of a switch: as harmless
  std::string_view instead;                // why not, and what to do
};

// All of them; made once.
const std::vector<VllmFlag>& vllm_flags();

// Errors: kUnsupported naming flag and value, and what to do instead.
Status check_vllm_flag(const VllmFlag& flag, const std::string& value);

// vLLM's --weight-transfer-config: {"backend": "disk" or "http", ...}. Errors: kInvalidArgument
// for what is not such an object, kUnsupported for another backend.
Status check_weight_transfer_config(const std::string& json);

}  // namespace holdfast::serve
