// What the tests and benchmarks of reload share: a small model with every kind of slot, a source in
// memory that fails on command, and a snapshot of all that a failed reload must leave alone.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "device/cpu/cpu_device.h"
#include "device/sim/sim_device.h"
#include "reload/plan.h"
#include "reload/source.h"
#include "reload/transaction.h"
#include "storage/registry.h"

namespace holdfast::reload::testing {

struct FakeTensor {
  SourceTensor spec;
  std::vector<std::byte> bytes;
};

// A source in memory. Its failures are set by the test.
class FakeSource final : public Source {
 public:
  explicit FakeSource(std::vector<FakeTensor> tensors) : data(std::move(tensors)) { refresh(); }

  std::string describe() const override { return "fake source"; }
  const config::ModelConfig& config() const override { return model_config; }
  std::span<const SourceTensor> tensors() const override { return specs_; }

  Status read(std::size_t index, std::uint64_t offset, std::span<std::byte> to) override {
    if (read_calls == 0) first_destination = to.data();
    if (on_read) on_read(read_calls);
    if (fail_at_call == read_calls++) return Error(ErrorCode::kIo, "the source died");
    const std::uint64_t left = short_at_byte - std::min(short_at_byte, bytes_read);
    const std::size_t bytes = std::min<std::uint64_t>(left, to.size());
    std::memcpy(to.data(), data[index].bytes.data() + offset, bytes);
    bytes_read += bytes;
    if (bytes < to.size()) return Error(ErrorCode::kIo, "short read");
    return {};
  }
  Status finish() override {
    if (fail_finish) return Error(ErrorCode::kCorrupt, "the file was replaced");
    return {};
  }

  // After a change of `data`.
  void refresh() {
    specs_.clear();
    for (const FakeTensor& tensor : data) specs_.push_back(tensor.spec);
  }
  FakeTensor& tensor(std::string_view name) {
    for (FakeTensor& candidate : data) {
      if (candidate.spec.name == name) return candidate;
    }
    HF_ASSERT(false, "no such tensor in the fake source");
  }

  std::vector<FakeTensor> data;
  config::ModelConfig model_config;
  std::uint64_t fail_at_call = ~0ull;
  std::uint64_t short_at_byte = ~0ull;  // of all bytes that are read
  bool fail_finish = false;
  std::function<void(std::uint64_t call)> on_read;
  std::uint64_t read_calls = 0;
  std::byte* first_destination = nullptr;  // of call 0
  std::uint64_t bytes_read = 0;

 private:
  std::vector<SourceTensor> specs_;
};

struct TinyOptions {
  std::int64_t layers = 3;
  std::int64_t experts = 3;
  std::int64_t big_rows = 0;  // adds a weight "big" of [rows, 64] bf16, so that chunks matter
  bool alias = false;         // "lm_head.weight" is another name of model.embed
  bool parts = false;         // the experts' tensors are published one by one
};

// Defines slots of every class: weights that three parameters share, derived slots from transient
// and resident parameters, sliced and whole, from other derived slots and from constants.
Status define_tiny(storage::Registry& registry, const TinyOptions& options);
// One source tensor for every parameter of `registry`, sane values drawn from `seed`.
std::vector<FakeTensor> draw_tensors(const storage::Registry& registry, std::uint64_t seed);

// A device with faults, a sealed registry and a stream: what an engine would own.
struct Engine {
  explicit Engine(const TinyOptions& options = {});
  FakeSource source(std::uint64_t seed) const { return FakeSource(draw_tensors(registry, seed)); }
  // A whole reload, verified. Leaves the transaction in `transaction`.
  Status reload(Source& from, CommitStrategy strategy, TransactionOptions transaction_options = {});
  // As reload, up to and with prepare.
  Status prepare(Source& from, CommitStrategy strategy,
                 TransactionOptions transaction_options = {});

  config::ModelConfig model_config;
  base::SteadyClock clock;
  std::unique_ptr<device::SimDevice> device;
  storage::Registry registry;
  std::unique_ptr<device::Stream> stream;
  std::unique_ptr<Transaction> transaction;
};

// All that must be as before after a failure.
struct Snapshot {
  std::vector<std::vector<std::byte>> arenas;  // whole, with padding
  std::vector<std::uintptr_t> addresses;
  std::vector<std::uint64_t> slot_epochs;
  std::vector<std::optional<base::Digest>> digests;
  std::vector<device::Protection> protections;
  std::uint64_t epoch = 0;
  std::size_t live_bytes = 0;
  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};
Snapshot snapshot(const Engine& engine);
// The bytes of every versioned arena, padding included.
std::vector<std::vector<std::byte>> content(const storage::Registry& registry);

// A graph that reads the weights, derived and constant slots of layer 1 and writes a number to the
// slot "scratch.sum": whatever address it captured is what it reads.
Result<std::unique_ptr<device::Graph>> capture_sum(Engine& engine);
// Replays and returns the number.
std::uint64_t replay_sum(Engine& engine, device::Graph& graph);
// The number that `registry`'s present slots give.
std::uint64_t expected_sum(const storage::Registry& registry);

}  // namespace holdfast::reload::testing
