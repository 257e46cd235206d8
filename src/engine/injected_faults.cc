#include "engine/injected_faults.h"

#include <stdlib.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "reload/sanity.h"

namespace holdfast::engine {

namespace {

namespace fs = std::filesystem;
using device::Fault;

constexpr std::array<std::string_view, 9> kSourceFaultNames = {
    "short-read", "source-dies", "garbage",   "nan",     "bad-scale",
    "truncated",  "replaced",    "cancelled", "deadline"};

// Of steps, once the reload is committed.
constexpr std::string_view kStepsFail = "steps-fail";
constexpr std::uint64_t kFailingLaunches = 64;  // more than anyone tries again

constexpr std::int64_t kStallNs = 20'000'000;
constexpr std::chrono::milliseconds kStallStep{1};
constexpr std::uint64_t kTornCopyBytes = 4'096;  // that land before a copy fails
// An arena's backing is exchanged, or written in part, by as many calls.
constexpr std::uint64_t kCallsBeforeLoss = 3;
// Of the low byte of a float of two bytes or more: leaves sign and exponent as they are (a bf16's
// holds one bit of the exponent).
constexpr std::byte kGarbageMask{0x55};
constexpr std::byte kSign{0x80};

std::optional<SourceFault> source_fault_from_name(std::string_view name) {
  const auto found = std::find(kSourceFaultNames.begin(), kSourceFaultNames.end(), name);
  if (found == kSourceFaultNames.end()) return std::nullopt;
  return static_cast<SourceFault>(found - kSourceFaultNames.begin());
}

Error file_error(const std::string& path, const std::error_code& code) {
  return make_error(ErrorCode::kIo, "{}: {}", path, code.message());
}

bool make_garbage(tensor::DType dtype, std::size_t width, std::span<std::byte> elements) {
  if (width < 2 || dtype == tensor::DType::kI32 || dtype == tensor::DType::kI64) return false;
  for (std::size_t i = 0; i < elements.size(); i += width) elements[i] ^= kGarbageMask;
  return true;
}

// Whether `element` is of a dtype that has NaNs, and is one now.
bool make_nan(tensor::DType dtype, std::span<std::byte> element) {
  std::uint32_t bits = 0;
  switch (dtype) {
    case tensor::DType::kF32: bits = 0x7FC1'0000; break;
    case tensor::DType::kF16: bits = 0x7E01; break;
    case tensor::DType::kBF16: bits = 0x7FC1; break;
    case tensor::DType::kF8E4M3:
    case tensor::DType::kF8E5M2: bits = 0x7F; break;
    default: return false;
  }
  std::memcpy(element.data(), &bits, element.size());  // little-endian
  return true;
}

// Whether `element` is a scale's, and is none now.
bool make_bad_scale(reload::Insanity insanity, std::span<std::byte> element) {
  switch (insanity) {
    case reload::Insanity::kE8M0Nan: element[0] = std::byte{0xFF}; return true;
    case reload::Insanity::kF32Scale:
    case reload::Insanity::kF16Scale:
    case reload::Insanity::kBF16Scale:
    case reload::Insanity::kF8E4M3Scale: element.back() |= kSign; return true;
    default: return false;
  }
}

// The stream of the reload alone, so that no step of the serving engine meets its fault.
class FailingStream final : public device::CpuStream {
 public:
  explicit FailingStream(std::unique_ptr<device::Stream> inner) : inner_(std::move(inner)) {}

  device::WorkerPool& workers() override {
    return static_cast<device::CpuStream&>(*inner_).workers();
  }
  bool capturing() const override { return inner_->capturing(); }
  Status synchronize() override { return inner_->synchronize(); }
  Status launch(const device::CpuKernel& kernel) override {
    return make_error(ErrorCode::kDevice, "injected fault launch-fails: kernel {}", kernel.name);
  }
  Status copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    return inner_->copy(to, from, bytes);
  }

 protected:
  Status begin_capture() override { return begin_capture_on(*inner_); }
  Result<std::unique_ptr<device::Graph>> end_capture(const device::AddressHome& home,
                                                     std::string label) override {
    return end_capture_on(*inner_, home, std::move(label));
  }

 private:
  std::unique_ptr<device::Stream> inner_;
};

}  // namespace

// One thread at a time; what it changes outside belongs to the injector.
class FaultInjector::FaultySource final : public reload::Source {
 public:
  FaultySource(FaultInjector& injector, std::unique_ptr<reload::Source> inner)
      : injector_(injector), inner_(std::move(inner)), at_read_(inner_->tensors().size() / 2) {}

  std::string describe() const override { return inner_->describe(); }
  const config::ModelConfig& config() const override { return inner_->config(); }
  std::span<const reload::SourceTensor> tensors() const override { return inner_->tensors(); }

  Status read(std::size_t index, std::uint64_t offset, std::span<std::byte> to) override {
    const bool due = reads_++ >= at_read_ && !fired_;
    if (due || dead_) HF_TRY(strike(index, offset, to));
    HF_TRY(inner_->read(index, offset, to));
    if (!fired_) spoil(index, offset, to);
    return {};
  }

