#include "models.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/digest.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "config/model_config.h"
#include "tensor/dtype.h"

namespace holdfast::sim {
namespace {

using checkpoint::ExpectedTensor;

std::int64_t between(base::Rng& rng, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(
                     rng.next_below(static_cast<std::uint64_t>(most - least + 1)));
}

bool one_in(base::Rng& rng, std::uint64_t count) { return rng.next_below(count) == 0; }

void put_bf16(float value, std::byte* to) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  const auto high = static_cast<std::uint16_t>(bits >> 16);
  std::memcpy(to, &high, sizeof(high));
}

// Around `middle`, at most `spread` away.
struct Values {
  float middle = 0;
  float spread = 1;
};

// Sizes at which activations neither vanish nor blow up, so that every weight shows in the tokens.
Values values_of(const ExpectedTensor& tensor) {
  const std::string& name = tensor.name;
  if (name.ends_with("norm.weight")) return {1.0f, 0.3f};
  if (name.ends_with("sinks")) return {0.0f, 2.0f};
  if (name.ends_with("bias")) return {0.0f, 0.1f};
  if (name.find("embed_tokens") != std::string::npos) return {0.0f, 1.0f};
  // [out, in], or input-major experts [E, in, out].
  const std::int64_t inputs = tensor.shape[1];
  const float scale = name.find("lm_head") != std::string::npos ? 5.0f : 1.7f;
  return {0.0f, scale / std::sqrt(static_cast<float>(inputs))};
}

std::vector<std::byte> draw_bytes(const ExpectedTensor& tensor, base::Rng& rng) {
  std::vector<std::byte> bytes(tensor::byte_size(tensor.dtype, tensor.shape).value());
  if (tensor.name.ends_with("_scales")) {
    constexpr std::uint64_t kLowest = 122;  // e8m0: 2^-5 to 2^-2
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(kLowest + rng.next_below(4));
  } else if (tensor.name.ends_with("_blocks")) {
    for (std::size_t at = 0; at < bytes.size(); at += 8) {
      const std::uint64_t word = rng.next();
      std::memcpy(&bytes[at], &word, std::min<std::size_t>(8, bytes.size() - at));
    }
  } else {
    const Values values = values_of(tensor);
    for (std::size_t at = 0; at < bytes.size(); at += 2) {
      const auto unit = static_cast<float>(2 * rng.next_unit() - 1);
      put_bf16(values.middle + values.spread * unit, &bytes[at]);
    }
  }
  return bytes;
}

// Tensor `index` of a version: its own stream of random numbers, so that a part of a version is the
// same alone and among others.
std::vector<std::byte> draw_tensor(const ExpectedTensor& tensor, std::size_t index,
                                   const WeightsSpec& weights, std::size_t count) {
  const auto draw = [&](std::uint64_t seed) {
    base::Rng rng(base::counter_draw(seed, index));
    return draw_bytes(tensor, rng);
  };
  std::vector<std::byte> bytes = draw(weights.seed);
  if (weights.has_zero_tensor && weights.all_zero % count == index) {
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
  }
  for (const WeightsPart& part : weights.parts) {
    if (!part.holds(tensor.name)) continue;
    const std::vector<std::byte> other = draw(part.seed);
    if (part.expert < 0) {
      bytes = other;
      continue;
    }
    const std::size_t row = bytes.size() / static_cast<std::size_t>(tensor.shape[0]);
    const auto begin = static_cast<std::ptrdiff_t>(row * static_cast<std::size_t>(part.expert));
    std::copy_n(other.begin() + begin, row, bytes.begin() + begin);
  }
  return bytes;
}

Result<std::vector<ExpectedTensor>> expected_tensors(const ModelShape& shape) {
  HF_ASSIGN(const config::ModelConfig config, config::parse_model_config(config_json(shape)));
  HF_ASSIGN(const auto dialect, checkpoint::choose_dialect(config));
  return dialect->expected(config);
}

Status write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return {};
  return make_error(ErrorCode::kIo, "{}: cannot write", path);
}

