// Census: the full count at one moment: every slot's address, bytes, class, epoch and digest, and
// the home of every address that the graphs captured. A value that can be diffed and printed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "storage/registry.h"

namespace holdfast::storage {

struct CensusSlot {
  std::string name = {};
  SlotClass slot_class = SlotClass::kWeight;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t epoch = 0;
  std::optional<base::Digest> digest = {};  // of the bytes as they are now; versioned slots only
};

// What stands for the graph where an address was read out of a slot that holds addresses.
inline constexpr std::string_view kAddressTables = "address tables";

// An address in a graph's manifest, or in a table that its kernels follow, and the slot in which it
// lies now.
struct CensusAddress {
  std::string graph = {};
  std::string node = {};
  std::string role = {};
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::string home = {};  // slot name; empty when it lies in none
};

struct Census {
  std::uint64_t epoch = 0;
  std::vector<CensusSlot> slots = {};
  std::vector<CensusAddress> addresses = {};
  std::uint64_t homeless_count() const;
};

// Reads every versioned slot's bytes once. Engine thread, between steps. Errors: kDevice.
Result<Census> take_census(const Registry& registry,
                           std::span<const device::Graph* const> graphs);

struct CensusDiff {
  std::vector<std::string> moved = {};    // address or size differs
  std::vector<std::string> changed = {};  // digest differs
  std::vector<std::string> only_before = {};
  std::vector<std::string> only_after = {};
  std::uint64_t same_address_count = 0;
};
CensusDiff diff(const Census& before, const Census& after);

// One JSON object: {"epoch", "slots": [...], "addresses": [...], "homeless"}. Addresses are "0x..."
// strings; the digest of an unversioned slot and the home of a homeless address are null.
std::string to_json(const Census& census);
// A readable table: one line per class with counts and bytes, then (verbose) one line per slot.
std::string to_table(const Census& census, bool verbose);

}  // namespace holdfast::storage
