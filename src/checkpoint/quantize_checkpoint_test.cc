// Quantised checkpoints: what is in them is what the scalar codecs give of the source's values,
// they open, they are the published ones where those exist, and nothing is left of one that failed.
#include "holdfast/quantize.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "checkpoint/test_files.h"
#include "tensor/codecs.h"
#include "tensor/fp8_codecs.h"
#include "tensor/int4_codecs.h"
#include "tensor/mx_codecs.h"
#include "tensor/nvfp4_codecs.h"
#include "tensor/span_checks.h"

namespace holdfast::checkpoint {
namespace {

using tensor::DType;
using ::testing::HasSubstr;
using Bytes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;

std::string golden(const std::string& name) { return HF_SOURCE_DIR "/tests/golden/" + name; }
const std::string kGptOss = golden("gptoss-tiny-A-bf16");
const std::string kQwen = golden("qwen3moe-tiny-bf16");
const std::string kMixtral = golden("mixtral-tiny-bf16");

QuantizeOptions to(const TempDir& dir, const std::string& source, const std::string& scheme) {
  QuantizeOptions options;
  options.source = source;
  options.directory = dir.path("out");
  options.scheme = scheme;
  return options;
}

std::unique_ptr<Checkpoint> opened(const std::string& directory) {
  auto checkpoint = Checkpoint::open(directory);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message();
  return checkpoint.ok() ? std::move(*checkpoint) : nullptr;
}

std::unique_ptr<Checkpoint> quantized(const QuantizeOptions& options) {
  const auto report = quantize_checkpoint(options);
  EXPECT_TRUE(report.ok()) << report.error().message();
  return report.ok() ? opened(options.directory) : nullptr;
}

std::span<const std::byte> raw(const Checkpoint& checkpoint, const std::string& name) {
  const LocatedTensor* tensor = checkpoint.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  return tensor == nullptr ? std::span<const std::byte>() : tensor->file->data(*tensor->entry);
}
template <typename T>
std::vector<T> read(const Checkpoint& checkpoint, const std::string& name) {
  const auto bytes = raw(checkpoint, name);
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}
Floats floats(const Checkpoint& checkpoint, const std::string& name) {
  const LocatedTensor* tensor = checkpoint.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  Floats out(static_cast<std::size_t>(tensor->entry->shape.element_count()));
  EXPECT_TRUE(tensor::decode_to_f32(tensor->entry->dtype, raw(checkpoint, name).data(),
                                    static_cast<std::int64_t>(out.size()), out.data())
                  .ok());
  return out;
}

std::set<std::string> files_in(const std::string& directory) {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    files.insert(entry.path().filename());
  }
  return files;
}

// Every tensor of `a` is in `b` with the same bytes, and the other way round.
void expect_same_tensors(const Checkpoint& a, const Checkpoint& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const LocatedTensor& tensor : a.tensors()) {
    const LocatedTensor* other = b.find(tensor.entry->name);
    ASSERT_NE(other, nullptr) << tensor.entry->name;
    EXPECT_EQ(other->entry->dtype, tensor.entry->dtype) << tensor.entry->name;
    EXPECT_EQ(other->entry->shape, tensor.entry->shape) << tensor.entry->name;
    EXPECT_TRUE(std::ranges::equal(raw(a, tensor.entry->name), raw(b, tensor.entry->name)))
        << tensor.entry->name;
  }
}

TEST(QuantizeCheckpoint, GptOssInBf16GivesThePublishedMxfp4BitForBit) {
  const TempDir dir;
  const auto made = quantized(to(dir, kGptOss, "mxfp4"));
  ASSERT_NE(made, nullptr);
  expect_same_tensors(*made, *opened(HF_SOURCE_DIR "/models/gptoss-tiny-A"));
  EXPECT_EQ(made->config(), opened(HF_SOURCE_DIR "/models/gptoss-tiny-A")->config());
}

TEST(QuantizeCheckpoint, Fp8BlocksOfQwenAreThePublishedOnesBitForBit) {
  const TempDir dir;
  const auto made = quantized(to(dir, kQwen, "fp8-block"));
  ASSERT_NE(made, nullptr);
  const auto published = opened(golden("qwen3moe-tiny-fp8"));
  EXPECT_EQ(made->config(), published->config());
  ASSERT_EQ(made->tensors().size(), published->tensors().size());
  expect_same_tensors(*made, *published);
}

