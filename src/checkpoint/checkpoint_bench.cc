#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/assert.h"
#include "checkpoint/checkpoint.h"

namespace holdfast::checkpoint {
namespace {

constexpr std::int64_t kTensorBytes = 16 << 20;
constexpr std::size_t kTensorCount = 64;  // 1 GiB in all
constexpr std::size_t kPieceBytes = 4 << 20;

// A file of 64 tensors of 16 MiB, gone with the benchmark. It is read from the page cache: the
// figure is what holdfast adds, and not the disk.
class SyntheticFile {
 public:
  SyntheticFile() {
    std::string pattern = std::filesystem::temp_directory_path() / "holdfast-bench-XXXXXX";
    HF_ASSERT(::mkdtemp(pattern.data()) != nullptr, "no temporary directory");
    directory_ = pattern;
    const std::vector<std::byte> bytes(kTensorBytes, std::byte{0x5A});
    std::vector<TensorToWrite> tensors;
    for (std::size_t i = 0; i < kTensorCount; ++i) {
      tensors.push_back({"tensor." + std::to_string(i), tensor::DType::kU8, {kTensorBytes}, bytes});
    }
    const auto status = write_safetensors(path(), tensors);
    HF_ASSERT(status.ok(), status.error().message());
  }
  ~SyntheticFile() { std::filesystem::remove_all(directory_); }
  SyntheticFile(const SyntheticFile&) = delete;
  SyntheticFile& operator=(const SyntheticFile&) = delete;
  std::string path() const { return directory_ + "/model.safetensors"; }

 private:
  std::string directory_;
};

void set_bytes(benchmark::State& state) {
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * kTensorBytes *
                          static_cast<std::int64_t>(kTensorCount));
}

// Open, validate, and read every tensor, 4 MiB at a time into one buffer (which stays in cache).
void BM_OpenAndReadOneGiB(benchmark::State& state) {
  const SyntheticFile synthetic;
  std::vector<std::byte> to(kPieceBytes);
  for (auto _ : state) {
    const auto file = SafetensorsFile::open(synthetic.path());
    HF_ASSERT(file.ok(), file.error().message());
    for (const TensorEntry& entry : (*file)->header().tensors) {
      for (std::uint64_t at = 0; at < entry.end - entry.begin; at += to.size()) {
        const auto status = (*file)->read(entry, at, to);
        HF_ASSERT(status.ok(), status.error().message());
        benchmark::DoNotOptimize(to.data());
      }
    }
  }
  set_bytes(state);
}
BENCHMARK(BM_OpenAndReadOneGiB)->Unit(benchmark::kMillisecond)->UseRealTime();

// The same through the mapping, page faults included.
void BM_OpenAndCopyOneGiBFromTheMapping(benchmark::State& state) {
  const SyntheticFile synthetic;
  std::vector<std::byte> to(kPieceBytes);
  for (auto _ : state) {
    const auto file = SafetensorsFile::open(synthetic.path());
    HF_ASSERT(file.ok(), file.error().message());
    for (const TensorEntry& entry : (*file)->header().tensors) {
      const auto from = (*file)->data(entry);
      for (std::size_t at = 0; at < from.size(); at += to.size()) {
        std::memcpy(to.data(), from.data() + at, to.size());
        benchmark::DoNotOptimize(to.data());
      }
    }
  }
  set_bytes(state);
}
BENCHMARK(BM_OpenAndCopyOneGiBFromTheMapping)->Unit(benchmark::kMillisecond)->UseRealTime();

void BM_OpenTinyModel(benchmark::State& state) {
  for (auto _ : state) {
    const auto checkpoint = Checkpoint::open(HF_SOURCE_DIR "/models/gptoss-tiny-A");
    HF_ASSERT(checkpoint.ok(), checkpoint.error().message());
    benchmark::DoNotOptimize((*checkpoint)->total_bytes());
  }
}
BENCHMARK(BM_OpenTinyModel)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace holdfast::checkpoint
