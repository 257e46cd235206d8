// Quantising on arrival: an engine on a bf16 checkpoint that serves a quantised scheme is, slot for
// slot and token for token, one on what quantize_checkpoint writes; also after reloads, partial
// ones, and pushes.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "checkpoint/checkpoint.h"
#include "engine/test_support.h"
#include "holdfast/quantize.h"

namespace holdfast::engine {
namespace {

namespace fs = std::filesystem;

// Directories that vanish with the test.
class Scratch {
 public:
  Scratch() {
    std::string pattern = testing::TempDir() + "holdfast-arrival-XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~Scratch() { fs::remove_all(path_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::string quantised(const std::string& source, const std::string& scheme) const {
    QuantizeOptions options;
    options.source = source;
    options.directory = path_ + "/" + fs::path(source).filename().string() + "-" + scheme;
    options.scheme = scheme;
    options.group_size = 64;
    options.threads = 1;
    const auto report = quantize_checkpoint(options);
    EXPECT_TRUE(report.ok()) << report.error().to_string();
    return options.directory;
  }

  // `source` after a training step: in each expert's matrices one value in 64 has another last bit.
  std::string next(const std::string& source) const {
    const std::string copy = path_ + "/next";
    fs::copy(source, copy);
    const auto checkpoint = checkpoint::Checkpoint::open(source);
    EXPECT_TRUE(checkpoint.ok());
    for (const auto& file : (*checkpoint)->files()) {
      const std::string path = copy + "/" + fs::path(file->path()).filename().string();
      fs::permissions(path, fs::perms::owner_write, fs::perm_options::add);
      std::ifstream in(path, std::ios::binary);
      std::stringstream text;
      text << in.rdbuf();
      std::string bytes = text.str();
      for (const auto& entry : file->header().tensors) {
        if (entry.name.find("experts") == entry.name.npos) continue;
        const std::uint64_t begin = file->header().data_begin + entry.begin;
        for (std::uint64_t i = 0; i < entry.end - entry.begin; i += 128) bytes[begin + i] ^= 0x40;
      }
      std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    }
    return copy;
  }

