// FragmentStager: stages the bytes of a source that pushes: any order, any chunking, the same bits.
// Resident bytes land at once; transient inputs wait in host memory until a slice of their
// derivation has all of them, and are freed when it has run. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "holdfast/result.h"
#include "reload/arrivals.h"
#include "reload/derive.h"
#include "reload/intervals.h"
#include "reload/plan.h"
#include "reload/receipts.h"
#include "reload/stager.h"
#include "reload/staging.h"
#include "reload/transaction.h"
#include "storage/registry.h"

namespace holdfast::reload {

struct FragmentJob {
  const storage::Registry& registry;
  const ReloadPlan& plan;
  Staging& staging;
  ReceiptBook& receipts;
  const StageGuard& guard;
  StageLog& log;
};

// Where a fragment belongs, once that is known to be right.
struct PlacedFragment {
  storage::ParameterId parameter;
  ByteRange stored;     // of the parameter as it is stored here
  tensor::DType from;   // what the bytes are
  bool is_alias = false;  // of the second of two names
};

class FragmentStager {
 public:
  explicit FragmentStager(const FragmentJob& job);

  // Stages what is preserved, and constants. Before any fragment. Errors: those of stage_preserved.
  Status start();
  // Whether and where the fragment may come: it names a tensor of the plan, holds whole elements
  // that the plan wants, and none that came before unless it overwrites. Changes nothing. Errors:
  // kNotFound, kMismatch, kCorrupt, kFailedPrecondition (an overwrite of bytes that were used).
  Result<PlacedFragment> place(const Fragment& fragment, std::span<const std::byte> bytes) const;
  // Errors: kCorrupt for an insane value; those of a derivation that it completed.
  Status take(const PlacedFragment& placed, std::span<const std::byte> bytes,
              device::Stream& stream);
  // Errors: kCorrupt naming what never came, or both digests; kMismatch for an alias that differs;
  // those of the derivations.
  Status finish(device::Stream& stream);

 private:
  // One slice of one transient input.
  struct Buffer {
    std::vector<std::byte> bytes;
    Intervals came;
  };
  // A derivation with transient inputs.
  struct Waiting {
    std::size_t step_index = 0;
    // By input of the derivation, then by slice.
    std::vector<std::map<std::int64_t, Buffer>> buffers;
    std::set<std::int64_t> done;
  };
  // What came of one parameter, in stored bytes.
  struct Progress {
    Intervals came;
    bool complete = false;
    bool checked = false;  // against the expected digest, if there is one
    std::vector<std::byte> alias;  // of the second name, kept to be compared
    Intervals alias_came;
  };
  const storage::ParameterSpec& spec(storage::ParameterId id) const {
    return job_.registry.parameters()[id.index()];
  }
  const storage::Derivation& derivation(const Waiting& waiting) const;
  std::uint64_t parameter_bytes(storage::ParameterId id) const;
  bool wants(storage::ParameterId id, const ByteRange& range) const;
  bool is_used(storage::ParameterId id, const ByteRange& range) const;
  Status check_overlap(const PlacedFragment& placed, const Fragment& fragment) const;
  void take_alias(const PlacedFragment& placed, std::span<const std::byte> bytes);
  Result<tensor::DType> dtype_of(const Fragment& fragment, storage::ParameterId id) const;
  Status take_stored(storage::ParameterId id, std::uint64_t offset,
                     std::span<const std::byte> bytes, const std::optional<CastFrom>& from);
  void buffer(Waiting& waiting, std::size_t input, std::uint64_t offset,
              std::span<const std::byte> bytes);
  Status settle(storage::ParameterId id);
  Status check_digest(storage::ParameterId id) const;
  base::Digest digest_of_transient(storage::ParameterId id) const;
  Status check_transient_parts(storage::ParameterId id, std::int64_t slice,
                               std::span<const std::byte> bytes) const;
  Status check_resident_parts(storage::ParameterId id) const;
  bool ready(const Waiting& waiting, std::int64_t slice) const;
  Status run_ready(device::Stream& stream);
  Status run_slice(Waiting& waiting, std::int64_t slice, device::Stream& stream);
  Status run_resident(std::size_t step_index, device::Stream& stream);
  Status check_all_came() const;
  Status check_aliases() const;
  void grow(std::uint64_t bytes);

  FragmentJob job_;
  Arrivals arrivals_;
  std::vector<Progress> progress_;  // by parameter
  std::vector<Waiting> waiting_;    // in dependency order
  std::set<storage::SlotId> used_;  // slots that a derivation has read
  std::vector<std::byte> cast_block_;
  std::uint64_t host_bytes_ = 0;
  std::uint64_t buffered_ = 0;  // by derivations besides, at most
};

}  // namespace holdfast::reload
