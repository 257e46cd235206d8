#include "config/compressed_tensors_config.h"

#include "base/error.h"
#include "config/common_fields.h"

namespace holdfast::config {
namespace {

constexpr IntRange kBits{1, 64};
constexpr IntRange kGroupSize{-1, 1 << 20};
constexpr std::int64_t kTokenGroup = 128;

// The arguments of weights or of input_activations, in one text for messages: "float 8 channel".
struct Arguments {
  const JsonFields& fields;
  std::string_view type, strategy;
  std::int64_t bits = 0;
  std::int64_t group_size = 0;  // 0: none
  bool dynamic = false;

  std::string text() const { return fmt::format("{} {} {}", type, bits, strategy); }
  Error refuse(std::string_view known) const {
    return make_error(ErrorCode::kUnsupported, "{}: type, num_bits and strategy are {}{}{}; this "
                      "engine knows {}",
                      fields.name(), text(),
                      group_size != 0 ? fmt::format(" of {}", group_size) : std::string(),
                      dynamic ? ", dynamic" : "", known);
  }
};

Result<Arguments> read_arguments(const JsonFields& fields) {
  Arguments arguments{.fields = fields, .type = {}, .strategy = {}};
  HF_ASSIGN(arguments.bits, fields.required_int("num_bits", kBits));
  HF_ASSIGN(const auto type, fields.optional_text("type"));
  if (!type) return fields.missing("type");
  HF_ASSIGN(const auto strategy, fields.optional_text("strategy"));
  if (!strategy) return fields.missing("strategy");
  arguments.type = *type;
  arguments.strategy = *strategy;
  HF_ASSIGN(const auto group, fields.optional_int("group_size", kGroupSize));
  arguments.group_size = group.value_or(0);
  // true, false, or "local" (the block's scales are dynamic under a scale of the checkpoint).
  const auto dynamic = fields.find("dynamic");
  std::string_view local;
  if (dynamic && !dynamic->get(local)) {
    if (local != "local") return unsupported(fields, "dynamic", local, "true, false, local");
    return arguments;
  }
  HF_ASSIGN(arguments.dynamic, fields.boolean("dynamic", false));
  return arguments;
}

Status check_fp8_block(const JsonFields& fields) {
  const auto block = fields.find("block_structure");
  if (!block) return fields.missing("block_structure");
  const std::string text = brief_json(*block);
  if (text == "[128,128]" || text == "\"128x128\"") return {};
  return unsupported(fields, "block_structure", text, "[128,128]");
}

Result<ExpertFormat> fp8_format(const Arguments& weights) {
  ExpertFormat format{.dialect = ExpertDialect::kFp8, .scale_dtype = tensor::DType::kBF16,
                      .scalar_dtype = tensor::DType::kBF16, .scalars_have_axis = true};
  if (weights.strategy == "tensor") {
    format.scheme = ExpertScheme::kFp8Tensor;
  } else if (weights.strategy == "channel") {
    format.scheme = ExpertScheme::kFp8Channel;
  } else if (weights.strategy == "block") {
    HF_TRY(check_fp8_block(weights.fields));
    format.scheme = ExpertScheme::kFp8Block;
  } else if (weights.strategy == "group" && weights.group_size == 32) {
    format.scheme = ExpertScheme::kMxfp8;
  } else {
    return weights.refuse("float 8 by tensor, channel, block, and group of 32");
  }
  return format;
}

Result<ExpertFormat> fp4_format(const Arguments& weights) {
  if (weights.strategy == "tensor_group" && weights.group_size == 16) {
    return ExpertFormat{.scheme = ExpertScheme::kNvfp4,
                        .dialect = ExpertDialect::kCompressedNvfp4,
                        .scalars_have_axis = true};
  }
  if (weights.strategy == "group" && weights.group_size == 32) {
    return ExpertFormat{.scheme = ExpertScheme::kMxfp4,
                        .dialect = ExpertDialect::kMxfp4PerExpert,
                        .packed_name = "weight_packed"};
  }
  return weights.refuse("float 4 by tensor_group of 16 (NVFP4) and by group of 32 (MXFP4)");
}

Result<ExpertFormat> int4_format(const Arguments& weights) {
  if (weights.strategy != "group" || weights.group_size < 1) {
    return weights.refuse("int 4 by group");
  }
  ExpertFormat format{.scheme = ExpertScheme::kInt4, .dialect = ExpertDialect::kCompressedInt4,
                      .group_size = weights.group_size, .scale_dtype = tensor::DType::kBF16};
  HF_ASSIGN(const bool symmetric, weights.fields.boolean("symmetric", true));
  format.zero_points = !symmetric;
  HF_ASSIGN(const auto order, weights.fields.optional_text("actorder"));
  if (order && *order != "group" && *order != "weight" && *order != "static") {
    return unsupported(weights.fields, "actorder", *order, "group, weight, static");
  }
  // Only "group" leaves the inputs' groups out of order.
  format.act_order = order && *order == "group";
  return format;
}

Result<ExpertFormat> weights_format(const Arguments& weights) {
  if (weights.dynamic) return weights.refuse("weights with scales in the checkpoint");
  if (weights.type == "float" && weights.bits == 8) return fp8_format(weights);
  if (weights.type == "float" && weights.bits == 4) return fp4_format(weights);
  if (weights.type == "int" && weights.bits == 4) return int4_format(weights);
  return weights.refuse("float 8, float 4, int 4");
}

Result<ActivationScheme> activation_scheme(const std::optional<JsonFields>& fields,
                                           ExpertScheme scheme) {
  if (!fields) return ActivationScheme::kNone;
  HF_ASSIGN(const Arguments inputs, read_arguments(*fields));
  const bool fp8 = inputs.type == "float" && inputs.bits == 8;
  if (scheme == ExpertScheme::kNvfp4) {
    const bool fp4 = inputs.type == "float" && inputs.bits == 4 && !inputs.dynamic;
    if (fp4 && inputs.strategy == "tensor_group" && inputs.group_size == 16) {
      return ActivationScheme::kNvfp4;
    }
    return inputs.refuse("float 4 tensor_group of 16, dynamic local, with NVFP4 weights");
  }
  if (fp8 && !inputs.dynamic && inputs.strategy == "tensor") return ActivationScheme::kFp8Static;
  if (fp8 && inputs.dynamic && inputs.strategy == "token") return ActivationScheme::kFp8Token;
  if (fp8 && inputs.dynamic && inputs.strategy == "group") {
    if (inputs.group_size == kTokenGroup) return ActivationScheme::kFp8TokenGroup;
    if (inputs.group_size == 32) return ActivationScheme::kMxfp8;
  }
  return inputs.refuse("float 8: tensor, or dynamic by token or by group of 128 or 32");
}

// Fields that say the files hold more, or other things, than quantised weights.
Status check_the_rest(const JsonFields& fields) {
  HF_ASSIGN(const auto status, fields.optional_text("quantization_status"));
  if (status && *status != "compressed") {
    return unsupported(fields, "quantization_status", *status, "compressed");
  }
  for (const char* key : {"sparsity_config", "transform_config"}) {
    HF_ASSIGN(const auto more, fields.optional_object(key));
    if (!more || more->object().size() == 0) continue;
    HF_ASSIGN(const auto format, more->optional_text("format"));
    if (format && *format == "dense") continue;
    return unsupported(fields, key, brief_json(*fields.find(key)), "{}");
  }
  return {};
}

// The one group, which must target all linear layers.
Result<JsonFields> the_group(const JsonFields& fields) {
  HF_ASSIGN(const auto groups, fields.optional_object("config_groups"));
  if (!groups) return fields.missing("config_groups");
  if (groups->object().size() != 1) {
    return unsupported(fields, "config_groups", fmt::format("{} groups", groups->object().size()),
                       "one group");
  }
  const std::string_view name = (*groups->object().begin()).key;
  HF_ASSIGN(const auto group, groups->optional_object(name));
  if (!group) return groups->missing(name);
  const auto targets = group->find("targets");
  if (!targets) return group->missing("targets");
  if (brief_json(*targets) != "[\"Linear\"]") {
    return unsupported(*group, "targets", brief_json(*targets), "[\"Linear\"]");
  }
  return *group;
}

}  // namespace

Result<CacheScales> parse_cache_scheme(const JsonFields& fields, CacheScales::Place place) {
  HF_ASSIGN(const auto scheme, fields.optional_object("kv_cache_scheme"));
  if (!scheme || scheme->object().size() == 0) return CacheScales{};
  HF_ASSIGN(const std::int64_t bits, scheme->required_int("num_bits", kBits));
  HF_ASSIGN(const auto type, scheme->optional_text("type"));
  if (bits == 8 && type == "float") return CacheScales{.place = place};
  return unsupported(fields, "kv_cache_scheme", fmt::format("{} {}", type.value_or("null"), bits),
                     "float 8, whose scales it does not need, and null");
}

Result<ExpertFormat> parse_compressed_tensors(const JsonFields& fields, KeptModules& kept,
                                              CacheScales& cache) {
  HF_TRY(check_the_rest(fields));
  HF_ASSIGN(const JsonFields group, the_group(fields));
  if (const auto outputs = group.find("output_activations")) {
    return unsupported(group, "output_activations", brief_json(*outputs), "null");
  }
  HF_ASSIGN(const auto weights, group.optional_object("weights"));
  if (!weights) return group.missing("weights");
  HF_ASSIGN(const Arguments arguments, read_arguments(*weights));
  HF_ASSIGN(ExpertFormat format, weights_format(arguments));
  HF_ASSIGN(const auto inputs, group.optional_object("input_activations"));
  HF_ASSIGN(format.activations, activation_scheme(inputs, format.scheme));
  HF_TRY(kept.add_list(fields, "ignore"));
  HF_ASSIGN(cache, parse_cache_scheme(fields, CacheScales::Place::kAttention));
  return format;
}

}  // namespace holdfast::config
