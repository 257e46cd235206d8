// The whole step at gpt-oss-20b's shape on a GPU: random weights of the published sizes, captured
// graphs, random tokens; tokens per second by batch and for a prefill chunk, how many experts a
// layer hits, and what each op takes when its launches stand alone in a graph. Also compares a
// row's logits alone and in each batch, bit by bit. Prints lines of its own.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "device/cuda/gpu_timer.h"
#include "device/devices.h"
#include "model/decoder.h"

namespace holdfast::engine {
namespace {

using tensor::DType;

constexpr std::int64_t kContext = 512;   // keys that a decoded token sees
constexpr std::int64_t kChunk = 1024;    // rows of a prefill step
constexpr std::int64_t kMaxContext = 1088;
constexpr std::int64_t kPage = 16;
constexpr std::int64_t kSequences = 256;

config::ModelConfig gpt_oss_20b() {
  config::ModelConfig config;
  config.model_type = "gpt_oss";
  config.layer_count = 24;
  config.hidden_size = 2880;
  config.intermediate_size = 2880;
  config.query_head_count = 64;
  config.kv_head_count = 8;
  config.head_dim = 64;
  config.vocab_size = 201088;
  config.expert_count = 32;
  config.experts_per_token = 4;
  config.sliding_window = 128;
  config.max_positions = 131072;
  config.rope = {.theta = 150000, .factor = 32, .beta_fast = 32, .beta_slow = 1,
                 .original_max_positions = 4096, .truncate = false};
  config.expert_format.scheme = config::ExpertScheme::kMxfp4;
  for (int i = 0; i < 24; ++i) {
    config.layer_kinds.push_back(i % 2 == 0 ? config::AttentionKind::kSliding
                                            : config::AttentionKind::kFull);
  }
  return config;
}

// Of the ops, only those that a graph is to hold.
class SomeKernels final : public ops::Kernels {
 public:
  std::string only;  // empty: all
  Status embedding(device::Stream& s, const ops::EmbeddingArgs& a) override {
    return wants("embedding") ? all_->embedding(s, a) : Status();
  }
  Status rms_norm(device::Stream& s, const ops::RmsNormArgs& a) override {
    return all_->rms_norm(s, a);
  }
  Status linear(device::Stream& s, const ops::LinearArgs& a) override {
    return wants("out") ? all_->linear(s, a) : Status();
  }
  Status rope(device::Stream& s, const ops::RopeArgs& a) override { return all_->rope(s, a); }
  Status kv_write(device::Stream& s, const ops::KvWriteArgs& a) override {
    return all_->kv_write(s, a);
  }
  Status paged_attention(device::Stream& s, const ops::PagedAttentionArgs& a) override {
    const bool wanted = wants(a.window > 0 ? "attention, window" : "attention, full");
    return wanted ? all_->paged_attention(s, a) : Status();
  }
  Status router_top_k(device::Stream& s, const ops::RouterTopKArgs& a) override {
    return all_->router_top_k(s, a);
  }
  Status gather_rows(device::Stream& s, const ops::GatherRowsArgs& a) override {
    return all_->gather_rows(s, a);
  }
  Status qkv(device::Stream& s, const ops::QkvArgs& a) override {
    return wants("qkv") ? all_->qkv(s, a) : Status();
  }
  Status route(device::Stream& s, const ops::RouteArgs& a) override {
    return wants("route") ? all_->route(s, a) : Status();
  }
  Status head(device::Stream& s, const ops::HeadArgs& a) override {
    return wants("head") ? all_->head(s, a) : Status();
  }
  Status choose(device::Stream& s, const ops::ChooseArgs& a) override {
    return wants("choose") ? all_->choose(s, a) : Status();
  }

 private:
  bool wants(const char* name) const { return only.empty() || only == name; }
  std::unique_ptr<ops::Kernels> all_ = ops::make_cuda_kernels();
};

class StepBench {
 public:
  explicit StepBench(device::Device& gpu) : gpu_(gpu) {
    decoder_ = model::define_decoder(registry_, config_,
                                     {.max_rows = kChunk,
                                      .max_sequences = kSequences,
                                      .page_size = kPage,
                                      .page_count = kSequences * kMaxContext / kPage,
                                      .max_context = kMaxContext,
                                      .experts_backend = std::nullopt,
                                      .device = device::DeviceKind::kCuda,
                                      .chooses = true})
                   .value();
    registry_.seal(gpu_).value();
    stream_ = gpu_.create_stream().value();
    fill();
  }
  ~StepBench() { registry_.close(); }

