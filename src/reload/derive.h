// Runs one slice of a derivation into staging. One staging thread.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "holdfast/result.h"
#include "reload/staging.h"
#include "storage/registry.h"
#include "tensor/tensor_view.h"

namespace holdfast::reload {

struct DeriveTarget {
  const storage::Registry& registry;
  Staging& staging;
  device::Stream& stream;
  std::uint64_t& buffered;  // raised to the most that derive_slice held in buffers of its own
};

// What derive_slice holds where the host cannot write the target: copies of what lies there of the
// inputs, and one slice of the outputs. 0 elsewhere.
std::uint64_t derive_buffer_bytes(const storage::Registry& registry,
                                  const storage::Derivation& derivation);

// Whether every slot that the derivation reads holds this generation's bytes.
bool inputs_fresh(const DeriveTarget& target, const storage::Derivation& derivation);
// Errors: kFailedPrecondition naming the first input slot that does not.
Status check_inputs_fresh(const DeriveTarget& target, const storage::Derivation& derivation);

// Computes `slice` from `inputs` (one per input of the derivation), checks that no output byte was
// left unwritten, and records the outputs. Errors: kCorrupt naming slot and byte; those of the
// derivation's function, all naming the derivation.
Status derive_slice(const DeriveTarget& target, const storage::Derivation& derivation,
                    std::int64_t slice, std::span<const tensor::TensorView> inputs);

}  // namespace holdfast::reload
