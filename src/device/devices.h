// The devices of this build by name: the CPU always, a GPU where the build has CUDA (device/cuda;
// device/cuda_absent stands in for it elsewhere). Any thread.
#pragma once

#include <memory>
#include <string_view>

#include "device/device.h"

namespace holdfast::device {

// "cpu", "cuda" or "cuda:N". Errors: kInvalidArgument for another name; those of make_gpu_device.
Result<std::unique_ptr<Device>> make_device(std::string_view name);

// Errors: kUnsupported: a build without CUDA, no driver, no such GPU.
Result<std::unique_ptr<Device>> make_gpu_device(int index);

}  // namespace holdfast::device
