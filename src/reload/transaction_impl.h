// What a Transaction keeps. Private to its sources.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "reload/commit.h"
#include "reload/fragments.h"
#include "reload/guard.h"
#include "reload/receipts.h"
#include "reload/stager.h"
#include "reload/staging.h"
#include "reload/transaction.h"

namespace holdfast::reload {

// What kStream needs at its commit.
struct StreamInput {
  Source* source = nullptr;
  device::Stream* stream = nullptr;
};

struct Transaction::Impl {
  // Remap and copy; by the same call a second time what it did is undone.
  std::optional<CommitFailure> apply(CommitStrategy strategy);
  // An injected fault's slots keep their live bytes, or have their units elsewhere. Errors:
  // kDevice.
  Status inject_stale();
  Status inject_order(Staging& into) const;
  void note_receipts();
  void note_error(const Error& error);
  // What staging found, into the report.
  void note_log(const storage::Registry& registry, const ReloadPlan& plan);

  StageGuard guard;
  StageLog log;
  ReceiptBook receipts;
  // After a commit it holds the previous content, until verify. With kStream: the undo image.
  std::unique_ptr<Staging> staging;
  bool staged = false;  // stage or finish_staging has finished
  std::unique_ptr<FragmentStager> fragments;  // once put was called
  StreamInput stream_input;
  std::vector<std::byte> swap_block;
  std::vector<storage::SlotStamp> stamps;
  std::vector<storage::SlotStamp> previous_stamps;
  storage::PublishedState published;  // what the commit publishes; afterwards what was before
  storage::Epoch to_epoch;                // what the commit published
  bool was_poisoned = false;
  std::vector<std::uintptr_t> addresses;  // of all slots at the beginning
  std::vector<storage::SlotId> stale;     // by an injected fault
  std::vector<const storage::Derivation*> reordered;  // by one
  InjectedFault::Kind fault = InjectedFault::Kind::kNone;
  std::size_t live_bytes_before = 0;      // of the device
  mutable std::mutex mutex;               // guards report, which any thread may ask for
  TransactionReport report;
};

// Whether the undo image lies under the arenas again; they end read-only.
bool restore_image(Staging& image);
// "commit of a reload that is staging, not prepared".
Error wrong_state(std::string_view call, TransactionState state, std::string_view wanted);

}  // namespace holdfast::reload
