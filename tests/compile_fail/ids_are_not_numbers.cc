// An epoch is not a count: it does not compare with a slot's id.
// refused: no match for .operator==
#include "storage/slot.h"

using holdfast::storage::Epoch;
using holdfast::storage::SlotId;

int main() {
  const Epoch epoch{1};
#ifdef MISUSE
  return epoch == SlotId{1} ? 1 : 0;
#else
  return epoch == Epoch{1} ? 1 : 0;
#endif
}