// One projection of one expert, as the scalar codecs decode it and as they quantise the source.
struct Matrix {
  std::string name;
  std::int64_t rows, cols;
  Floats values;
};
Matrix matrix_of(const Checkpoint& source, const std::string& name) {
  const auto& shape = source.find(name + ".weight")->entry->shape;
  return {name, shape[0], shape[1], floats(source, name + ".weight")};
}

void expect_mx(const Checkpoint& made, const Matrix& m, bool four_bits) {
  Bytes codes(m.values.size() / (four_bits ? 2 : 1)), scales(m.values.size() / 32);
  const Status done =
      four_bits ? tensor::encode_mxfp4(tensor::E8m0Rule::kFloor, m.values, codes, scales)
                : tensor::encode_mxfp8(tensor::E8m0Rule::kCeil, m.values, codes, scales);
  ASSERT_TRUE(done.ok());
  EXPECT_EQ(read<std::uint8_t>(made, m.name + (four_bits ? ".weight_packed" : ".weight")), codes);
  EXPECT_EQ(read<std::uint8_t>(made, m.name + ".weight_scale"), scales);
}

void expect_fp8(const Checkpoint& made, const Matrix& m, const tensor::Fp8Layout& layout) {
  Bytes codes(m.values.size());
  const auto grid = layout.scales();
  Floats scales(static_cast<std::size_t>(grid.rows * grid.cols));
  ASSERT_TRUE(
      encode_fp8(layout, tensor::Fp8ScaleRule::kWeight, m.values, {codes, scales}).ok());
  for (float& scale : scales) scale = tensor::bf16_to_f32(tensor::f32_to_bf16(scale));
  ASSERT_TRUE(encode_fp8_static(layout, m.values, scales, codes).ok());
  EXPECT_EQ(floats(made, m.name + ".weight_scale"), scales);
  EXPECT_EQ(read<std::uint8_t>(made, m.name + ".weight"), codes);
}

void expect_nvfp4(const Checkpoint& made, const Matrix& m, float stored) {
  Bytes codes(m.values.size() / 2), scales(m.values.size() / 16);
  ASSERT_TRUE(tensor::encode_nvfp4(1.0f / stored, m.values, {codes, scales}).ok());
  EXPECT_EQ(floats(made, m.name + ".weight_global_scale"), Floats{stored});
  EXPECT_EQ(read<std::uint8_t>(made, m.name + ".weight_scale"), scales);
  EXPECT_EQ(read<std::uint8_t>(made, m.name + ".weight_packed"), codes);
}

void expect_int4(const Checkpoint& made, const Matrix& m, std::int64_t group, bool zeros) {
  const tensor::Int4Size size{m.rows, m.cols, group};
  const auto groups = static_cast<std::size_t>(m.rows * size.groups());
  Bytes codes(m.values.size()), points(groups);
  Floats scales(groups);
  const auto rule = zeros ? tensor::Int4Zeros::kAsymmetric : tensor::Int4Zeros::kSymmetric;
  ASSERT_TRUE(encode_int4(size, {rule, DType::kBF16}, m.values, {}, {codes, scales, points}).ok());
  std::vector<std::int32_t> words(codes.size() / 8), zero_words(groups / 8);
  constexpr auto kPacking = tensor::Int4Packing::kCompressedTensors;
  ASSERT_TRUE(pack_int4_weight(kPacking, size, codes, words).ok());
  EXPECT_EQ(read<std::int32_t>(made, m.name + ".weight_packed"), words);
  EXPECT_EQ(floats(made, m.name + ".weight_scale"), scales);
  EXPECT_EQ(read<std::int64_t>(made, m.name + ".weight_shape"),
            (std::vector<std::int64_t>{m.rows, m.cols}));
  EXPECT_EQ(made.find(m.name + ".weight_zero_point") != nullptr, zeros);
  if (!zeros) return;
  ASSERT_TRUE(pack_int4_zeros(kPacking, size, points, zero_words).ok());
  EXPECT_EQ(read<std::int32_t>(made, m.name + ".weight_zero_point"), zero_words);
}

