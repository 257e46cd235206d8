// What a reload costs, step by step, for one weight slot and one derived slot of together 1 MB to
// 1 GB. Each iteration is a whole reload; the time is that of one step, from its report.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "checkpoint/safetensors.h"
#include "device/cpu/cpu_device.h"
#include "reload/transaction.h"

namespace holdfast::reload {
namespace {

using tensor::DType;

constexpr std::int64_t kMB = 1'000'000;
constexpr std::int64_t kSlices = 8;

// bf16 values that are finite, repeated: drawing a gigabyte would take longer than staging it.
class MemorySource final : public Source {
 public:
  explicit MemorySource(std::vector<SourceTensor> tensors)
      : tensors_(std::move(tensors)), bytes_(std::size_t{64} << 20) {
    base::Rng rng(1);
    for (std::size_t i = 0; i < bytes_.size(); i += 8) {
      const std::uint64_t word = rng.next() & 0xBFFFBFFFBFFFBFFFull;
      std::memcpy(bytes_.data() + i, &word, 8);
    }
  }
  std::string describe() const override { return "memory"; }
  const config::ModelConfig& config() const override { return config_; }
  std::span<const SourceTensor> tensors() const override { return tensors_; }
  Status read(std::size_t, std::uint64_t offset, std::span<std::byte> to) override {
    std::memcpy(to.data(), bytes_.data() + offset % (bytes_.size() / 2), to.size());
    return {};
  }
  Status finish() override { return {}; }

 private:
  config::ModelConfig config_;
  std::vector<SourceTensor> tensors_;
  std::vector<std::byte> bytes_;
};

// A safetensors file, read as a checkpoint's shards are; in the page cache after the first pass.
class FileSource final : public Source {
 public:
  explicit FileSource(Source& content)
      : path_(std::filesystem::temp_directory_path() /
              ("holdfast-reload-bench-" + std::to_string(::getpid()) + ".safetensors")) {
    std::vector<std::vector<std::byte>> data;
    std::vector<checkpoint::TensorToWrite> writes;
    for (std::size_t i = 0; i < content.tensors().size(); ++i) {
      const SourceTensor& tensor = content.tensors()[i];
      auto& bytes = data.emplace_back(tensor::byte_size(tensor.dtype, tensor.shape).value());
      for (std::size_t at = 0; at < bytes.size(); at += kMB) {
        const std::size_t count = std::min<std::size_t>(kMB, bytes.size() - at);
        content.read(i, at, std::span(bytes).subspan(at, count)).value();
      }
      tensors_.push_back(tensor);
      writes.push_back({tensor.name, tensor.dtype, tensor.shape, bytes});
    }
    checkpoint::write_safetensors(path_, writes).value();
    file_ = checkpoint::SafetensorsFile::open(path_).value();
  }
  ~FileSource() override { std::filesystem::remove(path_); }
  std::string describe() const override { return "memory"; }
  const config::ModelConfig& config() const override { return config_; }
  std::span<const SourceTensor> tensors() const override { return tensors_; }
  Status read(std::size_t index, std::uint64_t offset, std::span<std::byte> to) override {
    return file_->read(*file_->find(tensors_[index].name), offset, to);
  }
  Status finish() override { return file_->check_unchanged(); }

