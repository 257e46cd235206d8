// GraphSet: the captured graphs of one decoder, one per row count, and where each captured address
// lay when it was captured. Owned by the engine; engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "device/device.h"
#include "holdfast/result.h"
#include "model/decoder.h"
#include "storage/registry.h"

namespace holdfast::engine {

// Above it a decode step runs in the graph of max_sequences, or the largest.
inline constexpr std::int64_t kLargestDecodeRows = 256;
// The powers of two up to kLargestDecodeRows, `max_sequences` and `max_rows`; none above max_rows.
// Ascending.
std::vector<std::int64_t> graph_row_counts(std::int64_t max_sequences, std::int64_t max_rows);

class GraphSet {
 public:
  struct Sizes {
    std::int64_t max_sequences = 0;
    std::int64_t max_rows = 0;
  };
  // Captures a step for every row count, the largest first. The registry must be sealed and must
  // outlive the set. Errors: whatever a capture says (a pointer with no home, ...).
  static Result<std::unique_ptr<GraphSet>> capture(const storage::Registry& registry,
                                                   const model::Decoder& decoder,
                                                   const ops::OpContext& context,
                                                   const Sizes& sizes);

  // Replays the smallest graph of at least `rows` rows. There is no other way to run a step.
  // Asserts 1 <= rows <= max_rows. Errors: as Graph::launch.
  Status replay(device::Stream& stream, std::int64_t rows);

  std::vector<const device::Graph*> graphs() const;
  std::uint64_t captured_address_count() const;
  // Captured operands whose address now lies in another slot than at capture, or in none:
  // "step of 4 rows/paged_attention/sinks 0x... was layers.0.attention.sinks, is ...".
  std::vector<std::string> rehomed(const storage::Registry& registry) const;

  // What the captures' audits looked at, of all graphs together.
  device::AuditFigures audited() const;
  // The audit after a commit: every slot that a graph was captured over still lies where it lay
  // then. Graphs are never updated, so that nothing else can have changed what they read.
  // Allocates nothing. Engine thread.
  struct Recheck {
    std::uint64_t slots = 0;
    std::uint64_t moved = 0;
    std::int64_t ns = 0;
  };
  void recheck(const storage::Registry& registry, const base::Clock& clock);
  // Of the last commit.
  const Recheck& rechecked() const { return rechecked_; }

 private:
  struct Entry {
    std::int64_t rows = 0;
    std::unique_ptr<device::Graph> graph;
    std::vector<std::string> homes;  // slot name of each manifest entry when captured
  };
  struct Home {
    storage::SlotId slot;
    device::AddressRange range;
  };
  GraphSet() = default;
  std::vector<Entry> entries_;  // ascending rows
  std::vector<Home> homes_;     // each slot once, where it lay at capture
  Recheck rechecked_;
};

}  // namespace holdfast::engine
