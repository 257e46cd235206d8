// The contents of slots that hold addresses (SlotSpec::address_table). A kernel that follows a
// pointer out of memory reads what no node of its graph shows; a table that says that it is one is
// read here, by captures and by censuses. Pure functions of the live bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "storage/registry.h"

namespace holdfast::storage {

struct TableEntry {
  SlotId table = {};
  std::uint64_t index = 0;  // of the word in the table
  std::uint64_t address = 0;
  std::optional<SlotId> home = {};  // none: it lies in no slot
};

// Every word of every table that is not null, in the registry's order. Engine thread, no commit and
// no launch meanwhile. Errors: kDevice.
Result<std::vector<TableEntry>> read_address_tables(const Registry& registry);

// That every address in a table lies in a slot. Errors: kMismatch naming table, index, address and
// what lies there; kDevice.
Status check_address_tables(const Registry& registry);

}  // namespace holdfast::storage
