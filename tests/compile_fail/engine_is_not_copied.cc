// An engine owns addresses that graphs have captured: there is no second one of it.
// refused: use of deleted function
#include <memory>

#include "holdfast/engine.h"

using holdfast::Engine;

std::unique_ptr<Engine> second(std::unique_ptr<Engine> engine) {
#ifdef MISUSE
  return std::make_unique<Engine>(*engine);
#else
  return engine;
#endif
}
