#include "storage/slot.h"

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

}  // namespace holdfast::storage
