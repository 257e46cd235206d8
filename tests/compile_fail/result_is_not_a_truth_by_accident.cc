// A Result does not turn into a number or a bool outside a condition: `int n = parse(...)` would
// silently mean "it worked".
// refused: cannot convert
#include "holdfast/result.h"

holdfast::Result<int> parse();

int main() {
#ifdef MISUSE
  int parsed = parse();
#else
  int parsed = parse() ? 1 : 0;
#endif
  return parsed;
}
