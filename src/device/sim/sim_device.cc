#include "device/sim/sim_device.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/assert.h"
#include "base/error.h"
#include "device/cpu/cpu_device.h"

namespace holdfast::device {
namespace {

constexpr std::array<std::string_view, kFaultCount> kFaultNames = {
    "allocation-fails", "copy-fails",  "exchange-fails",
    "protect-fails",    "launch-fails", "device-lost"};

Error simulated(const FaultPlan& plan, ErrorCode code) {
  return make_error(code, "simulated fault {} at call {}", fault_name(plan.fault), plan.at_call);
}

}  // namespace

std::string_view fault_name(Fault fault) { return kFaultNames[static_cast<std::size_t>(fault)]; }

std::optional<Fault> fault_from_name(std::string_view name) {
  const auto found = std::find(kFaultNames.begin(), kFaultNames.end(), name);
  if (found == kFaultNames.end()) return std::nullopt;
  return static_cast<Fault>(found - kFaultNames.begin());
}

// A graph that was captured on a SimStream: its launch may fail.
class SimDevice::SimGraph final : public Graph {
 public:
  SimGraph(SimDevice& device, std::unique_ptr<Graph> inner)
      : device_(device), inner_(std::move(inner)) {}

  const std::string& label() const override { return inner_->label(); }
  const AddressManifest& manifest() const override { return inner_->manifest(); }
  Status check_parameters(const AddressHome& home) const override {
    return inner_->check_parameters(home);
  }
  AuditFigures audited() const override { return inner_->audited(); }
  Result<GraphReading> read_back() const override { return inner_->read_back(); }
  Status launch(Stream& stream) override {
    HF_TRY(device_.check(Fault::kLaunchFails, ErrorCode::kDevice));
    return inner_->launch(stream);
  }

 private:
  SimDevice& device_;
  std::unique_ptr<Graph> inner_;
};

// A CpuStream, because the CPU's ops launch on nothing else.
class SimDevice::SimStream final : public CpuStream {
 public:
  SimStream(SimDevice& device, std::unique_ptr<Stream> inner)
      : device_(device), inner_(std::move(inner)) {}

  WorkerPool& workers() override { return cpu().workers(); }
  bool capturing() const override { return inner_->capturing(); }

  Status synchronize() override {
    HF_TRY(device_.check(Fault::kDeviceLost, ErrorCode::kDevice));
    return inner_->synchronize();
  }

  Status launch(const CpuKernel& kernel) override {
    HF_TRY(device_.check(Fault::kLaunchFails, ErrorCode::kDevice));
    return cpu().launch(kernel);
  }

  Status copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    const auto plan = device_.strike(Fault::kCopyFails);
    if (!plan) return inner_->copy(to, from, bytes);
    if (plan->fault == Fault::kCopyFails && !capturing()) {
      HF_TRY(inner_->copy(to, from, std::min<std::size_t>(bytes, plan->at_byte)));
    }
    return simulated(*plan, ErrorCode::kDevice);
  }

 protected:
  Status begin_capture() override {
    HF_TRY(device_.check(Fault::kDeviceLost, ErrorCode::kDevice));
    return begin_capture_on(*inner_);
  }

  // The inner recording ends even when the device is lost, so that no capture stays open.
  Result<std::unique_ptr<Graph>> end_capture(const AddressHome& home, std::string label) override {
    HF_ASSIGN(std::unique_ptr<Graph> graph, end_capture_on(*inner_, home, std::move(label)));
    HF_TRY(device_.check(Fault::kDeviceLost, ErrorCode::kDevice));
    return std::unique_ptr<Graph>(std::make_unique<SimGraph>(device_, std::move(graph)));
  }

 private:
  CpuStream& cpu() { return static_cast<CpuStream&>(*inner_); }

  SimDevice& device_;
  std::unique_ptr<Stream> inner_;
};

SimDevice::SimDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

SimDevice::~SimDevice() = default;

void SimDevice::arm(std::vector<FaultPlan> plans) {
  const std::lock_guard lock(mutex_);
  plans_ = std::move(plans);
  calls_.clear();
  lost_ = false;
}

std::map<Fault, std::uint64_t> SimDevice::fired() const {
  const std::lock_guard lock(mutex_);
  return fired_;
}

std::uint64_t SimDevice::calls(Fault fault) const {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(fault);
  return found == calls_.end() ? 0 : found->second;
}

