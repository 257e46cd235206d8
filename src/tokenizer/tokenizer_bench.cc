// Load time of the 200k-entry tokenizer and single-thread encode speed, in bytes of text a second.
#include <benchmark/benchmark.h>
#include <simdjson.h>

#include <algorithm>
#include <filesystem>

#include "tokenizer/stream_decoder.h"
#include "tokenizer/test_support.h"
#include "tokenizer/tokenizer.h"

namespace holdfast::tokenizer {
namespace {

const std::string& json() {
  static const std::string text = o200k_json();
  return text;
}

const Tokenizer* o200k(benchmark::State& state) {
  if (json().empty()) {
    state.SkipWithError("o200k_harmony.tokenizer.json.xz (tests/golden) or xz is not there");
    return nullptr;
  }
  static const Tokenizer tokenizer = Tokenizer::parse(json()).value();
  return &tokenizer;
}

// English and code: this project's own sources and documents, in order of their paths.
std::string project_text() {
  std::vector<std::string> paths;
  for (const char* folder : {"src", "include", "cmake", "cli", "docs"}) {
    const auto root = std::filesystem::path(HF_SOURCE_DIR) / folder;
    if (!std::filesystem::exists(root)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      if (entry.is_regular_file()) paths.push_back(entry.path().string());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::string text;
  for (const std::string& path : paths) text += read_file(path);
  return text;
}

// Many scripts, white space, emoji, digits, code: the texts of the golden vectors.
std::string mixed_text() {
  simdjson::dom::parser parser;
  std::istringstream lines(read_file(golden_path("o200k_vectors.jsonl")));
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    text += std::string_view(parser.parse(line)["text"]);
  }
  return text;
}

void encode(benchmark::State& state, const std::string& text, bool keep_words) {
  const Tokenizer* tokenizer = o200k(state);
  if (tokenizer == nullptr) return;
  EncodeScratch scratch;
  std::size_t tokens = 0;
  for (auto _ : state) {
    if (!keep_words) scratch = EncodeScratch();
    tokens = tokenizer->encode(text, {}, scratch).value().size();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
  state.counters["text_bytes"] = static_cast<double>(text.size());
  state.counters["tokens"] = static_cast<double>(tokens);
}

void BM_LoadO200k(benchmark::State& state) {
  if (o200k(state) == nullptr) return;
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::parse(json()).ok());
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(json().size()));
}
BENCHMARK(BM_LoadO200k)->Unit(benchmark::kMillisecond);

void BM_EncodeProjectText(benchmark::State& state) { encode(state, project_text(), true); }
BENCHMARK(BM_EncodeProjectText);
void BM_EncodeProjectTextWithAFreshScratch(benchmark::State& state) {
  encode(state, project_text(), false);
}
BENCHMARK(BM_EncodeProjectTextWithAFreshScratch);
void BM_EncodeMixedText(benchmark::State& state) { encode(state, mixed_text(), true); }
BENCHMARK(BM_EncodeMixedText);
void BM_EncodeMixedTextWithAFreshScratch(benchmark::State& state) {
  encode(state, mixed_text(), false);
}
BENCHMARK(BM_EncodeMixedTextWithAFreshScratch);
void BM_EncodeOneWordOfOneMegabyte(benchmark::State& state) {
  encode(state, std::string(1'000'000, 'a'), true);
}
BENCHMARK(BM_EncodeOneWordOfOneMegabyte)->Unit(benchmark::kMillisecond);

void BM_StreamDecode(benchmark::State& state) {
  const Tokenizer* tokenizer = o200k(state);
  if (tokenizer == nullptr) return;
  const auto ids = tokenizer->encode(mixed_text()).value();
  for (auto _ : state) {
    StreamDecoder decoder(*tokenizer);
    for (const std::int32_t id : ids) benchmark::DoNotOptimize(decoder.push(id).value());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(ids.size()));
}
BENCHMARK(BM_StreamDecode);

}  // namespace
}  // namespace holdfast::tokenizer
