// Receipts: the record of what arrived from a source, delivery by delivery and byte by byte. A
// delivery is one tensor on its way to one use: a copy into a slot, or a transient input of a
// derivation. One staging thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "holdfast/result.h"
#include "reload/intervals.h"
#include "reload/plan.h"
#include "storage/registry.h"

namespace holdfast::reload {

// The record of one delivery.
struct Receipt {
  storage::ParameterId parameter;
  std::uint64_t bytes = 0;  // declared
  Intervals arrived;
};

// Index of a delivery: the plan's copies in order, then the transient inputs of its derivations.
using DeliveryId = base::StrongId<struct DeliveryIdTag>;

class ReceiptBook {
 public:
  ReceiptBook() = default;
  // One open receipt for every delivery that `plan` declares.
  ReceiptBook(const storage::Registry& registry, const ReloadPlan& plan);

  DeliveryId of_copy(std::size_t copy_index) const;
  // The first transient input of plan.derivations[step]; the next ones follow.
  DeliveryId of_derivation(std::size_t step) const;

  // Bytes [offset, offset + bytes) of a delivery arrived. Errors: kCorrupt when they lie outside of
  // the declared bytes or some of them arrived before.
  Status record(DeliveryId delivery, std::uint64_t offset, std::uint64_t bytes);
  // Errors: kCorrupt naming the first parameter that did not arrive whole, and its first hole.
  Status check_complete() const;

  const Receipt& receipt(DeliveryId delivery) const { return receipts_[delivery.index()]; }
  std::size_t expected_count() const { return receipts_.size(); }
  std::size_t complete_count() const { return complete_count_; }

 private:
  const storage::Registry* registry_ = nullptr;
  std::vector<Receipt> receipts_;
  std::vector<DeliveryId> first_of_derivation_;
  std::size_t complete_count_ = 0;
};

}  // namespace holdfast::reload