void expect_scheme(const QuantizeOptions& options, const Checkpoint& made, const Matrix& m,
                   float shared_amax) {
  const tensor::MatrixSize size{m.rows, m.cols};
  if (options.scheme == "mxfp4") expect_mx(made, m, true);
  if (options.scheme == "mxfp8") expect_mx(made, m, false);
  if (options.scheme == "fp8-tensor") expect_fp8(made, m, tensor::fp8_per_tensor(size));
  if (options.scheme == "fp8-channel") expect_fp8(made, m, tensor::fp8_per_row(size));
  if (options.scheme == "nvfp4") expect_nvfp4(made, m, 2688.0f / shared_amax);
  if (options.scheme == "int4") expect_int4(made, m, options.group_size, options.zero_points);
}

// All matrices of an expert; the others' names come from the same list.
void expect_expert(const QuantizeOptions& options, const Checkpoint& source,
                   const Checkpoint& made, const std::vector<std::string>& names) {
  float shared = 0.0f;
  for (const std::string& name : {names[0], names[1]}) {
    shared = std::max(shared, tensor::finite_amax(matrix_of(source, name).values));
  }
  for (const std::string& name : names) {
    const Matrix m = matrix_of(source, name);
    const bool down = name == names[2];
    expect_scheme(options, made, m, down ? tensor::finite_amax(m.values) : shared);
  }
}

TEST(QuantizeCheckpoint, EverySchemeHoldsWhatTheScalarCodecsGiveAndAllElseIsCopied) {
  for (const bool qwen : {true, false}) {
    const std::string source_path = qwen ? kQwen : kMixtral;
    const auto source = opened(source_path);
    const std::string prefix =
        qwen ? "model.layers.2.mlp.experts.5." : "model.layers.1.block_sparse_moe.experts.7.";
    const std::vector<std::string> names =
        qwen ? std::vector<std::string>{prefix + "gate_proj", prefix + "up_proj",
                                        prefix + "down_proj"}
             : std::vector<std::string>{prefix + "w1", prefix + "w3", prefix + "w2"};
    for (const std::string& scheme : quantize_schemes()) {
      SCOPED_TRACE(scheme + " of " + source_path);
      const TempDir dir;
      QuantizeOptions options = to(dir, source_path, scheme);
      options.group_size = 32;
      options.zero_points = qwen;
      const auto made = quantized(options);
      ASSERT_NE(made, nullptr);
      EXPECT_EQ(expert_scheme_name(made->config().expert_format.scheme), scheme);
      expect_expert(options, *source, *made, names);
      std::size_t copied = 0;
      for (const LocatedTensor& tensor : source->tensors()) {
        const std::string& name = tensor.entry->name;
        if (name.find("experts") != name.npos) continue;
        EXPECT_TRUE(std::ranges::equal(raw(*source, name), raw(*made, name))) << name;
        ++copied;
      }
      EXPECT_GT(copied, 10u);
      for (const char* file : {"tokenizer.json", "tokenizer_config.json",
                               "generation_config.json"}) {
        EXPECT_EQ(read_file(options.directory + "/" + file),
                  read_file(source_path + "/" + file));
      }
    }
  }
}

TEST(QuantizeCheckpoint, ThreadsAndShardsChangeNoTensor) {
  const TempDir dir;
  QuantizeOptions one = to(dir, kGptOss, "mxfp4");
  one.threads = 1;
  const auto first = quantized(one);
  QuantizeOptions many = to(dir, kGptOss, "mxfp4");
  many.directory = dir.path("many");
  many.threads = 7;
  many.max_shard_bytes = 300'000;
  const auto report = quantize_checkpoint(many);
  ASSERT_TRUE(report.ok()) << report.error().message();
  EXPECT_GT(report->shards, 3u);
  EXPECT_EQ(report->threads, 7);
  EXPECT_EQ(report->buffer_bytes % 7, 0u);
  EXPECT_LE(report->buffer_bytes, kMaxQuantizeBufferBytes);
  const std::string shards = std::to_string(report->shards);
  EXPECT_TRUE(files_in(many.directory)
                  .contains("model-00001-of-" + std::string(5 - shards.size(), '0') + shards +
                            ".safetensors"));
  expect_same_tensors(*first, *opened(many.directory));
}

