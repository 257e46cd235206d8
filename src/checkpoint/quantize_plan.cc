#include "checkpoint/quantize_plan.h"

#include <algorithm>

#include "base/assert.h"
#include "base/error.h"
#include "checkpoint/account.h"

namespace holdfast::checkpoint {
namespace {

using config::ExpertScheme;
using config::ExpertTensor;
using config::TensorRole;
using tensor::DType;

bool is_real(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

std::vector<std::int64_t> layers_with_experts(const config::ModelConfig& config) {
  std::vector<std::int64_t> layers;
  for (std::int64_t layer = 0; layer < config.layer_count; ++layer) {
    if (!config.is_dense(layer)) layers.push_back(layer);
  }
  return layers;
}

// Names of all tensors of these roles. Expert tensors that hold no values of matrices are copied.
std::unordered_set<std::string> matrix_names(const config::ModelConfig& config,
                                             const std::vector<ExpertTensor>& tensors,
                                             const std::vector<std::int64_t>& layers) {
  std::unordered_set<std::string> names;
  for (const std::int64_t layer : layers) {
    for (const ExpertTensor& tensor : tensors) {
      if (tensor.role == TensorRole::kBias) continue;
      const std::int64_t experts = tensor.per_expert ? config.expert_count : 1;
      for (std::int64_t expert = 0; expert < experts; ++expert) {
        names.insert(expert_part(config, tensor, layer, expert).tensor);
      }
    }
  }
  return names;
}

// What is copied keeps its dtype, whichever of the real ones that is; what a tied head may lack is
// dropped where the source lacks it.
std::vector<ExpectedTensor> with_found_dtypes(std::vector<ExpectedTensor> tensors,
                                              const Checkpoint& source,
                                              const std::unordered_set<std::string>& matrices) {
  std::erase_if(tensors, [&](const ExpectedTensor& tensor) {
    return tensor.may_lack && source.find(tensor.name) == nullptr;
  });
  for (ExpectedTensor& tensor : tensors) {
    const LocatedTensor* found = source.find(tensor.name);
    if (found == nullptr || matrices.contains(tensor.name)) continue;
    if (is_real(tensor.dtype) && is_real(found->entry->dtype)) tensor.dtype = found->entry->dtype;
  }
  return tensors;
}

// The root object's closing brace is the text's last one.
Result<std::string> with_quantization(const std::string& json, const config::ModelConfig& target) {
  const std::size_t end = json.rfind('}');
  HF_ASSERT(end != json.npos, "the source's config was parsed");
  const std::size_t last = json.find_last_not_of(" \t\r\n", end - 1);
  const std::string text = fmt::format("{},\n \"quantization_config\": {}\n}}\n",
                                       json.substr(0, last + 1), quantization_config_json(target));
  const auto parsed = config::parse_model_config(text);
  if (!parsed.ok()) return parsed.error().with_context("the new config");
  const config::ExpertFormat& have = parsed->expert_format;
  const config::ExpertFormat& want = target.expert_format;
  if (have.scheme == want.scheme && have.dialect == want.dialect &&
      have.group_size == want.group_size && have.zero_points == want.zero_points) {
    return text;
  }
  return make_error(ErrorCode::kUnsupported,
                    "config.json: with a quantization_config for {} it is read as {}; remove the "
                    "field quantization_config that it has",
                    to_text(want), to_text(have));
}

// The largest matrix: its values, its tensors, and what quantising it holds.
void measure(QuantizePlan& plan) {
  for (const ExpertTensor& tensor : plan.source_tensors) {
    if (tensor.role != TensorRole::kWeight) continue;
    const auto view = config::matrix_values(tensor, nullptr);
    const std::uint64_t values = expert_part(plan.source, tensor, plan.layers.front(), 0).bytes;
    std::uint64_t bytes = values + quantize_scratch_bytes(plan.target.expert_format, view.size);
    for (const ExpertTensor& made : plan.target_tensors) {
      if (made.projection != tensor.projection || made.role == TensorRole::kBias) continue;
      bytes += expert_part(plan.target, made, plan.layers.front(), 0).bytes;
    }
    plan.matrix_bytes = std::max(plan.matrix_bytes, bytes);
    plan.expert_bytes += values * static_cast<std::uint64_t>(plan.source.expert_count) *
                         plan.layers.size();
  }
}

}  // namespace

ExpertPart expert_part(const config::ModelConfig& config, const ExpertTensor& tensor,
                       std::int64_t layer, std::int64_t expert) {
  const auto bytes = tensor::byte_size(tensor.dtype, tensor.shape);
  HF_ASSERT(bytes.ok(), "expert_tensors gives shapes that can be counted");
  const std::string prefix = config::experts_prefix(config, layer) + ".";
  if (tensor.per_expert) return {prefix + tensor.part_name(expert), 0, *bytes};
  return {prefix + tensor.name, *bytes * static_cast<std::uint64_t>(expert), *bytes};
}

Result<QuantizePlan> plan_quantize(const Checkpoint& source, const std::string& source_json,
                                   const config::QuantizeTarget& target) {
  QuantizePlan plan;
  plan.source = source.config();
  plan.target = plan.source;
  plan.layers = layers_with_experts(plan.source);
  HF_ASSERT(!plan.layers.empty(), "a config has a layer with experts");
  auto format = config::quantized_format(plan.source, target);
  if (!format.ok()) return format.error().with_context(source.directory());
  plan.target.expert_format = *std::move(format);
  HF_ASSIGN(plan.source_tensors, config::expert_tensors(plan.source));
  HF_ASSIGN(plan.target_tensors, config::expert_tensors(plan.target));
  const auto replaced = matrix_names(plan.source, plan.source_tensors, plan.layers);
  plan.made = matrix_names(plan.target, plan.target_tensors, plan.layers);

  HF_ASSIGN(const auto before, choose_dialect(plan.source));
  const Account account = take_account(
      with_found_dtypes(before->expected(plan.source), source, replaced), source.tensors());
  if (!account.complete()) return describe_defects(account, source.directory());
  HF_ASSIGN(const auto after, choose_dialect(plan.target));
  plan.tensors = with_found_dtypes(after->expected(plan.target), source, plan.made);
  auto config_json = with_quantization(source_json, plan.target);
  if (!config_json.ok()) return config_json.error().with_context(source.directory());
  plan.config_json = *std::move(config_json);
  measure(plan);
  return plan;
}

}  // namespace holdfast::checkpoint
