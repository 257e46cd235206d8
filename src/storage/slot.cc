#include "storage/slot.h"

#include <charconv>

namespace holdfast::storage {

std::string_view slot_class_name(SlotClass slot_class) {
  switch (slot_class) {
    case SlotClass::kWeight: return "weight";
    case SlotClass::kDerived: return "derived";
    case SlotClass::kConstant: return "constant";
    case SlotClass::kState: return "state";
    case SlotClass::kInput: return "input";
    case SlotClass::kScratch: return "scratch";
    case SlotClass::kSync: return "sync";
  }
  return "unknown";
}

bool is_versioned(SlotClass slot_class) {
  return slot_class == SlotClass::kWeight || slot_class == SlotClass::kDerived ||
         slot_class == SlotClass::kConstant;
}

std::int64_t layer_of_name(std::string_view name) {
  constexpr std::string_view kKey = "layers.";
  const std::size_t at = name.find(kKey);
  if (at == std::string_view::npos || (at > 0 && name[at - 1] != '.')) return -1;
  const std::string_view rest = name.substr(at + kKey.size());
  std::uint32_t layer = 0;
  const auto read = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  const bool ends = read.ptr == rest.data() + rest.size() || *read.ptr == '.';
  return read.ec == std::errc() && ends ? static_cast<std::int64_t>(layer) : -1;
}

}  // namespace holdfast::storage
