#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <functional>

#include "checkpoint/test_files.h"
#include "tensor/codecs.h"

namespace holdfast::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tensor::DType;

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

std::string model(const char* name) { return std::string(HF_SOURCE_DIR "/models/") + name; }
std::string golden(const char* name) {
  return std::string(HF_SOURCE_DIR "/tests/golden/") + name;
}

TEST(Checkpoint, OpensTheTinyModelsInBothLayouts) {
  for (const std::string& path : {model("gptoss-tiny-A"), model("gptoss-tiny-B"),
                                  golden("gptoss-tiny-A-bf16")}) {
    const auto opened = Checkpoint::open(path);
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    const Checkpoint& checkpoint = **opened;
    EXPECT_EQ(checkpoint.directory(), path);
    EXPECT_EQ(checkpoint.config().layer_count, 4);
    EXPECT_TRUE(checkpoint.account().complete());
    const auto expected = checkpoint.dialect().expected(checkpoint.config());
    EXPECT_EQ(checkpoint.tensors().size(), expected.size());
    std::uint64_t bytes = 0;
    for (const ExpectedTensor& tensor : expected) {
      const LocatedTensor* located = checkpoint.find(tensor.name);
      ASSERT_NE(located, nullptr) << tensor.name;
      EXPECT_EQ(located->entry->shape, tensor.shape);
      EXPECT_EQ(located->file->find(tensor.name), located->entry);
      bytes += located->file->data(*located->entry).size();
    }
    EXPECT_EQ(checkpoint.total_bytes(), bytes);
    EXPECT_EQ(checkpoint.find("model.layers.4.input_layernorm.weight"), nullptr);
  }
  EXPECT_EQ((*Checkpoint::open(model("gptoss-tiny-A")))->total_bytes(), 3245696u);
  EXPECT_EQ((*Checkpoint::open(model("gptoss-tiny-A")))->files().size(), 3u);
}

// Both layouts hold the same numbers: [E, out, in] in blocks, [E, in, out] plain.
TEST(Checkpoint, TheTwoLayoutsOfAHoldTheSameExperts) {
  const auto packed = Checkpoint::open(model("gptoss-tiny-A"));
  const auto plain = Checkpoint::open(golden("gptoss-tiny-A-bf16"));
  ASSERT_TRUE(packed.ok() && plain.ok());
  const auto bytes_of = [](const Checkpoint& checkpoint, const std::string& name) {
    const LocatedTensor* located = checkpoint.find(name);
    return located->file->data(*located->entry);
  };
  const std::string name = "model.layers.1.mlp.experts.down_proj";
  const auto blocks = bytes_of(**packed, name + "_blocks");
  const auto scales = bytes_of(**packed, name + "_scales");
  const auto dense = bytes_of(**plain, name);
  constexpr std::size_t kExperts = 8, kOut = 256, kIn = 64;
  for (std::size_t block = 0; block < scales.size(); ++block) {
    std::array<std::uint8_t, 16> codes{};
    std::memcpy(codes.data(), blocks.data() + block * 16, 16);
    std::array<float, 32> values{};
    tensor::decode_mxfp4_block(codes, std::to_integer<std::uint8_t>(scales[block]), values);
    const std::size_t row = block / (kIn / 32), first = block % (kIn / 32) * 32;
    const std::size_t expert = row / kOut, out = row % kOut;
    ASSERT_LT(expert, kExperts);
    for (std::size_t i = 0; i < 32; ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, dense.data() + ((expert * kIn + first + i) * kOut + out) * 2, 2);
      ASSERT_EQ(tensor::bf16_to_f32(bits), values[i]) << block << " " << i;
    }
  }
}

TEST(Checkpoint, TheReferenceFilesOpenAsSafetensors) {
  for (const char* name : {"reference/gptoss-tiny-A.safetensors",
                           "reference/gptoss-tiny-B.safetensors"}) {
    const auto file = SafetensorsFile::open(golden(name));
    ASSERT_TRUE(file.ok()) << file.error().message();
    ASSERT_NE((*file)->find("last_logits.0"), nullptr);
    EXPECT_EQ((*file)->find("last_logits.0")->dtype, DType::kF32);
  }
}

