// A Result or a Status that nobody looks at is an error that nobody sees.
// refused: ignoring return(ed)? value
#include "holdfast/result.h"

holdfast::Status commit();

int main() {
#ifdef MISUSE
  commit();
#else
  return commit().ok() ? 0 : 1;
#endif
}