// A small Qwen3-MoE whose tensors are all of `dtype`; the first layer is dense.
SmallCheckpoint small_qwen(DType dtype) {
  SmallCheckpoint small;
  small.config_json = R"({"model_type":"qwen3_moe","num_hidden_layers":2,"hidden_size":64,
    "head_dim":8,"intermediate_size":48,"moe_intermediate_size":32,"num_attention_heads":4,
    "num_key_value_heads":2,"vocab_size":40,"num_experts":3,"num_experts_per_tok":2,
    "max_position_embeddings":128,"rms_norm_eps":1e-6,"rope_theta":10000,"mlp_only_layers":[0]})";
  const auto config = config::parse_model_config(small.config_json);
  for (ExpectedTensor& tensor : (*choose_dialect(*config))->expected(*config)) {
    tensor.dtype = dtype;
    small.add(std::move(tensor));
    auto& data = small.tensors.back().data;
    const float value = 0.001f * static_cast<float>(small.tensors.size());
    const std::uint16_t narrow = tensor::f32_to_bf16(value);
    for (std::size_t i = 0; i < data.size(); i += dtype == DType::kF32 ? 4 : 2) {
      if (dtype == DType::kF32) std::memcpy(data.data() + i, &value, 4);
      if (dtype != DType::kF32) std::memcpy(data.data() + i, &narrow, 2);
    }
  }
  return small;
}

TEST(QuantizeCheckpoint, AF32SourceIsQuantisedFromItsOwnValues) {
  const TempDir source_dir, dir;
  const SmallCheckpoint small = small_qwen(DType::kF32);
  small.write(source_dir.path());
  const QuantizeOptions options = to(dir, source_dir.path(), "mxfp8");
  const auto report = quantize_checkpoint(options);
  ASSERT_TRUE(report.ok()) << report.error().message();
  const auto source = *Checkpoint::open_for_inspection(options.source);
  EXPECT_EQ(source->config().expert_format.scheme, config::ExpertScheme::kF32);
  const auto made = *Checkpoint::open_for_inspection(options.directory);
  expect_mx(*made, matrix_of(*source, "model.layers.1.mlp.experts.2.up_proj"), false);
  EXPECT_EQ(made->find("model.norm.weight")->entry->dtype, DType::kF32);
}

std::string error_of(const QuantizeOptions& options) {
  const auto report = quantize_checkpoint(options);
  return report.ok() ? "ok" : report.error().to_string();
}

TEST(QuantizeCheckpoint, ADenseLayerIsKeptAndListedAsKept) {
  const TempDir source_dir, dir;
  small_qwen(DType::kBF16).write(source_dir.path());
  for (const char* scheme : {"fp8-channel", "fp8-block", "mxfp8", "int4"}) {
    QuantizeOptions options = to(dir, source_dir.path(), scheme);
    options.directory = dir.path(scheme);
    options.group_size = 16;
    const auto made = quantized(options);
    ASSERT_NE(made, nullptr) << scheme;
    EXPECT_EQ(made->find("model.layers.0.mlp.up_proj.weight")->entry->dtype, DType::kBF16);
    EXPECT_THAT(read_file(options.directory + "/config.json"),
                HasSubstr("\"model.layers.0.mlp.up_proj\""));
  }
}