TEST(Checkpoint, ExpectsThePublishedShapesOfGptOss20b) {
  config::ModelConfig config;
  config.layer_count = 24;
  config.hidden_size = config.intermediate_size = 2880;
  config.query_head_count = config.head_dim = 64;
  config.kv_head_count = 8;
  config.vocab_size = 201088;
  config.expert_count = 32;
  config.expert_format.scheme = config::ExpertScheme::kMxfp4;
  const auto dialect = choose_dialect(config);
  ASSERT_TRUE(dialect.ok());
  std::map<std::string, std::string> shapes;
  for (const auto& tensor : (*dialect)->expected(config)) {
    shapes[tensor.name] = std::string(dtype_name(tensor.dtype)) + " " + tensor.shape.to_string();
  }
  EXPECT_EQ(shapes.size(), 24u * 19 + 3);
  const std::string layer = "model.layers.23.";
  EXPECT_EQ(shapes[layer + "mlp.experts.gate_up_proj_blocks"], "u8 [32, 5760, 90, 16]");
  EXPECT_EQ(shapes[layer + "mlp.experts.gate_up_proj_scales"], "u8 [32, 5760, 90]");
  EXPECT_EQ(shapes[layer + "mlp.experts.down_proj_blocks"], "u8 [32, 2880, 90, 16]");
  EXPECT_EQ(shapes[layer + "mlp.experts.down_proj_bias"], "bf16 [32, 2880]");
  EXPECT_EQ(shapes[layer + "self_attn.q_proj.weight"], "bf16 [4096, 2880]");
  EXPECT_EQ(shapes[layer + "self_attn.o_proj.weight"], "bf16 [2880, 4096]");
  EXPECT_EQ(shapes[layer + "self_attn.k_proj.bias"], "bf16 [512]");
  EXPECT_EQ(shapes[layer + "self_attn.sinks"], "bf16 [64]");
  EXPECT_EQ(shapes["lm_head.weight"], "bf16 [201088, 2880]");
}

TEST(Checkpoint, OpensASingleFileWithoutAnIndex) {
  const TempDir dir;
  auto small = SmallCheckpoint::make();
  for (auto& tensor : small.tensors) tensor.file = "model.safetensors";
  small.write(dir.path());
  std::filesystem::remove(dir.path(kIndexName));
  const auto opened = Checkpoint::open(dir.path());
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  EXPECT_EQ((*opened)->files().size(), 1u);
}

TEST(Checkpoint, FollowsLinksAsTheHubCacheMakesThem) {
  const TempDir blobs, dir;
  SmallCheckpoint::make().write(blobs.path());
  for (const auto& file : std::filesystem::directory_iterator(blobs.path())) {
    std::filesystem::create_symlink(file.path(), dir.path(file.path().filename().string()));
  }
  const auto opened = Checkpoint::open(dir.path());
  ASSERT_TRUE(opened.ok()) << opened.error().message();
}

// `change` works on what will be written, `damage` on the directory once it is.
struct BadCheckpoint {
  std::string what;
  std::function<void(SmallCheckpoint&)> change;
  std::function<void(const std::string&)> damage;
  ErrorCode code;
  std::vector<std::string> says;
};

void nothing(SmallCheckpoint&) {}
void no_damage(const std::string&) {}

std::function<void(const std::string&)> overwrite(const char* file, const std::string& text) {
  return [file, text](const std::string& dir) { write_file(dir + "/" + file, text); };
}

std::function<void(const std::string&)> remove_file(const char* file) {
  return [file](const std::string& dir) { std::filesystem::remove(dir + "/" + file); };
}

std::function<void(SmallCheckpoint&)> map_norm_to(const char* file) {
  return [file](SmallCheckpoint& small) { small.index["model.norm.weight"] = file; };
}

