// A recording starts and ends inside capture(), which checks every address of it.
// refused: is protected within this context
#include "device/device.h"

holdfast::Status record(holdfast::device::Stream& stream) {
#ifdef MISUSE
  return stream.begin_capture();
#else
  return stream.synchronize();
#endif
}
