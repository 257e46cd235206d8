#include "config/quantization_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <unordered_set>

#include "base/error.h"
#include "config/common_fields.h"
#include "config/compressed_tensors_config.h"
#include "config/expert_tensors.h"
#include "config/kept_modules.h"

// Fields as the publishers' tools write them: Hugging Face's fp8, AutoFP8, AutoGPTQ and GPTQModel,
// AutoAWQ, NVIDIA ModelOpt, AMD Quark, Intel AutoRound, openai/gpt-oss. compressed-tensors has a
// file of its own.
namespace holdfast::config {
namespace {

constexpr IntRange kBits{1, 64};
constexpr IntRange kGroupSize{-1, 1 << 20};
constexpr std::int64_t kFp8BlockSide = 128;

// What a format's parser needs: the quantization_config, the model that it belongs to, and where to
// put what was kept, or else what is listed as quantised, and what is quantised besides the
// experts: linear layers, and a cache.
struct Source {
  const JsonFields& fields;
  const ModelConfig& model;
  KeptModules& kept;
  KeptModules& listed;
  std::vector<std::string>& modules;
  CacheScales& cache;
};

// A field that must have one value; absent is fine unless `required`.
Status require_text(const JsonFields& fields, std::string_view key, std::string_view wanted,
                    bool required = false) {
  HF_ASSIGN(const auto text, fields.optional_text(key));
  if (!text && required) return fields.missing(key);
  if (!text || *text == wanted) return {};
  return unsupported(fields, key, *text, wanted);
}

Status require_int(const JsonFields& fields, std::string_view key, IntRange range,
                   std::int64_t wanted) {
  HF_ASSIGN(const std::int64_t value, fields.required_int(key, range));
  if (value == wanted) return {};
  return unsupported(fields, key, fmt::format("{}", value), fmt::format("{}", wanted));
}

// A field that this engine knows only absent, null or empty.
Status require_nothing(const JsonFields& fields, std::string_view key) {
  const auto value = fields.find(key);
  if (!value) return {};
  simdjson::dom::object object;
  simdjson::dom::array array;
  if (!value->get(object) && object.size() == 0) return {};
  if (!value->get(array) && array.size() == 0) return {};
  return unsupported(fields, key, brief_json(*value), "null");
}

Result<std::int64_t> positive_group(const JsonFields& fields) {
  HF_ASSIGN(const std::int64_t group, fields.required_int("group_size", kGroupSize));
  if (group >= 1) return group;
  return unsupported(fields, "group_size", fmt::format("{}", group), "groups of 1 and more");
}

Result<ExpertFormat> parse_mxfp4(const Source& source) {
  if (source.model.architecture != Architecture::kGptOss) {
    return unsupported(source.fields, "quant_method", "mxfp4", "it for gpt_oss");
  }
  HF_TRY(source.kept.add_list(source.fields, "modules_to_not_convert"));
  return ExpertFormat{.scheme = ExpertScheme::kMxfp4, .dialect = ExpertDialect::kGptOssHub};
}

// Whether weight_block_size is there; the one block that is known is 128 x 128.
Result<bool> has_blocks(const JsonFields& fields) {
  constexpr std::string_view kKey = "weight_block_size";
  HF_ASSIGN(const auto blocks, fields.optional_array(kKey));
  if (!blocks) return false;
  std::int64_t count = 0;
  for (const simdjson::dom::element element : *blocks) {
    std::int64_t side = 0;
    if (element.get(side) || side != kFp8BlockSide) count = -2;
    ++count;
  }
  if (count == 2) return true;
  return unsupported(fields, kKey, brief_json(*fields.find(kKey)), "[128, 128]");
}

Result<ExpertFormat> parse_fp8(const Source& source) {
  const JsonFields& fields = source.fields;
  HF_TRY(require_text(fields, "fmt", "e4m3"));
  HF_ASSIGN(const auto scheme, fields.optional_text("activation_scheme"));
  if (!scheme) return fields.missing("activation_scheme");
  if (*scheme != "dynamic" && *scheme != "static") {
    return unsupported(fields, "activation_scheme", *scheme, "dynamic, static");
  }
  KeptModules& kept = source.kept;
  HF_TRY(kept.add_list(fields, "modules_to_not_convert"));
  HF_TRY(kept.add_list(fields, "ignored_layers"));
  source.modules = kept.others(source.model);
  HF_ASSIGN(const bool blocks, has_blocks(fields));
  if (!blocks) {
    return ExpertFormat{.scheme = ExpertScheme::kFp8Tensor,
                        .activations = *scheme == "static" ? ActivationScheme::kFp8Static
                                                           : ActivationScheme::kFp8Token,
                        .dialect = ExpertDialect::kFp8};
  }
  if (*scheme == "static") {
    return unsupported(fields, "activation_scheme with weight_block_size", *scheme, "dynamic");
  }
  return ExpertFormat{.scheme = ExpertScheme::kFp8Block,
                      .activations = ActivationScheme::kFp8TokenGroup,
                      .dialect = ExpertDialect::kFp8Block};
}

// ModelOpt states the cache in either of two ways.
Status find_modelopt_cache(const Source& source) {
  constexpr auto kPlace = CacheScales::Place::kProjections;
  HF_ASSIGN(source.cache, parse_cache_scheme(source.fields, kPlace));
  HF_ASSIGN(const auto algorithm, source.fields.optional_text("kv_cache_quant_algo"));
  if (!algorithm) return {};
  if (*algorithm != "FP8") {
    return unsupported(source.fields, "kv_cache_quant_algo", *algorithm, "FP8 and null");
  }
  source.cache = {.place = kPlace};
  return {};
}

Result<ExpertFormat> parse_modelopt(const Source& source) {
  const JsonFields& fields = source.fields;
  HF_ASSIGN(const auto algorithm, fields.optional_text("quant_algo"));
  if (!algorithm) return fields.missing("quant_algo");
  HF_TRY(find_modelopt_cache(source));
  KeptModules& kept = source.kept;
  HF_TRY(kept.add_list(fields, "ignore"));
  HF_TRY(kept.add_list(fields, "exclude_modules"));
  source.modules = kept.others(source.model);
  if (*algorithm == "NVFP4") {
    return ExpertFormat{.scheme = ExpertScheme::kNvfp4,
                        .activations = ActivationScheme::kNvfp4,
                        .dialect = ExpertDialect::kModelOptNvfp4};
  }
  if (*algorithm == "FP8") {
    return ExpertFormat{.scheme = ExpertScheme::kFp8Tensor,
                        .activations = ActivationScheme::kFp8Static,
                        .dialect = ExpertDialect::kFp8};
  }
  if (*algorithm == "MXFP8") {
    return ExpertFormat{.scheme = ExpertScheme::kMxfp8,
                        .activations = ActivationScheme::kMxfp8,
                        .dialect = ExpertDialect::kFp8};
  }
  return unsupported(fields, "quant_algo", *algorithm, "NVFP4, FP8, MXFP8");
}

// A fp8 scale for the whole that the checkpoint has, or nothing.
Result<ActivationScheme> quark_activations(const JsonFields& global) {
  HF_ASSIGN(const auto inputs, global.optional_object("input_tensors"));
  if (!inputs) return ActivationScheme::kNone;
  HF_TRY(require_text(*inputs, "dtype", "fp8_e4m3", true));
  HF_TRY(require_text(*inputs, "qscheme", "per_tensor", true));
  HF_TRY(require_switch(*inputs, "is_dynamic", false, false));
  return ActivationScheme::kFp8Static;
}

Result<ExpertFormat> quark_weights(const JsonFields& weight) {
  HF_ASSIGN(const auto dtype, weight.optional_text("dtype"));
  if (!dtype) return weight.missing("dtype");
  if (*dtype == "fp8_e4m3") {
    HF_TRY(require_text(weight, "qscheme", "per_tensor", true));
    return ExpertFormat{.scheme = ExpertScheme::kFp8Tensor, .dialect = ExpertDialect::kFp8};
  }
  if (*dtype != "fp4") return unsupported(weight, "dtype", *dtype, "fp8_e4m3, fp4");
  HF_TRY(require_text(weight, "qscheme", "per_group", true));
  HF_TRY(require_int(weight, "group_size", kGroupSize, 32));
  HF_TRY(require_text(weight, "scale_format", "e8m0", true));
  return ExpertFormat{.scheme = ExpertScheme::kMxfp4, .dialect = ExpertDialect::kMxfp4PerExpert};
}

Result<ExpertFormat> parse_quark(const Source& source) {
  const JsonFields& fields = source.fields;
  for (const char* key : {"layer_quant_config", "layer_type_quant_config", "kv_cache_quant_config",
                          "softmax_quant_spec"}) {
    HF_TRY(require_nothing(fields, key));
  }
  HF_ASSIGN(const auto exported, fields.optional_object("export"));
  if (exported) HF_TRY(require_text(*exported, "weight_format", "real_quantized"));
  HF_ASSIGN(const auto global, fields.optional_object("global_quant_config"));
  if (!global) return fields.missing("global_quant_config");
  HF_TRY(require_nothing(*global, "output_tensors"));
  HF_TRY(require_nothing(*global, "bias"));
  HF_ASSIGN(const auto weight, global->optional_object("weight"));
  if (!weight) return global->missing("weight");
  HF_ASSIGN(ExpertFormat format, quark_weights(*weight));
  HF_ASSIGN(format.activations, quark_activations(*global));
  KeptModules& kept = source.kept;
  HF_TRY(kept.add_list(fields, "exclude"));
  source.modules = kept.others(source.model);
  return format;
}

// extra_config says of single modules that they were kept: their bits are 16 or more. A key with a
// sign of regular expressions in it is one, found anywhere in a name.
Status add_auto_round_kept(const JsonFields& fields, KeptModules& kept) {
  HF_ASSIGN(const auto extra, fields.optional_object("extra_config"));
  if (!extra) return {};
  for (const auto field : extra->object()) {
    HF_ASSIGN(const auto module, extra->optional_object(field.key));
    if (!module) return extra->missing(field.key);
    HF_ASSIGN(const std::int64_t bits, module->required_int("bits", kBits));
    if (bits < 16) {
      return unsupported(*module, "bits", fmt::format("{}", bits), "16 and more in extra_config");
    }
    if (field.key.find_first_of("*+?^$()[]{}|\\") == field.key.npos) {
      HF_TRY(kept.add(*extra, field.key));
      continue;
    }
    const std::string pattern =
        fmt::format("re:{}{}", field.key.starts_with('^') ? "" : ".*", field.key);
    HF_TRY(kept.add({.list = extra->name(), .stated = field.key, .pattern = pattern}));
  }
  return {};
}

// Names in a text, set apart by commas, in a list, or in a list of lists.
Status add_block_names(const JsonFields& fields, std::string_view key,
                       simdjson::dom::element value, std::unordered_set<std::string>& names) {
  simdjson::dom::array list;
  if (!value.get(list)) {
    for (const simdjson::dom::element each : list) {
      HF_TRY(add_block_names(fields, key, each, names));
    }
    return {};
  }
  std::string_view text;
  if (value.get(text)) return fields.wrong(key, value, "names of blocks");
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    std::string name(text.substr(0, end));
    std::erase(name, ' ');
    if (name.ends_with('.')) name.pop_back();
    if (!name.empty()) names.insert(std::move(name));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return {};
}

// The blocks whose layers were quantised, where the file names them: the experts' must be among it.
Status keep_outside_blocks(const Source& source, std::string_view key) {
  const auto value = source.fields.find(key);
  if (!value) return {};
  std::unordered_set<std::string> blocks;
  HF_TRY(add_block_names(source.fields, key, *value, blocks));
  if (blocks.empty()) return {};
  // No block is what the name begins with.
  const auto is_outside = [&blocks](const std::string& name) {
    for (std::size_t end = 0; end < name.size();) {
      end = std::min(name.find('.', end + 1), name.size());
      if (blocks.contains(name.substr(0, end))) return false;
    }
    return true;
  };
  for (std::int64_t layer = 0; layer < source.model.layer_count; ++layer) {
    const std::string experts = experts_prefix(source.model, layer);
    if (source.model.is_dense(layer) || !is_outside(experts)) continue;
    return unsupported(source.fields, key, brief_json(*value),
                       fmt::format("names with all experts, and {} is in none", experts));
  }
  std::erase_if(source.modules, is_outside);
  return {};
}

Result<ExpertFormat> parse_auto_round(const Source& source) {
  const JsonFields& fields = source.fields;
  HF_TRY(require_text(fields, "data_type", "mx_fp", true));
  HF_TRY(require_int(fields, "bits", kBits, 4));
  HF_TRY(require_int(fields, "group_size", kGroupSize, 32));
  HF_TRY(require_text(fields, "packing_format", "auto_round:llm_compressor"));
  HF_ASSIGN(const auto activation_bits, fields.optional_int("act_bits", kBits));
  if (activation_bits.value_or(16) < 16) {
    return unsupported(fields, "act_bits", fmt::format("{}", *activation_bits), "16 and more");
  }
  KeptModules& kept = source.kept;
  HF_TRY(add_auto_round_kept(fields, kept));
  source.modules = kept.others(source.model);
  HF_TRY(keep_outside_blocks(source, "block_name_to_quantize"));
  HF_TRY(keep_outside_blocks(source, "to_quant_block_names"));
  return ExpertFormat{.scheme = ExpertScheme::kMxfp4,
                      .dialect = ExpertDialect::kMxfp4PerExpert,
                      .packed_name = "weight_packed"};
}

// "-:" and a regular expression: modules that were left alone. Of GPTQModel's other rules, which
// give single modules other bits and groups, this engine knows none.
Status add_gptq_kept(const JsonFields& fields, KeptModules& kept) {
  HF_ASSIGN(const auto rules, fields.optional_object("dynamic"));
  if (!rules) return {};
  for (const auto rule : rules->object()) {
    if (!rule.key.starts_with("-:")) {
      return unsupported(fields, "dynamic", rule.key, "\"-:\" and the modules that were kept");
    }
    const std::string pattern = fmt::format("re:{}", rule.key.substr(2));
    HF_TRY(kept.add({.list = rules->name(), .stated = rule.key, .pattern = pattern}));
  }
  return {};
}

// What modules_in_block_to_quantize lists, by parts of names; the experts must be among it.
Status list_gptq_modules(const JsonFields& fields, const simdjson::dom::array& groups,
                         KeptModules& listed) {
  constexpr std::string_view kKey = "modules_in_block_to_quantize";
  bool experts = false;
  for (const simdjson::dom::element group : groups) {
    simdjson::dom::array names;
    if (group.get(names)) return fields.wrong(kKey, *fields.find(kKey), "lists of names");
    for (const simdjson::dom::element element : names) {
      std::string_view name;
      if (element.get(name)) return fields.wrong(kKey, *fields.find(kKey), "lists of names");
      experts = experts || name.find("experts") != name.npos;
      HF_TRY(listed.add({.list = fmt::format("{}: {}", fields.name(), kKey),
                         .stated = name,
                         .pattern = name}));
    }
  }
  if (experts) return {};
  return unsupported(fields, kKey, brief_json(*fields.find(kKey)), "lists with the experts");
}

// GPTQ quantises every linear layer of a block but its router, unless the file lists what it
// quantised; lm_head where it says so.
Status find_gptq_modules(const Source& source) {
  const JsonFields& fields = source.fields;
  HF_ASSIGN(const bool head, fields.boolean("lm_head", false));
  KeptModules& kept = source.kept;
  HF_TRY(add_gptq_kept(fields, kept));
  for (const char* router : {"mlp.gate", "mlp.router", "block_sparse_moe.gate"}) {
    HF_TRY(kept.add(fields, router));
  }
  if (!head) HF_TRY(kept.add(fields, "lm_head"));
  source.modules = kept.others(source.model);
  HF_ASSIGN(const auto groups, fields.optional_array("modules_in_block_to_quantize"));
  if (!groups) return {};
  HF_TRY(list_gptq_modules(fields, *groups, source.listed));
  std::erase_if(source.modules, [&](const std::string& name) {
    return name != "lm_head" && !source.listed.covers(name);
  });
  return {};
}

Result<ExpertFormat> parse_gptq(const Source& source) {
  const JsonFields& fields = source.fields;
  ExpertFormat format{.scheme = ExpertScheme::kInt4, .dialect = ExpertDialect::kGptq,
                      .scale_dtype = tensor::DType::kF16};
  HF_TRY(require_int(fields, "bits", kBits, 4));
  HF_ASSIGN(format.group_size, positive_group(fields));
  HF_ASSIGN(format.act_order, fields.boolean("desc_act", false));
  HF_ASSIGN(const bool symmetric, fields.boolean("sym", true));
  format.zero_points = !symmetric;
  HF_ASSIGN(const auto version, fields.optional_text("checkpoint_format"));
  if (version && *version != "gptq" && *version != "gptq_v2") {
    return unsupported(fields, "checkpoint_format", *version, "gptq, gptq_v2");
  }
  format.gptq_v1 = version.value_or("gptq") == "gptq";
  HF_TRY(find_gptq_modules(source));
  return format;
}

Result<ExpertFormat> parse_awq(const Source& source) {
  const JsonFields& fields = source.fields;
  ExpertFormat format{.scheme = ExpertScheme::kInt4, .dialect = ExpertDialect::kAwq,
                      .zero_points = true, .scale_dtype = tensor::DType::kF16};
  HF_TRY(require_int(fields, "bits", kBits, 4));
  HF_ASSIGN(format.group_size, positive_group(fields));
  HF_TRY(require_switch(fields, "zero_point", true, true));
  HF_ASSIGN(const auto version, fields.optional_text("version"));
  if (version && *version != "gemm" && *version != "GEMM") {
    return unsupported(fields, "version", *version, "gemm");
  }
  KeptModules& kept = source.kept;
  HF_TRY(kept.add_list(fields, "modules_to_not_convert"));
  HF_TRY(kept.add(fields, "lm_head"));  // which AWQ never quantises
  source.modules = kept.others(source.model);
  return format;
}

Result<ExpertFormat> parse_compressed(const Source& source) {
  KeptModules& kept = source.kept;
  HF_ASSIGN(const ExpertFormat format, parse_compressed_tensors(source.fields, kept, source.cache));
  source.modules = kept.others(source.model);
  return format;
}

struct Method {
  std::string_view name;
  Result<ExpertFormat> (*parse)(const Source& source);
};
constexpr std::array<Method, 9> kMethods = {{
    {"mxfp4", &parse_mxfp4},
    {"fp8", &parse_fp8},
    {"modelopt", &parse_modelopt},
    {"compressed-tensors", &parse_compressed},
    {"quark", &parse_quark},
    {"auto-round", &parse_auto_round},
    {"intel/auto-round", &parse_auto_round},
    {"gptq", &parse_gptq},
    {"awq", &parse_awq},
}};

}  // namespace

Status parse_quantization(const JsonFields& fields, ModelConfig& config) {
  HF_ASSIGN(const auto quantization, fields.optional_object("quantization_config"));
  config.quantized_modules.clear();
  config.cache_scales = {};
  if (!quantization) {
    config.expert_format = {.dialect = config.architecture == Architecture::kGptOss
                                           ? ExpertDialect::kGptOssHub
                                           : ExpertDialect::kHub};
    return {};
  }
  HF_ASSIGN(const auto name, quantization->optional_text("quant_method"));
  if (!name) return quantization->missing("quant_method");
  std::string known;
  for (const Method& method : kMethods) {
    if (*name == method.name) {
      KeptModules kept, listed;
      std::vector<std::string> modules;
      CacheScales cache;
      HF_ASSIGN(config.expert_format, method.parse({*quantization, config, kept, listed, modules,
                                                     cache}));
      HF_TRY(kept.check_experts(config));
      if (!listed.empty()) HF_TRY(listed.check_lists_experts(config));
      config.quantized_modules = std::move(modules);
      config.cache_scales = cache;
      return {};
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", method.name);
  }
  return unsupported(*quantization, "quant_method", *name, known);
}

}  // namespace holdfast::config
