// Device: memory, streams and graphs of one processor. The allocator is for Arena alone.
// Thread-safe except where said; a Stream and the graphs launched on it belong to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "device/lanes.h"
#include "device/graph_reading.h"
#include "device/manifest.h"
#include "device/memory.h"
#include "device/upload.h"
#include "holdfast/result.h"

namespace holdfast::device {

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

class Graph;

// An ordered queue of work. On the CPU a launch runs at once, on the calling thread and the
// stream's workers.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual DeviceKind kind() const = 0;
  // Returns once everything enqueued is done. Errors: kDevice (sticky).
  virtual Status synchronize() = 0;
  // Enqueues a copy between two ranges of device memory that do not overlap. Errors: kDevice.
  virtual Status copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  virtual bool capturing() const = 0;

 protected:
  friend Result<std::unique_ptr<Graph>> capture(Stream&, const AddressHome&, std::string,
                                                const std::function<Status()>&);
  // Between the two calls launches are recorded and not run. Errors: kFailedPrecondition.
  virtual Status begin_capture() = 0;
  // Ends the recording whatever `home` is; the new graph's manifest is not yet checked.
  virtual Result<std::unique_ptr<Graph>> end_capture(const AddressHome& home,
                                                     std::string label) = 0;

  // For a stream that wraps another: these calls on the inner one.
  static Status begin_capture_on(Stream& inner) { return inner.begin_capture(); }
  static Result<std::unique_ptr<Graph>> end_capture_on(Stream& inner, const AddressHome& home,
                                                       std::string label) {
    return inner.end_capture(home, std::move(label));
  }
};

// The replayable result of a capture: every address in it was resolved when it was recorded.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual const std::string& label() const = 0;
  virtual const AddressManifest& manifest() const = 0;
  // Looks for pointers in the arguments of the recorded kernels that the manifest does not declare.
  // Errors: kMismatch naming node, position and address.
  virtual Status check_parameters(const AddressHome& home) const = 0;
  // Of the last check_parameters; zeros where they are not counted.
  virtual AuditFigures audited() const { return {}; }
  // Every node and every pointer in it, for whoever wants to see them. Errors: kDevice.
  virtual Result<GraphReading> read_back() const = 0;
  // Replays verbatim on `stream`. Errors, found in O(1): kFailedPrecondition when the home's layout
  // generation is not the one that was captured over or its replay gate is closed, kPoisoned.
  // kDevice.
  virtual Status launch(Stream& stream) = 0;
};

// Records what `body` launches on `stream`. Errors: kFailedPrecondition when `home` is not sealed
// or a capture is open; kMismatch naming node, operand and address for a pointer with no home or an
// undeclared one; whatever `body` returns. On an error nothing stays recorded and the stream is
// usable. `home` must outlive the graph.
Result<std::unique_ptr<Graph>> capture(Stream& stream, const AddressHome& home, std::string label,
                                       const std::function<Status()>& body);

struct MemoryUsage {
  std::size_t live_bytes = 0;  // given out and not yet freed
  std::size_t peak_bytes = 0;  // the most that live_bytes has been since reset_peak()
  std::size_t pooled_bytes = 0;  // freed and kept for the next allocation of their size
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual std::string name() const = 0;  // "cpu (2 threads, AVX3)"
  // Granularity of allocate, protect and exchange_backing.
  virtual std::size_t page_bytes() const = 0;

  // Page-aligned, rounded up to pages, filled with kPoisonByte. Errors: kResourceExhausted naming
  // the bytes asked for and available.
  virtual Result<Memory> allocate(std::size_t bytes) = 0;
  // `memory` must be what allocate returned (asserted). Small blocks are poisoned and pooled, so
  // that a pointer into freed memory reads poison or a stranger's data, as on a GPU with a caching
  // allocator (and faults under AddressSanitizer); large ones go back to the system.
  virtual void free(Memory memory) = 0;
  // Errors: kDevice, kInvalidArgument for a range that is not whole pages.
  virtual Status protect(Memory memory, Protection protection) = 0;
  // Exchanges the physical pages under two allocations of one size; both addresses stay what they
  // are, contents and protection travel with the pages. The caller vouches that nothing touches
  // either while this runs. On an error both ranges are as before. Errors: kDevice.
  virtual Status exchange_backing(Memory a, Memory b) = 0;
  virtual MemoryUsage usage() const = 0;
  virtual void reset_peak() = 0;

  // Host bytes into device memory and back, or from one place in it to another; synchronous.
  // Errors: kDevice.
  virtual Status write(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  virtual Status read(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  // Many writes at once. The device must outlive it. Errors: kResourceExhausted, kDevice.
  virtual Result<std::unique_ptr<Upload>> create_upload();
  // Keeps host memory where it is while the result lives, so that Upload::is_page_locked holds for
  // it. Errors: kUnsupported where nothing is fetched from there; kDevice.
  virtual Result<std::shared_ptr<const void>> page_lock(std::span<std::byte> memory);
  // Swaps the contents of two ranges of device memory in one go, where the device can do that
  // faster than reads and writes; else kUnsupported, and nothing is touched. Any other error
  // leaves both ranges undefined. Errors: kDevice.
  virtual Status swap(std::byte* a, std::byte* b, std::size_t bytes);
  // The tree digest (base/digest.h) of each range, in bounded host memory. Errors: kDevice.
  virtual Result<std::vector<base::Digest>> digests(std::span<const Memory> ranges);
  // For each search the first element that is hit. Errors: kDevice.
  virtual Result<std::vector<std::optional<std::size_t>>> find_lanes(
      std::span<const LaneSearch> searches);
  // Whether the host may dereference device addresses (true on the CPU).
  virtual bool host_addressable() const = 0;

  // A new stream. `workers`: CPU threads that serve it, the caller included; 0 means all cores.
  virtual Result<std::unique_ptr<Stream>> create_stream(int workers = 0) = 0;
};

}  // namespace holdfast::device