  std::unique_ptr<device::Graph> capture(std::int64_t rows, const std::string& only = {}) {
    kernels_.only = only;
    return device::capture(*stream_, registry_, "step of " + std::to_string(rows) + " rows",
                           [&] { return decoder_->step({*stream_, kernels_}, rows); })
        .value();
  }

  // Rows of sequences that have kContext tokens each, one row of each; or one sequence's prompt.
  void set_rows(std::int64_t rows, bool prefill, std::uint64_t seed) {
    base::Rng rng(seed);
    std::vector<std::int32_t> tokens, positions, sequences, places, wanted;
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t sequence = prefill ? 0 : r;
      const std::int64_t position = prefill ? r : kContext - 1;
      tokens.push_back(static_cast<std::int32_t>(rng.next_below(200000)));
      positions.push_back(static_cast<std::int32_t>(position));
      sequences.push_back(static_cast<std::int32_t>(sequence));
      places.push_back(static_cast<std::int32_t>(sequence * kMaxContext + position));
      if (!prefill || r + 1 == rows) wanted.push_back(static_cast<std::int32_t>(r));
    }
    const auto& slots = decoder_->slots();
    write(slots.token_ids, tokens);
    write(slots.positions, positions);
    write(slots.row_sequence, sequences);
    write(slots.slot_mapping, places);
    write(slots.logit_rows, wanted);
    write(slots.row_count, {static_cast<std::int32_t>(rows)});
    write(slots.logit_count, {static_cast<std::int32_t>(wanted.size())});
  }

  double time(device::Graph& graph, std::int64_t rows, bool prefill) {
    std::vector<double> times;
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      set_rows(rows, prefill, 1 + seed);
      times.push_back(device::cuda::median_ms(*stream_, 1, [&] {
        graph.launch(*stream_).value();
      }));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  // Experts of all layers that the last step hit, per layer.
  double experts_hit(std::int64_t rows) {
    const auto view = registry_.view(decoder_->slots().expert_ids);
    std::vector<std::int32_t> ids(view.bytes() / 4);
    gpu_.read(reinterpret_cast<std::byte*>(ids.data()), view.address, view.bytes()).value();
    std::size_t hit = 0;
    for (std::int64_t layer = 0; layer < 24; ++layer) {
      const auto begin = ids.begin() + layer * kChunk * 4;
      hit += std::set<std::int32_t>(begin, begin + rows * 4).size();
    }
    return static_cast<double>(hit) / 24;
  }

  std::vector<float> logits(std::int64_t row) {
    const auto view = registry_.view(decoder_->slots().logits).row(row);
    std::vector<float> values(view.bytes() / 4);
    gpu_.read(reinterpret_cast<std::byte*>(values.data()), view.address, view.bytes()).value();
    return values;
  }
  device::Stream& stream() { return *stream_; }

 private:
  void write(storage::SlotId slot, const std::vector<std::int32_t>& values) {
    gpu_.write(registry_.view(slot).address, reinterpret_cast<const std::byte*>(values.data()),
               values.size() * 4)
        .value();
  }

  // Every slot from a block of random values of its kind, each from another place of it.
  void fill() {
    constexpr std::size_t kBlock = 64u << 20;
    for (device::Arena* arena : registry_.versioned_arenas()) {
      arena->protect(device::Protection::kReadWrite).value();
    }
    const auto block = device::Arena::create(gpu_, "random", 4 * kBlock).value();
    std::byte* from[4];
    std::vector<std::byte> host(kBlock);
    for (int kind = 0; kind < 4; ++kind) {
      for (std::size_t i = 0; i < kBlock; i += 4) {
        const std::uint64_t random = rng_.next();
        std::uint32_t word = static_cast<std::uint32_t>(random);
        if (kind == 1) word = (word & 0x80FF80FFu) | 0x3C003C00u;  // bf16 of 2^-7 and 2^-6
        if (kind == 2) word = (word & 0x80FFFFFFu) | 0x3E000000u;  // f32 of 2^-3 and 2^-2
        if (kind == 3) word = 0x78787878u;                         // scales of 2^-7
        std::memcpy(host.data() + i, &word, 4);
      }
      from[kind] = block->allocate(kBlock, 256).value();
      gpu_.write(from[kind], host.data(), kBlock).value();
    }
    for (const storage::Slot& slot : registry_.slots()) {
      const bool scales = slot.spec.name.find("scales") != std::string::npos;
      const bool norm = slot.spec.name.find("norm") != std::string::npos;
      const int kind = scales ? 3 : slot.spec.dtype == DType::kBF16 ? 1
                                : slot.spec.dtype == DType::kF32 ? 2 : 0;
      const std::size_t skip = rng_.next_below(kBlock / 2) / 512 * 512;
      for (std::size_t at = 0; at < slot.range.bytes;) {
        const std::size_t bytes = std::min(kBlock - skip, slot.range.bytes - at);
        stream_->copy(registry_.view(slot.id).address + at, from[kind] + skip, bytes).value();
        at += bytes;
      }
      if (norm) ones(slot);
      if (slot.spec.slot_class == storage::SlotClass::kConstant) constant(slot);
    }
    stream_->synchronize().value();
    std::vector<std::int32_t> table(kSequences * kMaxContext / kPage);
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);
    write(decoder_->slots().block_tables, table);
  }
  void ones(const storage::Slot& slot) {
    stream_->synchronize().value();
    const std::vector<std::uint16_t> values(slot.range.bytes / 2, 0x3F80);
    gpu_.write(registry_.view(slot.id).address, reinterpret_cast<const std::byte*>(values.data()),
               values.size() * 2)
        .value();
  }
  void constant(const storage::Slot& slot) {
    stream_->synchronize().value();
    const auto value = registry_.constant_value(slot.id);
    gpu_.write(registry_.view(slot.id).address, value.data(), value.size()).value();
  }