 private:
  std::string path_;
  config::ModelConfig config_;
  std::vector<SourceTensor> tensors_;
  std::unique_ptr<checkpoint::SafetensorsFile> file_;
};

Status copy_slice(device::Stream&, std::span<const tensor::TensorView> in,
                  std::span<const tensor::TensorView> out) {
  std::memcpy(out[0].address, in[0].address, in[0].bytes());
  return {};
}

// Half of `bytes` lands unchanged, half goes through a sliced derivation.
struct BenchModel {
  explicit BenchModel(std::int64_t bytes) {
    const tensor::Shape shape{kSlices, bytes / 4 / kSlices};
    const auto weight =
        registry.define({.name = "weight", .dtype = DType::kBF16, .shape = shape, .arena = {}})
            .value();
    registry.bind({.name = "w", .dtype = DType::kBF16, .shape = shape, .slot = weight}).value();
    const auto packed = registry
                            .define({.name = "packed",
                                     .slot_class = storage::SlotClass::kDerived,
                                     .dtype = DType::kBF16,
                                     .shape = shape,
                                     .arena = {}})
                            .value();
    const auto blocks =
        registry.bind({.name = "b", .dtype = DType::kBF16, .shape = shape, .slot = {}}).value();
    registry
        .derive({.name = "pack",
                 .inputs = {blocks},
                 .outputs = {packed},
                 .slice_count = kSlices,
                 .function = copy_slice})
        .value();
    registry.seal(*device).value();
    stream = device->create_stream(1).value();
    source = std::make_unique<MemorySource>(
        std::vector<SourceTensor>{{"w", DType::kBF16, shape}, {"b", DType::kBF16, shape}});
  }
  TransactionReport reload(CommitStrategy strategy) {
    auto plan = make_plan(registry, {}, *source, strategy).value();
    auto transaction =
        Transaction::begin(registry, std::move(plan), {.clock = &clock, .fault = {}}).value();
    if (pushed_chunk == 0) transaction->stage(*source, *stream).value();
    if (pushed_chunk > 0) push(*transaction);
    transaction->prepare().value();
    transaction->commit().value();
    transaction->verify().value();
    return transaction->report();
  }
  // Tensor after tensor, front to back, as an upload of a safetensors file comes.
  void push(Transaction& transaction) {
    for (std::size_t i = 0; i < source->tensors().size(); ++i) {
      const SourceTensor& tensor = source->tensors()[i];
      const std::uint64_t bytes = tensor::byte_size(tensor.dtype, tensor.shape).value();
      chunk.resize(pushed_chunk);
      for (std::uint64_t at = 0; at < bytes; at += pushed_chunk) {
        const auto count = std::min<std::uint64_t>(pushed_chunk, bytes - at);
        source->read(i, at, std::span(chunk).first(count)).value();
        const Fragment fragment{
            .transaction = transaction.id(), .tensor = tensor.name, .offset_bytes = at};
        transaction.put(fragment, std::span(chunk).first(count), *stream).value();
      }
    }
    transaction.finish_staging(*stream).value();
  }
  base::SteadyClock clock;
  std::uint64_t pushed_chunk = 0;  // bytes; 0: the source is read instead
  std::vector<std::byte> chunk;
  std::unique_ptr<device::Device> device = device::make_cpu_device();
  storage::Registry registry;
  std::unique_ptr<device::Stream> stream;
  std::unique_ptr<Source> source;
};

template <std::int64_t TransactionReport::*Step>
void measure(benchmark::State& state, BenchModel& model, CommitStrategy strategy) {
  model.reload(strategy);
  TransactionReport report;
  for (auto _ : state) {
    report = model.reload(strategy);
    state.SetIterationTime(static_cast<double>(report.*Step) * 1e-9);
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(report.versioned_bytes) * state.iterations());
  const auto sum = [](std::uint64_t device, std::uint64_t host) {
    return static_cast<double>(device + host);
  };
  state.counters["declared/measured peak"] =
      sum(report.declared_peak_device_bytes, report.declared_peak_host_bytes) /
      sum(report.measured_peak_device_bytes, report.measured_peak_host_bytes);
}

template <std::int64_t TransactionReport::*Step, CommitStrategy Strategy>
void BM_Reload(benchmark::State& state) {
  BenchModel model(state.range(0) * kMB);
  measure<Step>(state, model, Strategy);
}

void BM_StageFromFile(benchmark::State& state) {
  BenchModel model(state.range(0) * kMB);
  model.source = std::make_unique<FileSource>(*model.source);
  measure<&TransactionReport::stage_ns>(state, model, CommitStrategy::kRemap);
}

// The time inside of put, without that of whoever has the bytes.
void BM_StagePushed(benchmark::State& state, std::uint64_t chunk) {
  BenchModel model(state.range(0) * kMB);
  model.pushed_chunk = chunk;
  measure<&TransactionReport::stage_ns>(state, model, CommitStrategy::kRemap);
}

constexpr auto kRemap = CommitStrategy::kRemap;
constexpr auto kCopy = CommitStrategy::kCopy;
constexpr auto kStream = CommitStrategy::kStream;
double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}
// The least of several runs is what the machine can do; the median says how busy it was.
void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgName("MB")->Arg(1)->Arg(100)->Arg(1000)->UseManualTime()->Unit(benchmark::kMicrosecond);
  bench->Iterations(1)->Repetitions(9)->ReportAggregatesOnly()->ComputeStatistics("min", least);
}
BENCHMARK(BM_Reload<&TransactionReport::stage_ns, kRemap>)->Name("stage/memory")->Apply(sizes);
BENCHMARK(BM_StageFromFile)->Name("stage/file")->Apply(sizes);
BENCHMARK_CAPTURE(BM_StagePushed, 64K, 64u << 10)->Name("stage/pushed 64 KiB")->Apply(sizes);
BENCHMARK_CAPTURE(BM_StagePushed, 1M, 1u << 20)->Name("stage/pushed 1 MiB")->Apply(sizes);
BENCHMARK(BM_Reload<&TransactionReport::prepare_ns, kRemap>)->Name("prepare")->Apply(sizes);
BENCHMARK(BM_Reload<&TransactionReport::pause_ns, kRemap>)->Name("pause/remap")->Apply(sizes);
BENCHMARK(BM_Reload<&TransactionReport::pause_ns, kCopy>)->Name("pause/copy")->Apply(sizes);
BENCHMARK(BM_Reload<&TransactionReport::pause_ns, kStream>)->Name("pause/stream")->Apply(sizes);
BENCHMARK(BM_Reload<&TransactionReport::verify_ns, kRemap>)->Name("verify")->Apply(sizes);

}  // namespace
}  // namespace holdfast::reload
