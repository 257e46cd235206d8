// In place of device/cuda in a build without CUDA.
#include "base/error.h"
#include "device/devices.h"

namespace holdfast::device {

Result<std::unique_ptr<Device>> make_gpu_device(int index) {
  return make_error(ErrorCode::kUnsupported,
                    "device cuda:{} was asked for and this build has no CUDA: configure with the "
                    "`cuda` preset (it needs nvcc), or use the CPU",
                    index);
}

}  // namespace holdfast::device