 private:
  std::string path_;
};

struct Case {
  const char* label;
  std::string (*source)();
  const char* reference;
  const char* scheme;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.label; }

EngineOptions arriving(const std::string& source, const std::string& scheme) {
  EngineOptions options = test_options(source);
  options.quantize_experts = scheme;
  if (scheme == "int4") options.quantize_group_size = 64;
  return options;
}

std::map<std::string, std::string> digests(const EngineCore& core) {
  std::map<std::string, std::string> all;
  const CensusReport census = core.census().value();
  EXPECT_TRUE(census.homeless.empty());
  for (const CensusEntry& slot : census.slots) {
    if (!slot.digest.empty()) all.emplace(slot.name, slot.digest);
  }
  EXPECT_GT(all.size(), 20u);
  return all;
}

std::vector<Transcript> tokens(EngineCore& core, const char* reference) {
  auto prompts = read_reference_prompts(reference);
  prompts.resize(3);
  return run_together(core, greedy_requests(prompts));
}

void expect_same(EngineCore& a, EngineCore& b, const char* reference) {
  EXPECT_EQ(digests(a), digests(b));
  const auto x = tokens(a, reference);
  const auto y = tokens(b, reference);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(x[i].same_tokens(y[i])) << "prompt " << i;
}

Result<ReloadReport> reload(EngineCore& core, const std::string& to, ReloadOptions options = {}) {
  HF_TRY(core.begin_reload(to, options));
  return core.finish_reload();
}

class Arrival : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Schemes, Arrival,
    testing::Values(Case{"GptOssMxfp4", model_a_bf16, "gptoss-tiny-A", "mxfp4"},
                    Case{"QwenFp8Block", model_qwen_bf16, "qwen3moe-tiny-bf16", "fp8-block"},
                    Case{"QwenNvfp4", model_qwen_bf16, "qwen3moe-tiny-bf16", "nvfp4"},
                    Case{"QwenInt4", model_qwen_bf16, "qwen3moe-tiny-bf16", "int4"},
                    Case{"MixtralMxfp8", model_mixtral, "mixtral-tiny-bf16", "mxfp8"},
                    Case{"MixtralFp8Channel", model_mixtral, "mixtral-tiny-bf16", "fp8-channel"}),
    [](const auto& parameter) { return std::string(parameter.param.label); });

TEST_P(Arrival, AColdLoadIsThatOfTheQuantisedCheckpoint) {
  const Scratch scratch;
  const auto& [label, source, reference, scheme] = GetParam();
  const auto cold = open_core(test_options(scratch.quantised(source(), scheme)));
  const auto core = open_core(arriving(source(), scheme));
  expect_same(*core, *cold, reference);
}

TEST_P(Arrival, AReloadIsAColdLoadOfTheNewWeightsAndBack) {
  const Scratch scratch;
  const auto& [label, source, reference, scheme] = GetParam();
  const std::string next = scratch.next(source());
  const auto core = open_core(arriving(source(), scheme));
  const auto before = digests(*core);
  const auto report = reload(*core, next);
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_LE(report->measured_peak_bytes, report->declared_peak_bytes);
  const auto cold = open_core(test_options(scratch.quantised(next, scheme)));
  expect_same(*core, *cold, reference);
  EXPECT_NE(digests(*core), before);
  ASSERT_TRUE(reload(*core, source(), {.commit = "copy"}).ok());
  EXPECT_EQ(digests(*core), before);
}

TEST_P(Arrival, OneExpertsReloadChangesItsLayersSlotsAndNoOther) {
  const Scratch scratch;
  const auto& [label, source, reference, scheme] = GetParam();
  const std::string next = scratch.next(source());
  const auto core = open_core(arriving(source(), scheme));
  const auto before = digests(*core);
  const auto report = reload(*core, next, {.scope = {.experts = {{1, 2}}}});
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  std::size_t changed = 0;
  for (const auto& [name, digest] : digests(*core)) {
    if (digest == before.at(name)) continue;
    EXPECT_TRUE(name.starts_with("layers.1.experts.")) << name;
    ++changed;
  }
  EXPECT_GT(changed, 0u);
}

TEST_P(Arrival, APushOfPlainTensorsIsThatReload) {
  const Scratch scratch;
  const auto& [label, source, reference, scheme] = GetParam();
  const std::string next = scratch.next(source());
  const auto core = open_core(arriving(source(), scheme));
  const auto checkpoint = checkpoint::Checkpoint::open(next);
  ASSERT_TRUE(checkpoint.ok());
  const auto id = core->begin_push({}, {});
  ASSERT_TRUE(id.ok()) << id.error().to_string();
  for (const auto& tensor : (*checkpoint)->tensors()) {
    const Status pushed =
        core->push(*id, tensor.entry->name, 0, tensor.file->data(*tensor.entry));
    ASSERT_TRUE(pushed.ok()) << pushed.error().to_string();
  }
  const Status ended = core->end_push(*id);
  ASSERT_TRUE(ended.ok()) << ended.error().to_string();
  ASSERT_TRUE(core->finish_reload().ok());
  const auto cold = open_core(test_options(scratch.quantised(next, scheme)));
  EXPECT_EQ(digests(*core), digests(*cold));
}

TEST(ArrivalOptions, WhatCannotBeQuantisedIsRefused) {
  const auto error_of = [](const EngineOptions& options) {
    const auto core = EngineCore::open(options);
    return core.ok() ? std::string("ok") : core.error().to_string();
  };
  EXPECT_NE(error_of(arriving(model_a(), "mxfp4")).find("already"), std::string::npos);
  EXPECT_NE(error_of(arriving(model_a_bf16(), "nvfp4")).find("nvfp4"), std::string::npos);
  EXPECT_NE(error_of(arriving(model_a_bf16(), "int3")).find("quantize_experts is \"int3\""),
            std::string::npos);
  EngineOptions group = arriving(model_qwen_bf16(), "int4");
  group.quantize_group_size = 96;
  EXPECT_NE(error_of(group).find("multiple of 96"), std::string::npos);
  for (const char* scheme : {"", "nvfp4"}) {
    group.quantize_experts = scheme;
    EXPECT_NE(error_of(group).find("quantize_group_size is 96"), std::string::npos) << scheme;
  }
}

TEST(ArrivalOptions, AQuantisedSourceIsNotWhatArrives) {
  const auto core = open_core(arriving(model_a_bf16(), "mxfp4"));
  const auto before = digests(*core);
  EXPECT_FALSE(reload(*core, model_a()).ok());
  EXPECT_EQ(digests(*core), before);
  ASSERT_TRUE(reload(*core, model_a_bf16()).ok());
  EXPECT_EQ(digests(*core), before);
}

}  // namespace
}  // namespace holdfast::engine
