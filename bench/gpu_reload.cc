// gpu_reload A B [--out FILE] [--batch N]...: what a reload of a model on a GPU costs, and what it
// does to decode meanwhile. A and B are two checkpoints of one model; both are held in page-locked
// memory besides, as a trainer on the same machine would have them. One JSON line for each
// measurement, and a table row on stdout. Not a test: it ends with 1 when something fails.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine_core.h"

namespace holdfast {
namespace {

constexpr int kPromptTokens = 8;
constexpr double kUndisturbedMs = 600;  // of steps that a reload's are compared with

using Clock = std::chrono::steady_clock;
using engine::EngineCore;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

template <typename T>
T must(Result<T> result, const char* what) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "%s: %s\n", what, result.error().to_string().c_str());
  std::exit(1);
}
void must(Status status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, status.error().to_string().c_str());
  std::exit(1);
}

// All tensors of a checkpoint in memory that is page-locked, and given back at the end.
class LockedWeights {
 public:
  LockedWeights(const std::string& directory, device::Device& device)
      : checkpoint_(must(checkpoint::Checkpoint::open(directory), "opening")) {
    std::size_t bytes = 0;
    for (const auto& located : checkpoint_->tensors()) {
      offsets_.push_back(bytes);
      bytes += (size_of(located) + kAlignment - 1) / kAlignment * kAlignment;
    }
    bytes_ = bytes;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::exit(1);
    static_cast<void>(madvise(memory, bytes, MADV_HUGEPAGE));
    memory_ = static_cast<std::byte*>(memory);
    fill();
    lock_ = must(device.page_lock({memory_, bytes_}), "page-locking");
  }
  ~LockedWeights() {
    lock_.reset();
    static_cast<void>(munmap(memory_, bytes_));
  }
  LockedWeights(const LockedWeights&) = delete;
  LockedWeights& operator=(const LockedWeights&) = delete;

  std::vector<MemoryTensor> tensors() const {
    std::vector<MemoryTensor> tensors;
    for (std::size_t i = 0; i < offsets_.size(); ++i) {
      const auto& located = checkpoint_->tensors()[i];
      const auto dims = located.entry->shape.dims();
      tensors.push_back(
          {.info = {.name = located.entry->name,
                    .dtype = std::string(tensor::safetensors_dtype_name(located.entry->dtype)),
                    .shape = {dims.begin(), dims.end()}},
           .bytes = {memory_ + offsets_[i], size_of(located)}});
    }
    return tensors;
  }