  Status finish() override {
    HF_TRY(inner_->finish());
    if (fired_) return {};
    return make_error(ErrorCode::kNotFound, "fault {}: {} has nothing that it would act on",
                      injector_.name_, inner_->describe());
  }

 private:
  // Before the bytes are read.
  Status strike(std::size_t index, std::uint64_t offset, std::span<std::byte> to) {
    const std::string& name = tensors()[index].name;
    switch (*injector_.source_fault_) {
      case SourceFault::kShortRead: {
        fired_ = true;
        const std::size_t bytes = to.size() / 2;
        HF_TRY(inner_->read(index, offset, to.first(bytes)));
        return make_error(ErrorCode::kIo, "injected fault short-read: {} of {} bytes of {} came",
                          bytes, to.size(), name);
      }
      case SourceFault::kSourceDies:
        fired_ = dead_ = true;
        return make_error(ErrorCode::kIo, "injected fault source-dies: no byte of {} came", name);
      case SourceFault::kTruncated: fired_ = true; return truncate();
      case SourceFault::kReplaced: fired_ = true; return replace();
      case SourceFault::kCancelled:
        fired_ = true;
        injector_.cancel_.store(true, std::memory_order_release);
        return {};
      case SourceFault::kDeadline:
        fired_ = true;
        while (injector_.clock_.now_ns() <= injector_.deadline_ns_) {
          std::this_thread::sleep_for(kStallStep);
        }
        return {};
      case SourceFault::kGarbage:
      case SourceFault::kNan:
      case SourceFault::kBadScale: return {};  // of the bytes that are read
    }
    return {};
  }

  Status truncate() {
    std::error_code code;
    const std::uintmax_t bytes = fs::file_size(injector_.victim_, code);
    if (!code) fs::resize_file(injector_.victim_, bytes / 2, code);
    if (code) return file_error(injector_.victim_, code);
    return {};
  }

  Status replace() {
    std::error_code code;
    const std::string next = injector_.victim_ + ".next";
    fs::create_symlink(injector_.substitute_, next, code);
    if (!code) fs::rename(next, injector_.victim_, code);
    if (code) return file_error(injector_.victim_, code);
    return {};
  }

  // Of whatever floats the checkpoint has.
  void spoil(std::size_t index, std::uint64_t offset, std::span<std::byte> to) {
    const reload::SourceTensor& tensor = tensors()[index];
    const auto width = static_cast<std::size_t>(tensor::dtype_bits(tensor.dtype)) / 8;
    if (width == 0 || offset % width != 0 || to.size() < width) return;
    const reload::Insanity insanity = reload::insanity_of(tensor.name, tensor.dtype);
    switch (*injector_.source_fault_) {
      case SourceFault::kGarbage: fired_ = make_garbage(tensor.dtype, width, to); return;
      case SourceFault::kNan: fired_ = make_nan(tensor.dtype, to.first(width)); return;
      case SourceFault::kBadScale:
        fired_ = make_bad_scale(insanity, to.subspan(to.size() / 2 / width * width, width));
        return;
      default: return;
    }
  }

  FaultInjector& injector_;
  std::unique_ptr<reload::Source> inner_;
  const std::uint64_t at_read_;  // about half-way
  std::uint64_t reads_ = 0;
  bool fired_ = false;
  bool dead_ = false;
};

FaultInjector::FaultInjector(std::string_view name, device::Device& device,
                             const base::Clock& clock, std::atomic<bool>& cancel)
    : name_(name),
      device_fault_(device::fault_from_name(name)),
      source_fault_(source_fault_from_name(name)),
      device_(dynamic_cast<device::SimDevice*>(&device)),
      clock_(clock),
      cancel_(cancel) {}

FaultInjector::~FaultInjector() {
  disarm();
  std::error_code ignored;  // what is left lies among other temporary files
  if (!stand_in_.empty()) fs::remove_all(stand_in_, ignored);
}

bool FaultInjector::knows(std::string_view name) {
  return device::fault_from_name(name) || source_fault_from_name(name) || name == kStepsFail;
}

bool FaultInjector::fails_steps() const { return name_ == kStepsFail; }

Result<std::unique_ptr<FaultInjector>> FaultInjector::create(std::string_view name,
                                                             device::Device& device,
                                                             const base::Clock& clock,
                                                             std::atomic<bool>& cancel) {
  HF_ASSERT(knows(name), "a fault that nobody knows");
  std::unique_ptr<FaultInjector> injector(new FaultInjector(name, device, clock, cancel));
  const bool needs_simulation =
      injector->fails_steps() ||
      (injector->device_fault_ && injector->device_fault_ != Fault::kLaunchFails);
  if (injector->fails_steps() && device.kind() != device::DeviceKind::kCpu) {
    return make_error(ErrorCode::kUnsupported,
                      "fault {} cannot be injected into {}: launches fail on a simulated cpu alone",
                      name, device.name());
  }
  if (needs_simulation && injector->device_ == nullptr) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "fault {} cannot be injected into {}: open the engine with simulate_faults",
                      name, device.name());
  }
  return injector;
}

