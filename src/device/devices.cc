#include "device/devices.h"

#include <charconv>

#include "base/error.h"
#include "device/cpu/cpu_device.h"

namespace holdfast::device {

Result<std::unique_ptr<Device>> make_device(std::string_view name) {
  if (name == "cpu") return make_cpu_device();
  if (name == "cuda") return make_gpu_device(0);
  constexpr std::string_view kPrefix = "cuda:";
  if (name.starts_with(kPrefix)) {
    const std::string_view digits = name.substr(kPrefix.size());
    int index = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error == std::errc() && end == digits.data() + digits.size() && index >= 0) {
      return make_gpu_device(index);
    }
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "device is \"{}\", expected \"cpu\", \"cuda\" or \"cuda:N\"", name);
}

}  // namespace holdfast::device
