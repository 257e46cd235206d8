// The GPU of a test, or a skip that says why there is none. Test code; one thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "device/devices.h"

// Declares `name` as a device::Device&; skips the test where no GPU is present.
#define HF_GPU_OR_SKIP(name)                                                    \
  auto name##_result = holdfast::device::make_device("cuda");                   \
  if (!name##_result.ok()) GTEST_SKIP() << name##_result.error().to_string();   \
  [[maybe_unused]] holdfast::device::Device& name = **name##_result