 private:
  static constexpr std::size_t kAlignment = 256;
  static std::size_t size_of(const checkpoint::LocatedTensor& located) {
    return tensor::byte_size(located.entry->dtype, located.entry->shape).value();
  }
  void fill() {
    constexpr std::size_t kPieceBytes = std::size_t{16} << 20;
    std::vector<std::pair<std::size_t, std::size_t>> pieces;
    for (std::size_t i = 0; i < offsets_.size(); ++i) {
      const std::size_t bytes = size_of(checkpoint_->tensors()[i]);
      for (std::size_t at = 0; at < bytes; at += kPieceBytes) pieces.emplace_back(i, at);
    }
    std::atomic<std::size_t> next{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < std::thread::hardware_concurrency(); ++t) {
      threads.emplace_back([&] {
        for (std::size_t p = next++; p < pieces.size(); p = next++) {
          const auto& [index, at] = pieces[p];
          const auto& located = checkpoint_->tensors()[index];
          const std::size_t bytes = std::min(kPieceBytes, size_of(located) - at);
          must(located.file->read(*located.entry, at, {memory_ + offsets_[index] + at, bytes}),
               "reading");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
  std::vector<std::size_t> offsets_;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::shared_ptr<const void> lock_;
};

double at_quantile(std::vector<double> values, double quantile) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<std::size_t>(quantile * static_cast<double>(values.size())))];
}

struct Steps {
  std::vector<double> ms;
  double median() const { return at_quantile(ms, 0.5); }
  double worst() const { return at_quantile(ms, 1.0); }
};

struct Bench {
  std::string a, b;
  std::FILE* out = nullptr;
  std::map<std::string, std::unique_ptr<LockedWeights>> locked;
  std::unique_ptr<EngineCore> core;

  void note(const std::string& json) const {
    if (out != nullptr) fmt::print(out, "{}\n", json);
  }

  EngineOptions options(std::int64_t sequences) const {
    EngineOptions options;
    options.model_directory = a;
    options.device = "cuda";
    options.max_context = 2048;
    options.max_sequences = sequences;
    options.prefix_cache = false;
    return options;
  }

  void open_engine(std::int64_t sequences, const char* what) {
    core.reset();
    std::map<std::string, double> begun;
    EngineOptions chosen = options(sequences);
    const Clock::time_point begin = Clock::now();
    chosen.progress = [&](const Progress& progress) {
      begun.try_emplace(progress.phase, ms_since(begin));
    };
    core = must(EngineCore::open(chosen), "opening the engine");
    const double all = ms_since(begin);
    fmt::print("cold start, {:<24} {:8.0f} ms (weights {:.0f}, capture and audit {:.0f})\n", what,
               all, begun["capture"] - begun["load"], all - begun["capture"]);
    note(fmt::format(R"({{"what":"cold start","from":"{}","ms":{:.1f},"load_ms":{:.1f},)"
                     R"("capture_ms":{:.1f}}})",
                     what, all, begun["capture"] - begun["load"], all - begun["capture"]));
  }

  // Fills the engine with requests that outlast the measurement.
  void start(std::int64_t sequences) {
    core->cancel_all(true);
    while (!core->idle()) must(core->step(), "step");
    base::Rng rng(7);
    for (std::int64_t i = 0; i < sequences; ++i) {
      Request request;
      for (int t = 0; t < kPromptTokens; ++t) {
        request.prompt_ids.push_back(static_cast<std::int32_t>(rng.next_below(100'000)));
      }
      request.max_tokens = 1900;
      request.ignore_eos = true;
      must(core->submit(std::move(request)), "submit");
    }
    const std::int64_t prefill_steps = sequences * kPromptTokens / 64 + 1;
    for (std::int64_t i = 0; i < prefill_steps + 3; ++i) must(core->step(), "step");
  }

  double step() {
    const Clock::time_point begin = Clock::now();
    must(core->step(), "step");
    return ms_since(begin);
  }

  // One reload of `name` while requests decode.
  void reload(const std::string& name, const std::string& way, const std::string& strategy,
              std::int64_t sequences) {
    start(sequences);
    Steps before, during, after;
    const Clock::time_point undisturbed = Clock::now();
    while (before.ms.size() < 10 || ms_since(undisturbed) < kUndisturbedMs) {
      before.ms.push_back(step());
    }
    ReloadOptions reload_options;
    reload_options.commit = strategy;
    reload_options.commit_when_ready = false;
    const Clock::time_point begin = Clock::now();
    const auto in_memory = locked.find(name);
    must(in_memory != locked.end()
             ? core->begin_reload(in_memory->second->tensors(), reload_options)
             : core->begin_reload(name, reload_options),
         "begin_reload");
    while (core->reload_phase() == ReloadPhase::kStaging) during.ms.push_back(step());
    const double ready_ms = ms_since(begin);
    // From one token to the next, with the commit between them.
    const Clock::time_point last_token = Clock::now();
    must(core->commit_reload(), "commit_reload");
    step();
    const double gap_ms = ms_since(last_token);
    while (core->reload_phase() == ReloadPhase::kVerifying) after.ms.push_back(step());
    const ReloadReport report = must(core->finish_reload(), "finish_reload");
    if (report.state != "committed") {
      std::fprintf(stderr, "reload: %s\n", report.error.c_str());
      std::exit(1);
    }
    const double slower = during.ms.empty() ? 0 : during.median() / before.median() - 1;
    fmt::print("{:<7} {:<12} batch {:>3}: ready {:7.1f} ms (stage {:6.1f}, prepare {:5.1f}), pause "
               "{:8.3f} ms, client {:8.3f} ms, verify {:6.1f} ms\n"
               "        step {:6.3f} ms before, {:6.3f} during ({:+.1f} %, worst {:.3f}), {:6.3f} "
               "while verified (worst {:.3f}); device {:.3f} GB declared, {:.3f} taken\n",
               strategy, way, sequences, ready_ms, report.stage_ms, report.prepare_ms,
               report.pause_us / 1000, gap_ms, report.verify_ms, before.median(), during.median(),
               slower * 100, during.worst(), after.median(), after.worst(),
               static_cast<double>(report.declared_peak_bytes) * 1e-9,
               static_cast<double>(report.measured_peak_bytes) * 1e-9);
    note(fmt::format(
        R"({{"what":"reload","strategy":"{}","from":"{}","batch":{},"ready_ms":{:.2f},)"
        R"("stage_ms":{:.2f},"prepare_ms":{:.2f},"pause_ms":{:.4f},"client_gap_ms":{:.4f},)"
        R"("verify_ms":{:.2f},"step_before_ms":{:.4f},"step_during_ms":{:.4f},)"
        R"("step_during_worst_ms":{:.4f},"steps_during":{},"step_verify_ms":{:.4f},)"
        R"("device_bytes":{},"host_bytes":{},"weights_bytes":{}}})",
        strategy, way, sequences, ready_ms, report.stage_ms, report.prepare_ms,
        report.pause_us / 1000, gap_ms, report.verify_ms, before.median(), during.median(),
        during.worst(), during.ms.size(), after.median(), report.measured_peak_bytes,
        report.measured_host_peak_bytes, report.versioned_bytes));
    std::fflush(stdout);
  }

  void counts() {
    const Clock::time_point begin = Clock::now();
    const CensusReport census = must(core->census(), "census");
    const double census_ms = ms_since(begin);
    const Clock::time_point verify_begin = Clock::now();
    const VerifyReport verified = must(core->verify(), "verify");
    const double verify_ms = ms_since(verify_begin);
    fmt::print("census of {} slots, {} captured addresses, {} homeless: {:.1f} ms; verify of "
               "{:.2f} GB: {:.1f} ms, {} defects\n",
               census.slots.size(), census.captured_addresses, census.homeless.size(), census_ms,
               static_cast<double>(verified.bytes) * 1e-9, verify_ms, verified.defects.size());
    note(fmt::format(R"({{"what":"census","slots":{},"captured":{},"homeless":{},"ms":{:.2f},)"
                     R"("verify_ms":{:.2f},"bytes":{},"defects":{}}})",
                     census.slots.size(), census.captured_addresses, census.homeless.size(),
                     census_ms, verify_ms, verified.bytes, verified.defects.size()));
    const engine::GraphSet& graphs = core->runtime().graphs();
    const device::AuditFigures audit = graphs.audited();
    fmt::print("audit at capture: {} graphs, {} nodes, {} words, {} pointers, {} unaudited: {:.2f} "
               "ms; after the last commit: {} slots, {} moved: {:.4f} ms\n",
               graphs.graphs().size(), audit.nodes, audit.words, audit.pointers, audit.unaudited,
               static_cast<double>(audit.ns) * 1e-6, graphs.rechecked().slots,
               graphs.rechecked().moved, static_cast<double>(graphs.rechecked().ns) * 1e-6);
    note(fmt::format(R"({{"what":"audit","graphs":{},"nodes":{},"words":{},"pointers":{},)"
                     R"("unaudited":{},"ms":{:.3f},"recheck_slots":{},"recheck_moved":{},)"
                     R"("recheck_ms":{:.5f}}})",
                     graphs.graphs().size(), audit.nodes, audit.words, audit.pointers,
                     audit.unaudited, static_cast<double>(audit.ns) * 1e-6,
                     graphs.rechecked().slots, graphs.rechecked().moved,
                     static_cast<double>(graphs.rechecked().ns) * 1e-6));
    if (!census.homeless.empty() || !verified.defects.empty() || audit.unaudited > 0) std::exit(1);
  }
};

// Out of the page cache, so that the next read comes from the disk.
void forget_pages(const std::string& directory) {
  const auto opened = must(checkpoint::Checkpoint::open(directory), "opening");
  for (const auto& file : opened->files()) {
    const int descriptor = ::open(file->path().c_str(), O_RDONLY);
    if (descriptor < 0) continue;
    static_cast<void>(fdatasync(descriptor));
    static_cast<void>(posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED));
    static_cast<void>(close(descriptor));
  }
}

int run(int argc, char** argv) {
  Bench bench;
  std::vector<std::int64_t> batches;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--out" && i + 1 < argc) {
      bench.out = std::fopen(argv[++i], "w");
    } else if (argument == "--batch" && i + 1 < argc) {
      batches.push_back(std::stoll(argv[++i]));
    } else {
      (bench.a.empty() ? bench.a : bench.b) = argument;
    }
  }
  if (bench.a.empty() || bench.b.empty()) {
    std::fprintf(stderr, "usage: gpu_reload A B [--out FILE] [--batch N]...\n");
    return 2;
  }
  if (batches.empty()) batches = {1, 64};
  const std::int64_t most = *std::max_element(batches.begin(), batches.end());
  forget_pages(bench.a);
  bench.open_engine(most, "disk");
  bench.open_engine(most, "page cache");
  bench.counts();
  device::Device& device = bench.core->runtime().device();
  bench.locked["A, locked"] = std::make_unique<LockedWeights>(bench.a, device);
  bench.locked["B, locked"] = std::make_unique<LockedWeights>(bench.b, device);
  for (const std::int64_t batch : batches) {
    for (const char* strategy : {"remap", "copy", "stream"}) {
      bench.reload("B, locked", "page-locked", strategy, batch);
      bench.reload("A, locked", "page-locked", strategy, batch);
    }
    bench.reload(bench.b, "page cache", "remap", batch);
    bench.reload(bench.a, "page cache", "remap", batch);
  }
  bench.counts();
  bench.locked.clear();
  return 0;
}

}  // namespace
}  // namespace holdfast

int main(int argc, char** argv) { return holdfast::run(argc, argv); }