Result<std::string> FaultInjector::stand_in(const std::string& directory) {
  const bool truncated = source_fault_ == SourceFault::kTruncated;
  if (!truncated && source_fault_ != SourceFault::kReplaced) return directory;
  std::error_code code;
  const fs::path from = fs::canonical(directory, code);
  if (code) return file_error(directory, code);
  std::string pattern = (fs::temp_directory_path(code) / "holdfast-fault-XXXXXX").string();
  if (code || mkdtemp(pattern.data()) == nullptr) {
    return make_error(ErrorCode::kIo, "{}: cannot make a temporary directory", pattern);
  }
  stand_in_ = pattern;
  std::vector<std::pair<std::uintmax_t, fs::path>> shards;
  for (const auto& entry : fs::directory_iterator(from, code)) {
    const fs::path link = fs::path(stand_in_) / entry.path().filename();
    fs::create_symlink(entry.path(), link, code);
    if (code) return file_error(link.string(), code);
    if (link.extension() != ".safetensors") continue;
    shards.emplace_back(fs::file_size(entry.path(), code), link);
  }
  if (code) return file_error(directory, code);
  if (shards.empty()) return stand_in_;  // which cannot be opened either
  // The smallest: truncating needs a copy of it.
  const auto smallest = *std::min_element(shards.begin(), shards.end());
  victim_ = smallest.second.string();
  substitute_ = (from / "config.json").string();
  if (truncated) {
    const fs::path original = from / smallest.second.filename();
    fs::remove(victim_, code);
    fs::copy_file(original, victim_, code);
    if (!code) fs::permissions(victim_, fs::perms::owner_read | fs::perms::owner_write, code);
    if (code) return file_error(victim_, code);
  }
  return stand_in_;
}

std::int64_t FaultInjector::deadline_ns(std::int64_t asked_ns) {
  if (source_fault_ != SourceFault::kDeadline) return asked_ns;
  deadline_ns_ = clock_.now_ns() + kStallNs;
  if (asked_ns != 0) deadline_ns_ = std::min(deadline_ns_, asked_ns);
  return deadline_ns_;
}

Status FaultInjector::check(const reload::ReloadPlan& plan) const {
  using reload::CommitStrategy;
  if (!device_fault_) return {};
  bool acts = true;
  const bool streams = plan.strategy == CommitStrategy::kStream;
  switch (*device_fault_) {
    case Fault::kAllocationFails:
      acts = !streams || plan.undo == reload::UndoPolicy::kImage;
      break;
    case Fault::kCopyFails: acts = plan.strategy == CommitStrategy::kCopy; break;
    case Fault::kExchangeFails: acts = plan.strategy == CommitStrategy::kRemap; break;
    case Fault::kLaunchFails: acts = !plan.derivations.empty(); break;
    case Fault::kProtectFails:
    case Fault::kDeviceLost: break;
  }
  if (acts) return {};
  return make_error(ErrorCode::kNotFound,
                    "fault {}: a reload by {} with {} derivations makes no such call", name_,
                    reload::commit_strategy_name(plan.strategy), plan.derivations.size());
}

std::unique_ptr<reload::Source> FaultInjector::wrap(std::unique_ptr<reload::Source> source) {
  if (!source_fault_) return source;
  return std::make_unique<FaultySource>(*this, std::move(source));
}

std::unique_ptr<device::Stream> FaultInjector::wrap(std::unique_ptr<device::Stream> stream) const {
  if (device_fault_ != Fault::kLaunchFails) return stream;
  return std::make_unique<FailingStream>(std::move(stream));
}

// Steps allocate nothing, so the first allocation is the reload's.
void FaultInjector::before_staging() {
  if (device_fault_ != Fault::kAllocationFails) return;
  device_->arm({{.fault = Fault::kAllocationFails, .at_call = 0, .at_byte = 0}});
}

// Steps write and launch, so what they also do fails in the quiet moment alone.
void FaultInjector::before_commit(std::size_t arenas) {
  if (!device_fault_ || *device_fault_ == Fault::kAllocationFails ||
      *device_fault_ == Fault::kLaunchFails) {
    return;
  }
  // So late that there is something to undo, where a model has more than one arena.
  std::uint64_t at_call = 0;
  if (*device_fault_ == Fault::kExchangeFails && arenas > 1) at_call = 1;
  if (*device_fault_ == Fault::kDeviceLost) at_call = kCallsBeforeLoss;
  device_->arm({{.fault = *device_fault_, .at_call = at_call, .at_byte = kTornCopyBytes}});
}

// A device that was lost is back for whatever comes next.
void FaultInjector::after_commit() {
  disarm();
  if (!fails_steps()) return;
  std::vector<device::FaultPlan> plans;
  for (std::uint64_t call = 0; call < kFailingLaunches; ++call) {
    plans.push_back({.fault = Fault::kLaunchFails, .at_call = call, .at_byte = 0});
  }
  device_->arm(std::move(plans));
}

void FaultInjector::disarm() {
  if (device_ != nullptr) device_->disarm();
}

}  // namespace holdfast::engine