std::string shard_name(int shard, int shards) {
  if (shards == 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
}

// Tensors go round the shards, so that the order of arrival differs from the model's.
Status write_shards(const std::vector<checkpoint::TensorToWrite>& tensors, int shards,
                    const std::string& directory) {
  std::string map;
  for (int shard = 0; shard < shards; ++shard) {
    std::vector<checkpoint::TensorToWrite> mine;
    for (std::size_t i = static_cast<std::size_t>(shard); i < tensors.size();
         i += static_cast<std::size_t>(shards)) {
      mine.push_back(tensors[i]);
      map += fmt::format("{}\"{}\": \"{}\"", map.empty() ? "" : ", ", tensors[i].name,
                         shard_name(shard, shards));
    }
    HF_TRY(checkpoint::write_safetensors(directory + "/" + shard_name(shard, shards), mine));
  }
  if (shards == 1) return {};
  return write_text(directory + "/model.safetensors.index.json",
                    fmt::format("{{\"metadata\": {{}}, \"weight_map\": {{{}}}}}", map));
}

}  // namespace

// ------------------------------------------------------------------------------ shapes

ModelShape draw_shape(base::Rng& rng) {
  ModelShape shape;
  shape.mxfp4 = one_in(rng, 2);
  shape.layers = one_in(rng, 4) ? between(rng, 3, 4) : between(rng, 1, 2);
  shape.hidden = shape.mxfp4 ? 32 * between(rng, 1, 2) : between(rng, 3, 41);
  shape.intermediate = shape.mxfp4 ? 32 * between(rng, 1, 2) : between(rng, 1, 37);
  shape.kv_heads = between(rng, 1, 3);
  shape.query_heads = shape.kv_heads * between(rng, 1, 3);
  shape.head_dim = 2 * between(rng, 1, 7);
  shape.vocab = between(rng, 5, 61);
  shape.experts = one_in(rng, 3) ? between(rng, 5, 8) : between(rng, 1, 4);
  shape.experts_per_token = between(rng, 1, std::min<std::int64_t>(shape.experts, 4));
  shape.window = between(rng, 1, 40);
  shape.positions = between(rng, 18, 90);
  shape.yarn = one_in(rng, 2);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    shape.sliding.push_back(one_in(rng, 2));
  }
  for (std::int64_t i = between(rng, 0, 2); i > 0; --i) {
    shape.eos_ids.push_back(static_cast<std::int32_t>(between(rng, 0, shape.vocab - 1)));
  }
  return shape;
}

std::string ModelShape::to_string() const {
  return fmt::format("{} layers, hidden {}, {} heads of {} over {}, vocab {}, {} of {} experts {} "
                     "{}, window {}, {} positions",
                     layers, hidden, query_heads, head_dim, kv_heads, vocab, experts_per_token,
                     experts, mxfp4 ? "mxfp4" : "bf16", intermediate, window, positions);
}