std::optional<FaultPlan> SimDevice::strike(Fault fault) {
  const std::lock_guard lock(mutex_);
  // Every call is also a call that may lose the device.
  const std::uint64_t any_call = calls_[Fault::kDeviceLost]++;
  const std::uint64_t call = fault == Fault::kDeviceLost ? any_call : calls_[fault]++;
  for (const FaultPlan& plan : plans_) {
    if (plan.fault != Fault::kDeviceLost || (!lost_ && plan.at_call != any_call)) continue;
    lost_ = true;
    ++fired_[Fault::kDeviceLost];
    return plan;
  }
  if (fault == Fault::kDeviceLost) return std::nullopt;
  for (const FaultPlan& plan : plans_) {
    if (plan.fault != fault || plan.at_call != call) continue;
    ++fired_[fault];
    return plan;
  }
  return std::nullopt;
}

Status SimDevice::check(Fault fault, ErrorCode code) {
  const auto plan = strike(fault);
  if (!plan) return {};
  return simulated(*plan, plan->fault == Fault::kDeviceLost ? ErrorCode::kDevice : code);
}

DeviceKind SimDevice::kind() const { return inner_->kind(); }
std::string SimDevice::name() const { return "sim of " + inner_->name(); }
std::size_t SimDevice::page_bytes() const { return inner_->page_bytes(); }
MemoryUsage SimDevice::usage() const { return inner_->usage(); }
void SimDevice::reset_peak() { inner_->reset_peak(); }
bool SimDevice::host_addressable() const { return inner_->host_addressable(); }

Result<Memory> SimDevice::allocate(std::size_t bytes) {
  HF_TRY(check(Fault::kAllocationFails, ErrorCode::kResourceExhausted));
  return inner_->allocate(bytes);
}

// Never fails: what was given out comes back even from a lost device.
void SimDevice::free(Memory memory) { inner_->free(memory); }

Status SimDevice::protect(Memory memory, Protection protection) {
  HF_TRY(check(Fault::kProtectFails, ErrorCode::kDevice));
  return inner_->protect(memory, protection);
}

Status SimDevice::exchange_backing(Memory a, Memory b) {
  HF_TRY(check(Fault::kExchangeFails, ErrorCode::kDevice));
  return inner_->exchange_backing(a, b);
}

Status SimDevice::write(std::byte* to, const std::byte* from, std::size_t bytes) {
  const auto plan = strike(Fault::kCopyFails);
  if (!plan) return inner_->write(to, from, bytes);
  if (plan->fault == Fault::kCopyFails) {
    HF_TRY(inner_->write(to, from, std::min<std::size_t>(bytes, plan->at_byte)));
  }
  return simulated(*plan, ErrorCode::kDevice);
}

Status SimDevice::read(std::byte* to, const std::byte* from, std::size_t bytes) {
  HF_TRY(check(Fault::kDeviceLost, ErrorCode::kDevice));
  return inner_->read(to, from, bytes);
}

// Some of the words have changed places when it fails.
Status SimDevice::swap(std::byte* a, std::byte* b, std::size_t bytes) {
  const auto plan = strike(Fault::kCopyFails);
  if (!plan) return inner_->swap(a, b, bytes);
  constexpr std::size_t kWord = 16;
  if (plan->fault == Fault::kCopyFails) {
    HF_TRY(inner_->swap(a, b, std::min<std::size_t>(bytes, plan->at_byte / kWord * kWord)));
  }
  return simulated(*plan, ErrorCode::kDevice);
}

// Where the host can look for itself it does, which no device can fail.
Result<std::vector<base::Digest>> SimDevice::digests(std::span<const Memory> ranges) {
  if (!host_addressable()) HF_TRY(check(Fault::kDeviceLost, ErrorCode::kDevice));
  return inner_->digests(ranges);
}

Result<std::vector<std::optional<std::size_t>>> SimDevice::find_lanes(
    std::span<const LaneSearch> searches) {
  if (!host_addressable()) HF_TRY(check(Fault::kDeviceLost, ErrorCode::kDevice));
  return inner_->find_lanes(searches);
}

Result<std::unique_ptr<Stream>> SimDevice::create_stream(int workers) {
  HF_TRY(check(Fault::kDeviceLost, ErrorCode::kDevice));
  HF_ASSIGN(std::unique_ptr<Stream> inner, inner_->create_stream(workers));
  if (inner_->kind() != DeviceKind::kCpu) return inner;
  return std::unique_ptr<Stream>(std::make_unique<SimStream>(*this, std::move(inner)));
}

}  // namespace holdfast::device
