// The quantization_config of compressed-tensors (llm-compressor): one group of config_groups that
// targets all linear layers. Pure; any thread. Errors as parse_quantization.
#pragma once

#include "config/json_fields.h"
#include "config/kept_modules.h"
#include "config/model_config.h"

namespace holdfast::config {

// Adds to `kept` what the group left alone; `cache` becomes what is said of a quantised cache.
Result<ExpertFormat> parse_compressed_tensors(const JsonFields& fields, KeptModules& kept,
                                              CacheScales& cache);

// `place` where kv_cache_scheme says that keys and values have FP8 scales of their own. Errors:
// kUnsupported for other bits or types.
Result<CacheScales> parse_cache_scheme(const JsonFields& fields, CacheScales::Place place);

}  // namespace holdfast::config
