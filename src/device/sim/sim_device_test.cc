#include "device/sim/sim_device.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "device/cpu/cpu_device.h"
#include "device/test_home.h"

namespace holdfast::device {
namespace {

struct StoreArgs {
  tensor::TensorView out;
};
void run_store(const StoreArgs& args, WorkerPool&) { args.out.as<float>()[0] += 1.0f; }

class SimDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    memory_ = device_.allocate(4096).value();
    std::memset(memory_.address, 0, 4096);
    out_ = {memory_.address, tensor::DType::kF32, tensor::Shape{1}};
    home_.add(memory_.address, 4096);
  }
  void TearDown() override { device_.free(memory_); }

  Status store() {
    return launch_cpu<&run_store>(*stream_, "store", StoreArgs{out_}, {updates("out", out_)});
  }
  float stored() { return out_.as<float>()[0]; }
  std::uint64_t fired(Fault fault) { return device_.fired()[fault]; }

  SimDevice device_{make_cpu_device()};
  std::unique_ptr<Stream> stream_ = device_.create_stream(1).value();
  Memory memory_;
  tensor::TensorView out_;
  FakeHome home_;
};

TEST_F(SimDeviceTest, FaultNamesRoundTrip) {
  for (int i = 0; i < kFaultCount; ++i) {
    const auto fault = static_cast<Fault>(i);
    EXPECT_EQ(fault_from_name(fault_name(fault)), fault);
  }
  EXPECT_FALSE(fault_from_name("allocation fails").has_value());
}

TEST_F(SimDeviceTest, WithoutAPlanNothingFails) {
  EXPECT_TRUE(store().ok());
  EXPECT_EQ(stored(), 1.0f);
  EXPECT_EQ(device_.calls(Fault::kLaunchFails), 1u);
  EXPECT_TRUE(device_.fired().empty());
}

TEST_F(SimDeviceTest, AFaultFiresOnceAtItsCall) {
  device_.arm({{.fault = Fault::kAllocationFails, .at_call = 1}});
  const Memory first = device_.allocate(1).value();
  EXPECT_EQ(device_.allocate(1).error().code(), ErrorCode::kResourceExhausted);
  const Memory third = device_.allocate(1).value();
  EXPECT_EQ(fired(Fault::kAllocationFails), 1u);
  EXPECT_EQ(device_.calls(Fault::kAllocationFails), 3u);
  device_.arm({});
  EXPECT_EQ(device_.calls(Fault::kAllocationFails), 0u);
  EXPECT_EQ(fired(Fault::kAllocationFails), 1u);
  device_.free(first);
  device_.free(third);
}

TEST_F(SimDeviceTest, AFailedWriteOrCopyHasLandedUpToItsByte) {
  std::array<std::byte, 16> ones;
  ones.fill(std::byte{1});
  device_.arm({{.fault = Fault::kCopyFails, .at_call = 0, .at_byte = 5},
               {.fault = Fault::kCopyFails, .at_call = 1, .at_byte = 100}});
  EXPECT_EQ(device_.write(memory_.address, ones.data(), ones.size()).error().code(),
            ErrorCode::kDevice);
  EXPECT_EQ(memory_.address[4], std::byte{1});
  EXPECT_EQ(memory_.address[5], std::byte{0});
  EXPECT_FALSE(stream_->copy(memory_.address + 64, memory_.address, 8).ok());
  EXPECT_EQ(memory_.address[64 + 4], std::byte{1});
  EXPECT_TRUE(device_.write(memory_.address, ones.data(), ones.size()).ok());
  EXPECT_EQ(memory_.address[5], std::byte{1});
  EXPECT_EQ(fired(Fault::kCopyFails), 2u);
}

TEST_F(SimDeviceTest, AFailedLaunchRunsNothing) {
  device_.arm({{.fault = Fault::kLaunchFails}});
  EXPECT_EQ(store().error().code(), ErrorCode::kDevice);
  EXPECT_EQ(stored(), 0.0f);
  EXPECT_TRUE(store().ok());
}

TEST_F(SimDeviceTest, AGraphThatWasCapturedHereFailsAtTheChosenLaunch) {
  auto graph = capture(*stream_, home_, "decode", [this] { return store(); }).value();
  device_.arm({{.fault = Fault::kLaunchFails, .at_call = 1}});
  EXPECT_TRUE(graph->launch(*stream_).ok());
  EXPECT_EQ(graph->launch(*stream_).error().code(), ErrorCode::kDevice);
  EXPECT_TRUE(graph->launch(*stream_).ok());
  EXPECT_EQ(stored(), 2.0f);
}

TEST_F(SimDeviceTest, ACaptureWhoseLaunchFailsLeavesTheStreamUsable) {
  device_.arm({{.fault = Fault::kLaunchFails, .at_call = 1}});
  auto failed = capture(*stream_, home_, "decode", [this]() -> Status {
    HF_TRY(store());
    return store();
  });
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code(), ErrorCode::kDevice);
  EXPECT_FALSE(stream_->capturing());
  EXPECT_TRUE(capture(*stream_, home_, "decode", [this] { return store(); }).ok());
}

TEST_F(SimDeviceTest, ALostDeviceRefusesEverythingUntilItIsArmedAnewAndTakesMemoryBack) {
  auto graph = capture(*stream_, home_, "decode", [this] { return store(); }).value();
  const Memory other = device_.allocate(4096).value();
  device_.arm({{.fault = Fault::kDeviceLost, .at_call = 2}});
  EXPECT_TRUE(store().ok());
  EXPECT_TRUE(stream_->synchronize().ok());
  EXPECT_EQ(graph->launch(*stream_).error().code(), ErrorCode::kDevice);
  EXPECT_FALSE(stream_->synchronize().ok());
  EXPECT_FALSE(store().ok());
  EXPECT_FALSE(stream_->copy(memory_.address, memory_.address + 64, 8).ok());
  EXPECT_FALSE(capture(*stream_, home_, "again", [this] { return store(); }).ok());
  EXPECT_FALSE(stream_->capturing());
  EXPECT_EQ(device_.allocate(1).error().code(), ErrorCode::kDevice);
  EXPECT_FALSE(device_.protect(memory_, Protection::kReadOnly).ok());
  EXPECT_FALSE(device_.exchange_backing(memory_, other).ok());
  std::byte byte{};
  EXPECT_FALSE(device_.write(memory_.address, &byte, 1).ok());
  EXPECT_FALSE(device_.read(&byte, memory_.address, 1).ok());
  EXPECT_FALSE(device_.create_stream(1).ok());
  device_.free(other);
  device_.disarm();
  EXPECT_TRUE(graph->launch(*stream_).ok());
  EXPECT_EQ(stored(), 2.0f);
}

}  // namespace
}  // namespace holdfast::device
