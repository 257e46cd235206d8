// FaultInjector: a named fault of a device or a source (ReloadOptions::inject), made to happen to
// one reload, so that a drill can see what the engine makes of it. Owned by the reloader; used by
// the thread that stages, then by the engine thread in the commit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "device/sim/sim_device.h"
#include "reload/plan.h"
#include "reload/source.h"

namespace holdfast::engine {

// What a source can do wrong, at a moment of the injector's choice.
enum class SourceFault : std::uint8_t {
  kShortRead,   // a read gives fewer bytes than were asked for
  kSourceDies,  // a read fails, and every later one
  kGarbage,     // other bytes come, each of which could be a weight
  kNan,         // an element of any float dtype is NaN
  kBadScale,    // a scale of any dtype is negative, or the e8m0 NaN 0xFF
  kTruncated,   // a file becomes shorter while it is read
  kReplaced,    // a file becomes another one while it is read
  kCancelled,   // the reload is cancelled while it is read
  kDeadline,    // the source stalls until the deadline is over
};

class FaultInjector {
 public:
  static bool knows(std::string_view name);
  // All must outlive the injector; kCancelled sets `cancel`. Asserts that the name is known.
  // Errors: kFailedPrecondition when a fault of the device needs a simulated one.
  static Result<std::unique_ptr<FaultInjector>> create(std::string_view name,
                                                       device::Device& device,
                                                       const base::Clock& clock,
                                                       std::atomic<bool>& cancel);
  // Disarms the device, and removes the stand-in.
  ~FaultInjector();
  FaultInjector(const FaultInjector&) = delete;
  FaultInjector& operator=(const FaultInjector&) = delete;

  // The directory to read instead of `directory`: for a fault that changes files a stand-in of
  // links to them, in the system's directory for temporary files. Errors: kIo.
  Result<std::string> stand_in(const std::string& directory);
  // The deadline of a reload that asked for `asked_ns` (0: none).
  std::int64_t deadline_ns(std::int64_t asked_ns);
  // Errors: kNotFound when a reload of this plan makes no call that could fail so, because a drill
  // must not pass by injecting nothing.
  Status check(const reload::ReloadPlan& plan) const;
  std::unique_ptr<reload::Source> wrap(std::unique_ptr<reload::Source> source);
  std::unique_ptr<device::Stream> wrap(std::unique_ptr<device::Stream> stream) const;

  void before_staging();
  // `arenas`: how many the commit exchanges.
  void before_commit(std::size_t arenas);
  // From here until the next reload begins, "steps-fail" fails every step's launch.
  void after_commit();

 private:
  class FaultySource;
  FaultInjector(std::string_view name, device::Device& device, const base::Clock& clock,
                std::atomic<bool>& cancel);
  void disarm();
  bool fails_steps() const;

  const std::string name_;
  std::optional<device::Fault> device_fault_;
  std::optional<SourceFault> source_fault_;
  device::SimDevice* const device_;  // null: not a simulated one
  const base::Clock& clock_;
  std::atomic<bool>& cancel_;
  std::int64_t deadline_ns_ = 0;
  std::string stand_in_;  // empty: none
  std::string victim_;    // the file in it that changes
  std::string substitute_;
};

}  // namespace holdfast::engine
