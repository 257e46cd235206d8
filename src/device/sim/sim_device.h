// SimDevice: a Device around another that injects named faults at chosen moments, so that a machine
// without faults can rehearse them. What is sent through an upload is written, so that it can fail
// there. Deterministic: a fault fires at the n-th call of its kind.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "device/device.h"

namespace holdfast::device {

enum class Fault : std::uint8_t {
  kAllocationFails,
  kCopyFails,        // after `at_byte` bytes of the copy or write have landed
  kExchangeFails,
  kProtectFails,
  kLaunchFails,
  kDeviceLost,       // this call and every later one
};
inline constexpr int kFaultCount = 6;
std::string_view fault_name(Fault fault);  // "allocation-fails", ...
std::optional<Fault> fault_from_name(std::string_view name);

struct FaultPlan {
  Fault fault = Fault::kAllocationFails;
  std::uint64_t at_call = 0;  // the n-th call of that kind since arm(), from 0
  std::uint64_t at_byte = 0;  // kCopyFails only
};

class SimDevice final : public Device {
 public:
  explicit SimDevice(std::unique_ptr<Device> inner);
  ~SimDevice() override;

  // Forgets earlier plans and counts, then arms these.
  void arm(std::vector<FaultPlan> plans);
  void disarm() { arm({}); }
  // How often each fault has fired since construction.
  std::map<Fault, std::uint64_t> fired() const;
  // Calls of that kind since arm(): to choose an `at_call` that will be reached.
  std::uint64_t calls(Fault fault) const;

  DeviceKind kind() const override;
  std::string name() const override;
  std::size_t page_bytes() const override;
  Result<Memory> allocate(std::size_t bytes) override;
  void free(Memory memory) override;
  Status protect(Memory memory, Protection protection) override;
  Status exchange_backing(Memory a, Memory b) override;
  MemoryUsage usage() const override;
  void reset_peak() override;
  Status write(std::byte* to, const std::byte* from, std::size_t bytes) override;
  Status read(std::byte* to, const std::byte* from, std::size_t bytes) override;
  bool host_addressable() const override;
  Status swap(std::byte* a, std::byte* b, std::size_t bytes) override;
  Result<std::vector<base::Digest>> digests(std::span<const Memory> ranges) override;
  Result<std::vector<std::optional<std::size_t>>> find_lanes(
      std::span<const LaneSearch> searches) override;
  // Around a GPU its own, whose launches do not fail: its kernels run on no other.
  Result<std::unique_ptr<Stream>> create_stream(int workers) override;

 private:
  class SimStream;
  class SimGraph;
  // The plan that fires on this call of `fault`, if any; counts the call. On a lost device that
  // plan fires always.
  std::optional<FaultPlan> strike(Fault fault);
  // As strike, as the error that the caller sees.
  Status check(Fault fault, ErrorCode code);

  std::unique_ptr<Device> inner_;
  mutable std::mutex mutex_;
  std::vector<FaultPlan> plans_;
  std::map<Fault, std::uint64_t> calls_;
  std::map<Fault, std::uint64_t> fired_;
  bool lost_ = false;
};

}  // namespace holdfast::device
