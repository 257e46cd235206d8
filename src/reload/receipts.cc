#include "reload/receipts.h"

#include "base/assert.h"
#include "base/error.h"

namespace holdfast::reload {
namespace {

DeliveryId delivery_at(std::size_t index) { return DeliveryId{static_cast<std::uint32_t>(index)}; }

// What of a sliced input is not wanted counts as arrived.
void exclude_rows(Receipt& receipt, const std::vector<std::int64_t>& slices,
                  std::int64_t slice_count) {
  const std::uint64_t row_bytes = receipt.bytes / static_cast<std::uint64_t>(slice_count);
  std::int64_t next = 0;
  const auto exclude_until = [&](std::int64_t end) {
    if (end <= next) return;
    receipt.arrived.add(static_cast<std::uint64_t>(next) * row_bytes,
                        static_cast<std::uint64_t>(end) * row_bytes);
  };
  for (const std::int64_t slice : slices) {
    exclude_until(slice);
    next = slice + 1;
  }
  exclude_until(slice_count);
}

}  // namespace

ReceiptBook::ReceiptBook(const storage::Registry& registry, const ReloadPlan& plan)
    : registry_(&registry) {
  for (const CopyStep& copy : plan.copies) {
    receipts_.push_back({.parameter = copy.parameter, .bytes = copy.bytes, .arrived = {}});
  }
  for (const DeriveStep& step : plan.derivations) {
    first_of_derivation_.push_back(delivery_at(receipts_.size()));
    const storage::Derivation& derivation = registry.derivations()[step.derivation_index];
    for (std::size_t i = 0; i < step.from_source.size(); ++i) {
      if (!step.from_source[i]) continue;
      const auto id = std::get<storage::ParameterId>(derivation.inputs[i]);
      const storage::ParameterSpec& parameter = registry.parameters()[id.index()];
      // make_plan has checked that the size does not overflow.
      const std::size_t bytes = tensor::byte_size(parameter.dtype, parameter.shape).value();
      receipts_.push_back({.parameter = id, .bytes = bytes, .arrived = {}});
      exclude_rows(receipts_.back(), step.slices, derivation.slice_count);
    }
  }
}

DeliveryId ReceiptBook::of_copy(std::size_t copy_index) const { return delivery_at(copy_index); }

DeliveryId ReceiptBook::of_derivation(std::size_t step) const { return first_of_derivation_[step]; }

Status ReceiptBook::record(DeliveryId delivery, std::uint64_t offset, std::uint64_t bytes) {
  HF_ASSERT(delivery.index() < receipts_.size(), "a delivery that no plan declared");
  Receipt& receipt = receipts_[delivery.index()];
  const std::string& name = registry_->parameters()[receipt.parameter.index()].name;
  if (bytes == 0 || offset > receipt.bytes || bytes > receipt.bytes - offset) {
    return make_error(ErrorCode::kCorrupt, "tensor {}: {} bytes at offset {} arrived, {} declared",
                      name, bytes, offset, receipt.bytes);
  }
  if (!receipt.arrived.add(offset, offset + bytes)) {
    return make_error(ErrorCode::kCorrupt, "tensor {}: bytes [{}, {}) arrived a second time", name,
                      offset, offset + bytes);
  }
  if (receipt.arrived.covers(receipt.bytes)) ++complete_count_;
  return {};
}

Status ReceiptBook::check_complete() const {
  for (const Receipt& receipt : receipts_) {
    const auto hole = receipt.arrived.first_hole(receipt.bytes);
    if (!hole.has_value()) continue;
    return make_error(ErrorCode::kCorrupt, "tensor {}: bytes [{}, {}) of {} never arrived",
                      registry_->parameters()[receipt.parameter.index()].name, hole->begin,
                      hole->end, receipt.bytes);
  }
  return {};
}

}  // namespace holdfast::reload