std::vector<BadCheckpoint> bad_configs_and_files() {
  return {
      {"config missing", nothing, remove_file("config.json"), ErrorCode::kNotFound,
       {"config.json: cannot open"}},
      {"config empty", nothing, overwrite("config.json", ""), ErrorCode::kCorrupt,
       {"config.json: not valid JSON"}},
      {"config of an unknown model", nothing,
       overwrite("config.json", R"({"model_type":"llama"})"), ErrorCode::kUnsupported,
       {"model_type is \"llama\"; this engine knows gpt_oss, qwen3_moe, mixtral"}},
      {"config absurd",
       [](SmallCheckpoint& small) {
         const auto at = small.config_json.find("\"num_local_experts\":3");
         small.config_json.replace(at, 21, "\"num_local_experts\":1099511627776");
       },
       no_damage, ErrorCode::kInvalidArgument,
       {"config.json: num_local_experts is 1099511627776, expected an integer from 1 to 4096"}},
      {"config a directory", nothing,
       [](const std::string& dir) {
         std::filesystem::remove(dir + "/config.json");
         std::filesystem::create_directory(dir + "/config.json");
       },
       ErrorCode::kInvalidArgument, {"config.json: a directory, expected a regular file"}},
      {"generation config broken", nothing, overwrite("generation_config.json", "{"),
       ErrorCode::kCorrupt, {"generation_config.json: not valid JSON"}},
      {"generation config empty", nothing, overwrite("generation_config.json", ""),
       ErrorCode::kCorrupt, {"generation_config.json: the file is empty"}},
      {"no weights", nothing,
       [](const std::string& directory) {
         for (const char* name : {kIndexName, kFirst, kSecond}) remove_file(name)(directory);
       },
       ErrorCode::kNotFound,
       {"holds neither model.safetensors nor model.safetensors.index.json"}},
      {"a shard and no index", nothing,
       [](const std::string& directory) {
         for (const char* name : {kIndexName, kSecond}) remove_file(name)(directory);
       },
       ErrorCode::kCorrupt, {"are 1 shards of 2, and there is no model.safetensors.index.json"}},
      {"weights twice", nothing, overwrite("model.safetensors", "x"), ErrorCode::kCorrupt,
       {"holds both model.safetensors and model.safetensors.index.json"}},
      {"shard missing", nothing, remove_file(kSecond), ErrorCode::kNotFound,
       {"is mapped to model-00002-of-00002.safetensors, which does not exist", "tensor ",
        kIndexName}},
      {"shard empty", nothing, overwrite(kSecond, ""), ErrorCode::kCorrupt,
       {"model-00002-of-00002.safetensors: 0 bytes long"}},
      {"shard a pipe", nothing,
       [](const std::string& dir) {
         std::filesystem::remove(dir + "/" + kSecond);
         ASSERT_EQ(::mkfifo((dir + "/" + kSecond).c_str(), 0600), 0);
       },
       ErrorCode::kInvalidArgument, {"expected a regular file", kSecond}},
      {"shard cut by one byte", nothing,
       [](const std::string& dir) {
         const std::string path = dir + "/" + kFirst;
         std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
       },
       ErrorCode::kCorrupt,
       {"model-00001-of-00002.safetensors: tensor lm_head.weight: ends at byte", "the file has"}},
      {"shard with a wrong header length", nothing,
       [](const std::string& dir) {
         std::string bytes = read_file(dir + "/" + kFirst);
         bytes[7] = '\x80';
         write_file(dir + "/" + kFirst, bytes);
       },
       ErrorCode::kCorrupt, {"model-00001-of-00002.safetensors: the header length is 92233720368"}},
  };
}

