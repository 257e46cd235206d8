// One NVIDIA GPU as a Device. Thread-safe; a stream and its graphs belong to one thread.
#pragma once

#include <memory>

#include "device/device.h"

namespace holdfast::device::cuda {

// GPU `index`. Errors: kUnsupported when there is no driver, no such GPU, or it is older than
// compute capability 9.0 (Hopper), naming what is there.
Result<std::unique_ptr<Device>> make_cuda_device(int index = 0);

}  // namespace holdfast::device::cuda
