// Random checkpoints: the published form, the same bytes from one seed, and nothing left of one
// that failed.
#include "holdfast/random_checkpoint.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <set>

#include "checkpoint/random_model.h"
#include "checkpoint/random_values.h"
#include "checkpoint/test_files.h"
#include "tensor/codecs.h"

namespace holdfast::checkpoint {
namespace {

RandomCheckpointOptions tiny(const TempDir& dir, const std::string& name) {
  RandomCheckpointOptions options;
  options.like = "tiny";
  options.seed = 7;
  options.directory = dir.path(name);
  options.max_shard_bytes = 1'000'000;
  return options;
}

std::set<std::string> files_in(const std::string& directory) {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    files.insert(entry.path().filename());
  }
  return files;
}

std::unique_ptr<Checkpoint> opened(const std::string& directory) {
  auto checkpoint = Checkpoint::open(directory);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message();
  return checkpoint.ok() ? std::move(*checkpoint) : nullptr;
}

std::span<const std::byte> bytes_of(const Checkpoint& checkpoint, const std::string& name) {
  const LocatedTensor* tensor = checkpoint.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  return tensor->file->data(*tensor->entry);
}

std::vector<float> reals_of(const Checkpoint& checkpoint, const std::string& name) {
  const auto bytes = bytes_of(checkpoint, name);
  std::vector<float> values(bytes.size() / 2);
  EXPECT_TRUE(tensor::decode_to_f32(tensor::DType::kBF16, bytes.data(),
                                    static_cast<std::int64_t>(values.size()), values.data())
                  .ok());
  return values;
}

double root_mean_square(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}


TEST(RandomCheckpoint, OpensAndHasTheTinyModelsConfig) {
  const TempDir dir;
  const auto report = make_random_checkpoint(tiny(dir, "a"));
  ASSERT_TRUE(report.ok()) << report.error().message();
  const auto made = opened(dir.path("a"));
  const auto trained = opened(HF_SOURCE_DIR "/models/gptoss-tiny-A");
  ASSERT_TRUE(made && trained);
  EXPECT_EQ(made->config(), trained->config());
  EXPECT_EQ(report->tensors, made->tensors().size());
  EXPECT_EQ(report->bytes, made->total_bytes());
  EXPECT_EQ(made->total_bytes(), trained->total_bytes());
  EXPECT_EQ(report->shards, 4u);
  EXPECT_EQ(files_in(dir.path("a")),
            (std::set<std::string>{"config.json", "generation_config.json",
                                   "model-00000-of-00003.safetensors",
                                   "model-00001-of-00003.safetensors",
                                   "model-00002-of-00003.safetensors",
                                   "model-00003-of-00003.safetensors",
                                   "model.safetensors.index.json"}));
  for (const auto& file : made->files()) {
    EXPECT_LE(std::filesystem::file_size(file->path()), 1'000'000u + file->header().data_begin);
  }
}

TEST(RandomCheckpoint, TheSameSeedGivesTheSameBytesWhateverThreadsAndShards) {
  const TempDir dir;
  auto options = tiny(dir, "a");
  options.threads = 1;
  ASSERT_TRUE(make_random_checkpoint(options).ok());
  options.directory = dir.path("b");
  options.threads = 5;
  options.max_shard_bytes = kMaxPublishedShardBytes;
  ASSERT_TRUE(make_random_checkpoint(options).ok());
  options.directory = dir.path("c");
  options.seed = 8;
  ASSERT_TRUE(make_random_checkpoint(options).ok());
  const auto a = opened(dir.path("a")), b = opened(dir.path("b")), c = opened(dir.path("c"));
  ASSERT_TRUE(a && b && c);
  EXPECT_EQ(b->files().size(), 1u);
  for (const LocatedTensor& tensor : a->tensors()) {
    const auto here = tensor.file->data(*tensor.entry);
    EXPECT_TRUE(std::ranges::equal(here, bytes_of(*b, tensor.entry->name))) << tensor.entry->name;
    EXPECT_FALSE(std::ranges::equal(here, bytes_of(*c, tensor.entry->name))) << tensor.entry->name;
  }
}

TEST(RandomCheckpoint, AnyPartOfATensorCanBeMadeByItself) {
  const ExpectedTensor what{"model.layers.1.self_attn.q_proj.weight", tensor::DType::kBF16, {9, 7}};
  for (const bool next : {false, true}) {
    const RandomTensor tensor(what, 3, next);
    std::vector<std::byte> whole(126), part(126);
    tensor.fill(0, whole);
    tensor.fill(64, std::span(part).subspan(64));  // ends in the middle of a word
    tensor.fill(0, std::span(part).first(64));
    EXPECT_EQ(whole, part);
  }
}

TEST(RandomCheckpoint, TheNextOneDiffersALittleInEveryTensor) {
  const TempDir dir;
  auto options = tiny(dir, "a");
  options.next = dir.path("b");
  ASSERT_TRUE(make_random_checkpoint(options).ok());
  const auto a = opened(dir.path("a")), b = opened(dir.path("b"));
  ASSERT_TRUE(a && b);
  EXPECT_EQ(read_file(dir.path("a/config.json")), read_file(dir.path("b/config.json")));
  EXPECT_TRUE(config::check_replaceable(a->config(), b->config()).ok());
  for (const LocatedTensor& tensor : a->tensors()) {
    const std::string& name = tensor.entry->name;
    const auto before = tensor.file->data(*tensor.entry), after = bytes_of(*b, name);
    EXPECT_FALSE(std::ranges::equal(before, after)) << name;
    if (tensor.entry->dtype == tensor::DType::kBF16) {
      const auto old = reals_of(*a, name), now = reals_of(*b, name);
      for (std::size_t i = 0; i < old.size(); ++i) {
        EXPECT_LE(std::abs(now[i] - old[i]), std::abs(old[i]) / 128 + 1e-37f) << name << " " << i;
      }
      continue;
    }
    const bool scales = name.ends_with("_scales");
    for (std::size_t i = 0; i < before.size(); ++i) {
      const int change = std::to_integer<int>(before[i] ^ after[i]);
      // A neighbour: the last bit of a scale or of either code. (2^7 and 2^8 differ in all bits.)
      if (scales) {
        EXPECT_LE(std::abs(std::to_integer<int>(before[i]) - std::to_integer<int>(after[i])), 1);
      } else {
        EXPECT_EQ(change & ~0x11, 0) << name << " " << i;
      }
    }
  }
}

TEST(RandomCheckpoint, WeightsHaveTheSizesThatKeepActivationsSane) {
  const TempDir dir;
  ASSERT_TRUE(make_random_checkpoint(tiny(dir, "a")).ok());
  const auto a = opened(dir.path("a"));
  ASSERT_TRUE(a);
  const auto size = [&a](const std::string& name) { return root_mean_square(reals_of(*a, name)); };
  EXPECT_NEAR(size("model.embed_tokens.weight"), 1.0, 0.01);
  EXPECT_NEAR(size("model.layers.0.self_attn.q_proj.weight") * 16, 1.0, 0.02);  // 256 inputs
  EXPECT_NEAR(size("model.norm.weight"), 1.0, 0.02);
  EXPECT_LT(size("model.layers.3.self_attn.sinks"), 0.3);
  EXPECT_LT(size("model.layers.3.mlp.router.bias"), 0.1);
  const auto codes = bytes_of(*a, "model.layers.0.mlp.experts.gate_up_proj_blocks");
  const auto scales = bytes_of(*a, "model.layers.0.mlp.experts.gate_up_proj_scales");
  std::vector<float> values(codes.size() * 2);
  std::set<int> seen;
  for (std::size_t block = 0; block < scales.size(); ++block) {
    std::array<std::uint8_t, 16> packed;
    std::memcpy(packed.data(), codes.data() + 16 * block, 16);
    for (const std::uint8_t byte : packed) seen.insert(byte & 15);
    tensor::decode_mxfp4_block(packed, std::to_integer<std::uint8_t>(scales[block]),
                               std::span<float, 32>(values.data() + 32 * block, 32));
  }
  EXPECT_EQ(seen.size(), 16u);  // every code
  const double gain = root_mean_square(values) * 16;
  EXPECT_GT(gain, 0.7);  // a power of two next to 1
  EXPECT_LT(gain, 1.42);
}

TEST(RandomCheckpoint, TheModelsHaveThePublishedSizes) {
  struct Case {
    const char* like;
    std::int64_t layers, experts;
    std::uint64_t tensors, bytes;
  };
  // 20.9 and 116.8 billion parameters; bytes as the published indexes sum them up.
  for (const Case& c : {Case{"gpt-oss-20b", 24, 32, 459, 13'761'264'768},
                        Case{"gpt-oss-120b", 36, 128, 687, 65'248'815'744}}) {
    const auto model = random_model(c.like, "full");
    ASSERT_TRUE(model.ok());
    const auto config = config::parse_model_config(model->config_json, model->generation_json);
    ASSERT_TRUE(config.ok()) << config.error().message();
    EXPECT_EQ(config->layer_count, c.layers);
    EXPECT_EQ(config->expert_count, c.experts);
    EXPECT_EQ(config->experts_per_token, 4);
    EXPECT_EQ(config->hidden_size, 2880);
    EXPECT_EQ(config->vocab_size, 201088);
    EXPECT_EQ(config->eos_token_ids, (std::vector<std::int32_t>{200002, 199999, 200012}));
    EXPECT_EQ(config->rope.factor, 32.0);
    EXPECT_FALSE(config->rope.truncate);
    std::uint64_t bytes = 0;
    const auto expected = (*choose_dialect(*config))->expected(*config);
    for (const ExpectedTensor& tensor : expected) {
      bytes += *tensor::byte_size(tensor.dtype, tensor.shape);
    }
    EXPECT_EQ(expected.size(), c.tensors);
    EXPECT_EQ(bytes, c.bytes) << c.like;
  }
}

TEST(RandomCheckpoint, EveryModelAtTinyScaleOpens) {
  const TempDir dir;
  for (const std::string& like : random_checkpoint_models()) {
    auto options = tiny(dir, like);
    options.like = like;
    options.scale = "tiny";
    ASSERT_TRUE(make_random_checkpoint(options).ok());
    const auto made = opened(dir.path(like));
    ASSERT_TRUE(made);
    EXPECT_EQ(made->config().expert_count, like == "gpt-oss-120b" ? 32 : 8);
  }
}

TEST(RandomCheckpoint, WhatIsWrongIsRefusedByName) {
  const TempDir dir;
  const auto refused = [](const RandomCheckpointOptions& options, ErrorCode code,
                          const std::string& word) {
    const auto made = make_random_checkpoint(options);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code(), code) << made.error().message();
    EXPECT_NE(made.error().message().find(word), std::string::npos) << made.error().message();
  };
  auto options = tiny(dir, "a");
  options.like = "gpt-5";
  refused(options, ErrorCode::kInvalidArgument, "gpt-oss-120b");
  options = tiny(dir, "a");
  options.scale = "small";
  refused(options, ErrorCode::kInvalidArgument, "small");
  options = tiny(dir, "missing/a");
  refused(options, ErrorCode::kNotFound, "missing/a");
  options = tiny(dir, "a");
  options.directory = "";
  refused(options, ErrorCode::kInvalidArgument, "empty");
  options = tiny(dir, "file");
  write_file(dir.path("file"), "x");
  refused(options, ErrorCode::kInvalidArgument, "not a directory");
  options = tiny(dir, "a");
  options.next = dir.path("../" + std::filesystem::path(dir.path()).filename().string() + "/a");
  refused(options, ErrorCode::kInvalidArgument, "are one");
  options.next = dir.path("a/b");
  refused(options, ErrorCode::kInvalidArgument, "lies in");
  std::filesystem::create_directory(dir.path("full"));
  write_file(dir.path("full/mine"), "kept");
  options = tiny(dir, "a");
  options.next = dir.path("full");
  refused(options, ErrorCode::kInvalidArgument, "mine");
  EXPECT_EQ(read_file(dir.path("full/mine")), "kept");
  EXPECT_EQ(files_in(dir.path()), (std::set<std::string>{"file", "full"}));  // and no "a"
}

TEST(RandomCheckpoint, AnEmptyDirectoryIsTakenAndStaysAfterAFailure) {
  const TempDir dir;
  std::filesystem::create_directory(dir.path("a"));
  auto options = tiny(dir, "a");
  options.next = dir.path("b");
  int asked = 0;
  options.threads = 1;
  options.cancelled = [&asked] { return ++asked == 3; };
  const auto made = make_random_checkpoint(options);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), ErrorCode::kCancelled);
  EXPECT_TRUE(files_in(dir.path("a")).empty());
  EXPECT_EQ(files_in(dir.path()), std::set<std::string>{"a"});
  options.cancelled = {};
  EXPECT_TRUE(make_random_checkpoint(options).ok());
}

TEST(RandomCheckpoint, AFileOverTheProcesssLimitLeavesNothing) {
  const TempDir dir;
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{500'000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto made = make_random_checkpoint(tiny(dir, "a"));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), ErrorCode::kResourceExhausted) << made.error().message();
  EXPECT_NE(made.error().message().find("model-0000"), std::string::npos);
  EXPECT_TRUE(files_in(dir.path()).empty());
}

TEST(RandomCheckpoint, AModelLargerThanTheDiskIsRefusedBeforeAByteIsWritten) {
  const TempDir dir;
  struct stat memory{};
  if (::stat("/dev/shm", &memory) != 0) GTEST_SKIP() << "no /dev/shm";
  const auto space = std::filesystem::space("/dev/shm");
  RandomCheckpointOptions options;
  options.like = "gpt-oss-120b";
  if (space.available > 65'000'000'000) GTEST_SKIP() << "/dev/shm is larger than the model";
  options.directory = "/dev/shm/holdfast-random-" + std::to_string(::getpid());
  const auto made = make_random_checkpoint(options);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), ErrorCode::kResourceExhausted) << made.error().message();
  EXPECT_NE(made.error().message().find("free"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(options.directory));
}

TEST(RandomCheckpoint, ADirectoryThatCannotBeWrittenIsAnError) {
  const TempDir dir;
  std::filesystem::create_directory(dir.path("a"));
  std::filesystem::permissions(dir.path("a"), std::filesystem::perms(0500));
  // Root may write anywhere, so it is nobody for the while.
  const bool root = ::geteuid() == 0;
  ASSERT_TRUE(!root || ::seteuid(65534) == 0);
  const auto made = make_random_checkpoint(tiny(dir, "a"));
  ASSERT_TRUE(!root || ::seteuid(0) == 0);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), ErrorCode::kIo) << made.error().message();
}

}  // namespace
}  // namespace holdfast::checkpoint