TEST(QuantizeCheckpoint, WhatCannotBeIsSaidAndLeavesNothing) {
  const TempDir dir;
  EXPECT_THAT(error_of(to(dir, kGptOss, "nvfp4")),
              HasSubstr("no experts of gpt_oss are known that are stored as nvfp4"));
  EXPECT_THAT(error_of(to(dir, kQwen, "int3")), HasSubstr("known are mxfp4, mxfp8"));
  EXPECT_THAT(error_of(to(dir, kQwen, "bf16")), HasSubstr("known are mxfp4, mxfp8"));
  EXPECT_THAT(error_of(to(dir, HF_SOURCE_DIR "/models/gptoss-tiny-A", "mxfp4")),
              HasSubstr("the experts are mxfp4"));
  EXPECT_THAT(error_of(to(dir, dir.path("none"), "mxfp4")), HasSubstr("not_found"));
  QuantizeOptions group = to(dir, kQwen, "int4");
  group.group_size = 100;
  EXPECT_THAT(error_of(group), HasSubstr("must be a multiple of 100"));
  group.group_size = 0;
  EXPECT_THAT(error_of(group), HasSubstr("invalid_argument"));
  group.group_size = -1;
  EXPECT_THAT(error_of(group), HasSubstr("invalid_argument"));
  EXPECT_EQ(files_in(dir.path()), std::set<std::string>());

  std::filesystem::create_directory(dir.path("out"));
  write_file(dir.path("out/mine"), "mine");
  EXPECT_THAT(error_of(to(dir, kQwen, "mxfp8")), HasSubstr("not empty, it holds mine"));
  EXPECT_EQ(files_in(dir.path("out")), std::set<std::string>{"mine"});
}

TEST(QuantizeCheckpoint, TheSourcesOwnDirectoryIsRefused) {
  const TempDir source_dir;
  small_qwen(DType::kBF16).write(source_dir.path());
  const auto before = files_in(source_dir.path());
  QuantizeOptions options{.source = source_dir.path(), .directory = source_dir.path(),
                          .scheme = "mxfp8"};
  EXPECT_THAT(error_of(options), HasSubstr("are one"));
  options.directory = source_dir.path("out");
  EXPECT_THAT(error_of(options), HasSubstr("lies in the other"));
  EXPECT_EQ(files_in(source_dir.path()), before);
}

TEST(QuantizeCheckpoint, AValueThatIsNotFiniteIsNamedAndNothingIsLeft) {
  for (const char* scheme : {"mxfp8", "nvfp4", "int4"}) {
    const TempDir source_dir, dir;
    SmallCheckpoint small = small_qwen(DType::kBF16);
    small.find("model.layers.1.mlp.experts.1.up_proj.weight").data[7] = '\x7F';
    small.find("model.layers.1.mlp.experts.1.up_proj.weight").data[6] = '\xC0';
    small.write(source_dir.path());
    QuantizeOptions options = to(dir, source_dir.path(), scheme);
    options.group_size = 16;
    EXPECT_THAT(error_of(options), HasSubstr("experts.1.up_proj.weight has a value of expert 1"));
    EXPECT_EQ(files_in(dir.path()), std::set<std::string>());
  }
}

TEST(QuantizeCheckpoint, DefectsOfTheSourceAreThoseOfOpeningIt) {
  const TempDir source_dir, dir;
  SmallCheckpoint small = small_qwen(DType::kBF16);
  auto& odd = small.find("model.layers.1.mlp.experts.1.up_proj.weight");
  odd.what.shape = {64, 32};
  small.write(source_dir.path());
  EXPECT_THAT(error_of(to(dir, source_dir.path(), "mxfp8")),
              HasSubstr("experts.1.up_proj.weight in model-00001-of-00002.safetensors: shape "));
  SmallCheckpoint mixed = small_qwen(DType::kBF16);
  auto& wide = mixed.find("model.layers.1.mlp.experts.1.up_proj.weight");
  wide.what.dtype = DType::kF32;
  wide.data.resize(wide.data.size() * 2);
  const TempDir mixed_dir;
  mixed.write(mixed_dir.path());
  EXPECT_THAT(error_of(to(dir, mixed_dir.path(), "mxfp8")), HasSubstr("dtype f32, expected bf16"));
}

TEST(QuantizeCheckpoint, CancellingLeavesNothing) {
  const TempDir dir;
  QuantizeOptions options = to(dir, kQwen, "fp8-block");
  int asked = 0;
  options.threads = 1;
  options.cancelled = [&asked] { return ++asked > 3; };
  EXPECT_THAT(error_of(options), HasSubstr("cancelled"));
  EXPECT_EQ(files_in(dir.path()), std::set<std::string>());
}

}  // namespace
}  // namespace holdfast::checkpoint
