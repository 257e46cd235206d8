#include "storage/address_tables.h"

#include <cstring>

#include "base/error.h"
#include "storage/live_bytes.h"

namespace holdfast::storage {

Result<std::vector<TableEntry>> read_address_tables(const Registry& registry) {
  std::vector<TableEntry> entries;
  LiveBytes live(registry);
  for (const Slot& slot : registry.slots()) {
    if (!slot.spec.address_table) continue;
    HF_ASSIGN(const auto bytes, live.of(slot.id));
    for (std::uint64_t i = 0; i < bytes.size() / sizeof(std::uint64_t); ++i) {
      std::uint64_t address = 0;
      std::memcpy(&address, bytes.data() + i * sizeof(address), sizeof(address));
      if (address == 0) continue;
      entries.push_back({slot.id, i, address, registry.resolve(address)});
    }
  }
  return entries;
}

Status check_address_tables(const Registry& registry) {
  HF_ASSIGN(const std::vector<TableEntry> entries, read_address_tables(registry));
  for (const TableEntry& entry : entries) {
    if (entry.home) continue;
    return make_error(ErrorCode::kMismatch,
                      "address table {}: word {} is {:#x}, which lies in no slot: {}; place what "
                      "it points to in a slot, and fill the table after seal",
                      registry.slot(entry.table).spec.name, entry.index, entry.address,
                      registry.describe(entry.address));
  }
  return {};
}

}  // namespace holdfast::storage
