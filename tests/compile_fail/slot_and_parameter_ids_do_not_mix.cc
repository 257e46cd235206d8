// A slot is where, a parameter is what: the id of one is not the id of the other.
// refused: could not convert|cannot convert|no matching function
#include "storage/slot.h"

using holdfast::storage::ParameterId;
using holdfast::storage::SlotId;

std::size_t where(SlotId id) { return id.index(); }

int main() {
#ifdef MISUSE
  return static_cast<int>(where(ParameterId{3}));
#else
  return static_cast<int>(where(SlotId{3}));
#endif
}