std::vector<BadCheckpoint> bad_indexes() {
  return {
      {"index no JSON", nothing, overwrite(kIndexName, "["), ErrorCode::kCorrupt,
       {"model.safetensors.index.json: not valid JSON"}},
      {"index too deep", nothing,
       overwrite(kIndexName,
                 "{\"a\":" + std::string(10000, '[') + std::string(10000, ']') + "}"),
       ErrorCode::kCorrupt, {"nested deeper than 16 levels"}},
      {"index without a map", nothing, overwrite(kIndexName, "{}"), ErrorCode::kCorrupt,
       {"weight_map is missing"}},
      {"index with an empty map", nothing, overwrite(kIndexName, R"({"weight_map":{}})"),
       ErrorCode::kCorrupt, {"weight_map is empty"}},
      {"index with a list", nothing, overwrite(kIndexName, R"({"weight_map":[]})"),
       ErrorCode::kCorrupt, {"weight_map is [], expected an object"}},
      {"index with a duplicate", nothing,
       overwrite(kIndexName, R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})"),
       ErrorCode::kCorrupt, {"key \"a\" stands twice"}},
      {"index with a number", nothing, overwrite(kIndexName, R"({"weight_map":{"a":1}})"),
       ErrorCode::kCorrupt, {"tensor a is mapped to 1, expected the name of a .safetensors file"}},
      {"index leading up", map_norm_to("../x.safetensors"), no_damage, ErrorCode::kCorrupt,
       {"tensor model.norm.weight is mapped to \"../x.safetensors\""}},
      {"index leading to the root", map_norm_to("/etc/x.safetensors"), no_damage,
       ErrorCode::kCorrupt, {"is mapped to \"/etc/x.safetensors\""}},
      {"index into a folder", map_norm_to("sub/x.safetensors"), no_damage, ErrorCode::kCorrupt,
       {"in the same directory"}},
      {"index to another kind of file", map_norm_to("config.json"), no_damage,
       ErrorCode::kCorrupt, {"is mapped to \"config.json\""}},
      {"index to a name with a zero byte", map_norm_to("a\\u0000.safetensors"), no_damage,
       ErrorCode::kCorrupt, {"expected the name of"}},
      {"index to the wrong shard",
       [](SmallCheckpoint& small) { small.index["lm_head.weight"] = kSecond; }, no_damage,
       ErrorCode::kCorrupt,
       {"tensor lm_head.weight is mapped to model-00002-of-00002.safetensors, which does not hold "
        "it; ",
        "model-00001-of-00002.safetensors does"}},
      {"index with a tensor that no shard has",
       [](SmallCheckpoint& small) { small.index["ghost"] = kFirst; }, no_damage,
       ErrorCode::kCorrupt, {"tensor ghost is mapped to model-00001", "no shard holds it"}},
      {"tensor that is not in the index",
       [](SmallCheckpoint& small) { small.index.erase("model.norm.weight"); }, no_damage,
       ErrorCode::kCorrupt, {"tensor model.norm.weight is in the file and not in", kIndexName}},
      {"tensor in two shards",
       [](SmallCheckpoint& small) {
         auto copy = small.find("lm_head.weight");
         copy.file = kSecond;
         small.tensors.push_back(copy);
       },
       no_damage, ErrorCode::kCorrupt,
       {"tensor lm_head.weight is in two files: ", kFirst, kSecond}},
  };
}

std::vector<BadCheckpoint> bad_tensors() {
  const auto drop = [](SmallCheckpoint& small, const std::string& name) {
    std::erase_if(small.tensors, [&](const auto& tensor) { return tensor.what.name == name; });
    small.index.erase(name);
  };
  return {
      {"tensor missing",
       [drop](SmallCheckpoint& small) { drop(small, "model.layers.0.self_attn.sinks"); }, no_damage,
       ErrorCode::kMismatch, {"tensor model.layers.0.self_attn.sinks (bf16 [4]) is missing"}},
      {"tensor misspelt",
       [drop](SmallCheckpoint& small) {
         drop(small, "model.norm.weight");
         small.add({"model.norm.wieght", DType::kBF16, {64}});
       },
       no_damage, ErrorCode::kMismatch,
       {"tensor model.norm.wieght in ", " is unknown, the nearest known names are "
        "model.norm.weight, ", "tensor model.norm.weight (bf16 [64]) is missing"}},
      {"tensor of another layer",
       [](SmallCheckpoint& small) {
         small.add({"model.layers.1.self_attn.sinks", DType::kBF16, {4}});
       },
       no_damage, ErrorCode::kMismatch,
       {"tensor model.layers.1.self_attn.sinks in ", "are model.layers.0.self_attn.sinks, "}},
      {"wrong shape",
       [drop](SmallCheckpoint& small) {
         drop(small, "model.norm.weight");
         small.add({"model.norm.weight", DType::kBF16, {63}});
       },
       no_damage, ErrorCode::kMismatch,
       {"tensor model.norm.weight in ", ": shape [63], expected [64]"}},
      {"transposed",
       [drop](SmallCheckpoint& small) {
         drop(small, "lm_head.weight");
         small.add({"lm_head.weight", DType::kBF16, {64, 48}});
       },
       no_damage, ErrorCode::kMismatch, {"shape [64, 48], expected [48, 64]"}},
      {"wrong dtype",
       [drop](SmallCheckpoint& small) {
         drop(small, "model.norm.weight");
         small.add({"model.norm.weight", DType::kU8, {64}});
       },
       no_damage, ErrorCode::kMismatch,
       {"tensor model.norm.weight in ", ": dtype u8, expected bf16, f16 or f32"}},
      {"plain experts under an mxfp4 config",
       [drop](SmallCheckpoint& small) {
         drop(small, "model.layers.0.mlp.experts.down_proj_blocks");
         drop(small, "model.layers.0.mlp.experts.down_proj_scales");
         small.add({"model.layers.0.mlp.experts.down_proj", DType::kBF16, {3, 32, 64}});
       },
       no_damage, ErrorCode::kMismatch,
       {"down_proj in ", "down_proj_blocks (u8 [3, 64, 1, 16]) is missing (and 1 more)"}},
  };
}

