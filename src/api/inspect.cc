#include "holdfast/inspect.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "api/tokenizer_impl.h"
#include "base/digest.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "config/linear_modules.h"
#include "experts/capabilities.h"
#include "experts/experts.h"
#include "holdfast/tokenizer.h"

namespace holdfast {
namespace {

constexpr std::size_t kDigestChunkBytes = 4u << 20;

std::string base_name(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

std::vector<std::pair<std::string, std::string>> describe_config(const config::ModelConfig& c) {
  std::int64_t sliding_count = 0;
  for (const config::AttentionKind kind : c.layer_kinds) {
    sliding_count += kind == config::AttentionKind::kSliding ? 1 : 0;
  }
  const config::RopeConfig& rope = c.rope;
  std::vector<std::pair<std::string, std::string>> rows = {
      {"layers", fmt::format("{}", c.layer_count)},
      {"hidden size", fmt::format("{}", c.hidden_size)},
      {"intermediate size", fmt::format("{}", c.intermediate_size)},
      {"experts", fmt::format("{}, {} per token", c.expert_count, c.experts_per_token)},
      {"attention", fmt::format("{} query heads, {} key/value heads of {}", c.query_head_count,
                                c.kv_head_count, c.head_dim)},
      {"sliding layers", fmt::format("{} of {}, window {}", sliding_count, c.layer_count,
                                     c.sliding_window)},
      {"positions", fmt::format("{}", c.max_positions)},
      {"rope", fmt::format("theta {}, factor {}, original {}", rope.theta, rope.factor,
                           rope.original_max_positions)},
      {"swiglu", fmt::format("alpha {}, beta {}, limit {}", c.swiglu.alpha, c.swiglu.beta,
                             c.swiglu.limit)},
      {"expert format", to_text(c.expert_format)},
      {"vocabulary", fmt::format("{}", c.vocab_size)},
      {"end tokens", fmt::format("{}", fmt::join(c.eos_token_ids, ", "))}};
  if (!c.quantized_modules.empty()) {
    std::string value = fmt::format("{}: stored as {}, served as bf16, activations as they are",
                                    quantized_modules_text(c),
                                    expert_scheme_name(c.expert_format.scheme));
    if (c.expert_format.activations != config::ActivationScheme::kNone) {
      value += fmt::format(" (their publisher quantises them: {})",
                           activation_scheme_name(c.expert_format.activations));
    }
    rows.push_back({"quantised besides", std::move(value)});
  }
  if (c.plain_dtype != tensor::DType::kBF16) {
    rows.push_back({"all else", fmt::format("{}, rounded once to bf16 as it is loaded",
                                            tensor::dtype_name(c.plain_dtype))});
  }
  if (c.cache_scales.place != config::CacheScales::Place::kNone) {
    rows.push_back({"cache scales", fmt::format("{}: kept and not used, keys and values are f32",
                                                to_text(c.cache_scales))});
  }
  if (!c.renormalise) rows.push_back({"expert weights", "of a softmax over all, as they are"});
  if (!c.dense_layers.empty()) {
    rows.push_back({"layers without experts", fmt::format("{}, of {}",
                                                          fmt::join(c.dense_layers, ", "),
                                                          c.dense_intermediate_size)});
  }
  if (c.tied_embeddings) rows.push_back({"lm_head", "the embedding (tied)"});
  return rows;
}

void add_tensors(const checkpoint::Checkpoint& checkpoint, InspectReport& report) {
  std::map<std::string, std::uint64_t> bytes_by_dtype;
  for (const checkpoint::LocatedTensor& tensor : checkpoint.tensors()) {
    const checkpoint::TensorEntry& entry = *tensor.entry;
    InspectTensor shown;
    shown.name = entry.name;
    shown.dtype = tensor::dtype_name(entry.dtype);
    shown.shape = entry.shape.to_string();
    shown.bytes = entry.end - entry.begin;
    shown.file = base_name(tensor.file->path());
    bytes_by_dtype[shown.dtype] += shown.bytes;
    report.tensors.push_back(std::move(shown));
  }
  report.total_bytes = checkpoint.total_bytes();
  report.bytes_by_dtype.assign(bytes_by_dtype.begin(), bytes_by_dtype.end());
}

void add_account(const checkpoint::Account& account, InspectReport& report) {
  for (const checkpoint::ExpectedTensor& tensor : account.missing) {
    report.missing.push_back(fmt::format("{}: {} {}", tensor.name,
                                         tensor::dtype_name(tensor.dtype),
                                         tensor.shape.to_string()));
  }
  for (const checkpoint::Account::Unknown& tensor : account.unknown) {
    std::string line = tensor.name;
    if (!tensor.stored_twice.empty()) {
      line += fmt::format(" ({})", tensor.stored_twice);
    } else if (!tensor.nearest.empty()) {
      line += fmt::format(" (nearest: {})", fmt::join(tensor.nearest, ", "));
    }
    report.unknown.push_back(std::move(line));
  }
  report.mismatched = account.mismatched;
}

std::string describe_backend(const config::ModelConfig& config) {
  const Result<experts::ExpertsChoice> choice = experts::choose_experts_backend(
      {.format = config.expert_format,
       .shape = {.expert_count = config.expert_count,
                 .experts_per_token = config.experts_per_token,
                 .hidden_size = config.hidden_size,
                 .intermediate_size = config.intermediate_size,
                 .max_rows = 1}});
  return choice.ok() ? choice->reason : "none: " + choice.error().message();
}

// Whether a tokenizer was read and fits the model; `report.tokenizer` says what there is.
bool add_tokenizer(const std::string& directory, std::int64_t vocab_size, InspectReport& report) {
  const Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::open(directory);
  if (!tokenizer.ok()) {
    const bool absent = tokenizer.error().code() == ErrorCode::kNotFound;
    report.tokenizer = (absent ? "none, token ids only: " : "") + tokenizer.error().message();
    return absent;
  }
  report.tokenizer = fmt::format("{} tokens", (*tokenizer)->vocab_size());
  const Status fits = api::check_tokenizer_fits(**tokenizer, vocab_size);
  if (!fits.ok()) report.mismatched.push_back(fits.error().message());
  return fits.ok();
}

}  // namespace

Result<InspectReport> inspect(const std::string& directory) {
  HF_ASSIGN(const std::unique_ptr<checkpoint::Checkpoint> checkpoint,
            checkpoint::Checkpoint::open_for_inspection(directory));
  const config::ModelConfig& config = checkpoint->config();
  InspectReport report;
  report.directory = directory;
  report.model_type = config.model_type;
  report.dialect = checkpoint->dialect().name();
  report.scheme = config::expert_scheme_name(config.expert_format.scheme);
  report.experts_backend = describe_backend(config);
  report.config = describe_config(config);
  add_tensors(*checkpoint, report);
  add_account(checkpoint->account(), report);
  const bool tokenizer_fits = add_tokenizer(directory, config.vocab_size, report);
  report.complete = checkpoint->account().complete() && tokenizer_fits;
  return report;
}

std::vector<std::string> experts_backends() {
  std::vector<std::string> names{"auto"};
  for (int i = 0; i < experts::kExpertsBackendCount; ++i) {
    names.emplace_back(
        experts::experts_backend_name(static_cast<experts::ExpertsBackendKind>(i)));
  }
  return names;
}

std::string experts_matrix() { return experts::experts_matrix(); }

Result<std::map<std::string, std::string>> checkpoint_digests(const std::string& directory) {
  HF_ASSIGN(const std::unique_ptr<checkpoint::Checkpoint> checkpoint,
            checkpoint::Checkpoint::open_for_inspection(directory));
  std::map<std::string, std::string> digests;
  std::vector<std::byte> buffer(kDigestChunkBytes);
  for (const checkpoint::LocatedTensor& tensor : checkpoint->tensors()) {
    const std::uint64_t bytes = tensor.entry->end - tensor.entry->begin;
    base::DigestStream digest;
    for (std::uint64_t at = 0; at < bytes;) {
      const std::uint64_t count = std::min<std::uint64_t>(buffer.size(), bytes - at);
      const auto chunk = std::span(buffer).first(static_cast<std::size_t>(count));
      HF_TRY(tensor.file->read(*tensor.entry, at, chunk));
      digest.add(chunk);
      at += count;
    }
    digests.emplace(tensor.entry->name, digest.digest().to_hex());
  }
  for (const auto& file : checkpoint->files()) HF_TRY(file->check_unchanged());
  return digests;
}

}  // namespace holdfast