  device::Device& gpu_;
  base::Rng rng_{5};
  config::ModelConfig config_ = gpt_oss_20b();
  storage::Registry registry_;
  std::unique_ptr<model::Decoder> decoder_;
  std::unique_ptr<device::Stream> stream_;
  SomeKernels kernels_;
};

void report_parts(StepBench& bench, std::int64_t rows, bool prefill) {
  const auto ms_of = [&](const char* part) {
    const auto graph = bench.capture(rows, part);
    bench.set_rows(rows, prefill, 3);
    return device::cuda::median_ms(bench.stream(), 10,
                                   [&] { graph->launch(bench.stream()).value(); });
  };
  const double experts = ms_of("experts");  // whose launches are in every graph
  for (const char* part : {"qkv", "attention, window", "attention, full", "out", "route", "head",
                           "choose", "experts"}) {
    const bool is_experts = std::strcmp(part, "experts") == 0;
    const double us = (is_experts ? experts : ms_of(part) - experts) * 1e3;
    const int count = std::strcmp(part, "head") == 0 || std::strcmp(part, "choose") == 0 ? 1
                      : std::strncmp(part, "attention", 9) == 0 ? 12 : 24;
    std::printf("part %-20s rows %4lld  %9.2f us each, %8.1f us of a step\n", part,
                static_cast<long long>(rows), us / count, us);
  }
}

void run_step(benchmark::State& state) {
  for (auto _ : state) {
    auto device = device::make_device("cuda");
    if (!device.ok()) {
      state.SkipWithError(device.error().to_string().c_str());
      return;
    }
    StepBench bench(**device);
    std::vector<float> alone;
    for (const std::int64_t rows : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
      const auto graph = bench.capture(rows);
      const double ms = bench.time(*graph, rows, false);
      const double hit = bench.experts_hit(rows);
      bench.set_rows(rows, false, 99);  // the first token is the same for each count
      graph->launch(bench.stream()).value();
      bench.stream().synchronize().value();
      const auto first = bench.logits(0);
      if (rows == 1) alone = first;
      const bool same = std::memcmp(alone.data(), first.data(), first.size() * 4) == 0;
      std::printf("decode rows %4lld  %8.3f ms  %9.1f tokens/s  %5.2f experts hit a layer  "
                  "%zu nodes  row 0 %s\n",
                  static_cast<long long>(rows), ms, static_cast<double>(rows) / ms * 1e3, hit,
                  graph->manifest().nodes.size(), same ? "bit-equal" : "DIFFERS");
      if (!same) state.SkipWithError("a row's bits depend on the batch");
    }
    const auto chunk = bench.capture(kChunk);
    const double ms = bench.time(*chunk, kChunk, true);
    std::printf("prefill rows %4lld  %8.3f ms  %9.1f tokens/s\n", static_cast<long long>(kChunk),
                ms, static_cast<double>(kChunk) / ms * 1e3);
    for (const std::int64_t rows : {1, 64, 256}) report_parts(bench, rows, false);
    report_parts(bench, kChunk, true);
  }
}
BENCHMARK(run_step)->Iterations(1);

}  // namespace
}  // namespace holdfast::engine