std::string config_json(const ModelShape& shape) {
  std::vector<std::string> types;
  for (const bool sliding : shape.sliding) {
    types.push_back(sliding ? "\"sliding_attention\"" : "\"full_attention\"");
  }
  std::map<std::string, std::string> fields = {
      {"model_type", "\"gpt_oss\""},
      {"num_hidden_layers", std::to_string(shape.layers)},
      {"hidden_size", std::to_string(shape.hidden)},
      {"intermediate_size", std::to_string(shape.intermediate)},
      {"num_attention_heads", std::to_string(shape.query_heads)},
      {"num_key_value_heads", std::to_string(shape.kv_heads)},
      {"head_dim", std::to_string(shape.head_dim)},
      {"vocab_size", std::to_string(shape.vocab)},
      {"num_local_experts", std::to_string(shape.experts)},
      {"num_experts_per_tok", std::to_string(shape.experts_per_token)},
      {"sliding_window", std::to_string(shape.window)},
      {"max_position_embeddings", std::to_string(shape.positions)},
      {"rms_norm_eps", "1e-05"},
      {"swiglu_limit", fmt::format("{}", shape.swiglu_limit)},
      {"rope_theta", fmt::format("{}", shape.rope_theta)},
      {"layer_types", fmt::format("[{}]", fmt::join(types, ", "))}};
  if (shape.yarn) {
    fields["rope_scaling"] =
        "{\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 16}";
  }
  if (shape.mxfp4) fields["quantization_config"] = "{\"quant_method\": \"mxfp4\"}";
  if (!shape.eos_ids.empty()) {
    fields["eos_token_id"] = fmt::format("[{}]", fmt::join(shape.eos_ids, ", "));
  }
  std::string text;
  for (const auto& [key, value] : fields) {
    text += fmt::format("{}\"{}\": {}", text.empty() ? "" : ",\n ", key, value);
  }
  return "{" + text + "}\n";
}

std::vector<std::string> tensor_names(const ModelShape& shape) {
  std::vector<std::string> names;
  const auto tensors = expected_tensors(shape);
  for (const ExpectedTensor& tensor : *tensors) names.push_back(tensor.name);
  return names;
}

bool WeightsPart::holds(const std::string& name) const {
  if (layer < 0) return name == tensor;
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  return name.starts_with(expert < 0 ? prefix : prefix + "mlp.experts.");
}

// ------------------------------------------------------------------------------ directories

Status write_checkpoint(const ModelShape& shape, const WeightsSpec& weights,
                        const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return make_error(ErrorCode::kIo, "{}: {}", directory, error.message());
  ModelShape configured = shape;
  if (weights.other_constants) {
    configured.swiglu_limit = 1.5;
    configured.rope_theta = 300.0;
  }
  HF_TRY(write_text(directory + "/config.json", config_json(configured)));
  HF_ASSIGN(const std::vector<ExpectedTensor> expected, expected_tensors(shape));
  std::vector<std::vector<std::byte>> bytes;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    bytes.push_back(draw_tensor(expected[i], i, weights, expected.size()));
  }
  std::vector<checkpoint::TensorToWrite> tensors;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    tensors.push_back({.name = expected[i].name,
                       .dtype = expected[i].dtype,
                       .shape = expected[i].shape,
                       .data = bytes[i]});
  }
  return write_shards(tensors, weights.shards, directory);
}

Status write_digests(const ModelShape& shape, const WeightsSpec& weights, const std::string& path) {
  HF_ASSIGN(const std::vector<ExpectedTensor> expected, expected_tensors(shape));
  std::string text;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto bytes = draw_tensor(expected[i], i, weights, expected.size());
    text += fmt::format("{}\"{}\": \"{}\"", i == 0 ? "" : ",\n", expected[i].name,
                        base::digest_of(bytes).to_hex());
  }
  return write_text(path, "{" + text + "}\n");
}

TempDirectory::TempDirectory() {
  const bool in_memory = ::access("/dev/shm", W_OK) == 0;
  std::string pattern = (in_memory ? std::string("/dev/shm")
                                   : std::filesystem::temp_directory_path().string()) +
                        "/holdfast-sim-XXXXXX";
  if (::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
}

TempDirectory::~TempDirectory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

std::string digest_of_directory(const std::string& directory) {
  std::map<std::string, std::string> digests;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    digests[entry.path().string()] =
        base::digest_of(std::as_bytes(std::span(bytes.data(), bytes.size()))).to_hex();
  }
  std::string all;
  for (const auto& [name, digest] : digests) all += name + " " + digest + "\n";
  return base::digest_of(std::as_bytes(std::span(all.data(), all.size()))).to_hex();
}

}  // namespace holdfast::sim
