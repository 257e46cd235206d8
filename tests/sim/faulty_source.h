// A checkpoint source with one named fault, chosen beforehand. Read by the one thread of a
// simulation, which may run steps of the engine in the middle of a read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "faults.h"
#include "reload/source.h"

namespace holdfast::sim {

struct SourceFault {
  FaultKind kind = FaultKind::kSourceDies;
  std::uint64_t at_read = 0;  // the first read at which it may fire
  std::uint64_t choice = 0;   // which tensor, byte or file; taken modulo their count
};

// What a simulation wants to know and do while a source is read.
struct SourceHooks {
  std::function<void(std::uint64_t read)> on_read;
  std::function<void()> abort;
  std::function<void()> pass_deadline;
};

class FaultySource final : public reload::Source {
 public:
  // `directory` holds the files that a fault may change: a copy that nobody else needs.
  // `fired` is set when the fault fires; it and the hooks must outlive the source.
  FaultySource(std::unique_ptr<reload::Source> inner, std::string directory,
               std::optional<SourceFault> fault, const SourceHooks& hooks, bool& fired);

  std::string describe() const override { return inner_->describe(); }
  const config::ModelConfig& config() const override { return config_; }
  std::span<const reload::SourceTensor> tensors() const override { return tensors_; }
  Status read(std::size_t index, std::uint64_t offset, std::span<std::byte> to) override;
  Status finish() override { return inner_->finish(); }

 private:
  void forge_manifest();
  bool due(FaultKind kind) const;
  // Before the bytes are read: a file changes, the reload is cancelled, the source is gone.
  Status strike_before();
  // In the bytes that were read.
  void spoil(std::size_t index, std::uint64_t offset, std::span<std::byte> to);
  std::string chosen_file() const;

  std::unique_ptr<reload::Source> inner_;
  std::string directory_;
  std::optional<SourceFault> fault_;
  const SourceHooks& hooks_;
  bool& fired_;
  config::ModelConfig config_;
  std::vector<reload::SourceTensor> tensors_;
  std::vector<std::size_t> inner_index_;
  std::uint64_t reads_ = 0;
};

}  // namespace holdfast::sim