TEST(Checkpoint, EveryDefectIsOneErrorThatNamesFileTensorAndValues) {
  auto cases = bad_configs_and_files();
  for (auto& bad : bad_indexes()) cases.push_back(std::move(bad));
  for (auto& bad : bad_tensors()) cases.push_back(std::move(bad));
  for (const BadCheckpoint& bad : cases) {
    SCOPED_TRACE(bad.what);
    const TempDir dir;
    auto small = SmallCheckpoint::make();
    bad.change(small);
    small.write(dir.path());
    bad.damage(dir.path());
    const auto opened = Checkpoint::open(dir.path());
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code(), bad.code) << opened.error().message();
    EXPECT_THAT(opened.error().message(), HasSubstr(dir.path()));
    for (const std::string& says : bad.says) {
      EXPECT_THAT(opened.error().message(), HasSubstr(says));
    }
  }
}

TEST(Checkpoint, ADirectoryThatIsNoneIsNamed) {
  const TempDir dir;
  EXPECT_EQ(Checkpoint::open(dir.path("absent")).error().code(), ErrorCode::kNotFound);
  write_file(dir.path("file"), "x");
  const auto file = Checkpoint::open(dir.path("file"));
  EXPECT_THAT(file.error().message(), HasSubstr("give the directory that holds config.json"));
}

TEST(Checkpoint, InspectionKeepsTheWholeAccountInsteadOfTheFirstDefect) {
  const TempDir dir;
  auto small = SmallCheckpoint::make();
  small.tensors.pop_back();  // lm_head
  small.index.erase("lm_head.weight");
  small.find("model.norm.weight").what.shape = tensor::Shape{8, 8};
  small.add({"model.norm.bias", DType::kBF16, {64}});
  small.write(dir.path());
  EXPECT_FALSE(Checkpoint::open(dir.path()).ok());
  const auto opened = Checkpoint::open_for_inspection(dir.path());
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  const Account& account = (*opened)->account();
  EXPECT_FALSE(account.complete());
  ASSERT_EQ(account.missing.size(), 1u);
  EXPECT_EQ(account.missing[0].name, "lm_head.weight");
  ASSERT_EQ(account.unknown.size(), 1u);
  EXPECT_EQ(account.unknown[0].name, "model.norm.bias");
  EXPECT_EQ(account.unknown[0].nearest.front(), "model.norm.weight");
  ASSERT_EQ(account.mismatched.size(), 1u);
  EXPECT_THAT(account.mismatched[0], HasSubstr("shape [8, 8], expected [64]"));
}

TEST(NearestNames, ComeByEditDistanceThenByName) {
  const std::vector<std::string> known = {"delta", "beta", "alpha", "bets", "zeta"};
  EXPECT_THAT(nearest_names("beta", known, 3), ElementsAre("beta", "bets", "zeta"));
  EXPECT_THAT(nearest_names("betta", known, 1), ElementsAre("beta"));
  EXPECT_THAT(nearest_names("x", known, 0), ElementsAre());
  EXPECT_EQ(nearest_names("", known, 9).size(), 5u);
  EXPECT_EQ(nearest_names(std::string(100000, 'y'), known, 2).size(), 2u);
}

}  // namespace
}  // namespace holdfast::checkpoint
