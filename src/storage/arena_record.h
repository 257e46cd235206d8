// ArenaRecord: one arena of a registry and the slots that it holds. Private to Registry's sources.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/arena.h"
#include "storage/registry.h"

namespace holdfast::storage {

struct Registry::ArenaRecord {
  std::string name;
  bool versioned = false;
  std::vector<SlotId> slots;  // in the order of their definition, which is the order of addresses
  std::size_t bytes = 0;      // of the slots and the gaps between them
  std::unique_ptr<device::Arena> arena;  // once sealed
};

}  // namespace holdfast::storage
