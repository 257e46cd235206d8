#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "storage/census.h"

namespace holdfast::storage {

std::string to_json(const Census& census) {
  using Json = nlohmann::ordered_json;
  const auto hex = [](std::uint64_t address) { return fmt::format("{:#x}", address); };
  Json slots = Json::array();
  for (const CensusSlot& slot : census.slots) {
    slots.push_back({{"name", slot.name},
                     {"class", slot_class_name(slot.slot_class)},
                     {"address", hex(slot.address)},
                     {"bytes", slot.bytes},
                     {"epoch", slot.epoch},
                     {"digest", slot.digest ? Json(slot.digest->to_hex()) : Json(nullptr)}});
  }
  Json addresses = Json::array();
  for (const CensusAddress& address : census.addresses) {
    addresses.push_back({{"graph", address.graph},
                         {"node", address.node},
                         {"role", address.role},
                         {"address", hex(address.address)},
                         {"bytes", address.bytes},
                         {"home", address.home.empty() ? Json(nullptr) : Json(address.home)}});
  }
  const Json whole = {{"epoch", census.epoch},
                      {"slots", std::move(slots)},
                      {"addresses", std::move(addresses)},
                      {"homeless", census.homeless_count()}};
  // A name that is not UTF-8 is shown with replacement characters, not thrown at the caller.
  return whole.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace holdfast::storage
