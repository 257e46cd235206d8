#include "device/cpu/cpu_stream.h"

#include <cstring>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/error.h"

namespace holdfast::device {
namespace {

AddressRange range_of(const std::byte* address, std::size_t bytes) {
  return {reinterpret_cast<std::uintptr_t>(address), bytes};
}

struct CopyArgs {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};

void run_copy(const void* raw, WorkerPool& workers) {
  const auto& args = *static_cast<const CopyArgs*>(raw);
  constexpr std::int64_t kGrainBytes = 256 << 10;
  workers.parallel_for(static_cast<std::int64_t>(args.bytes), kGrainBytes,
                       [&args](std::int64_t begin, std::int64_t end, int) {
                         std::memcpy(args.to + begin, args.from + begin,
                                     static_cast<std::size_t>(end - begin));
                       });
}

class CpuStreamImpl final : public CpuStream {
 public:
  explicit CpuStreamImpl(int workers) : workers_(workers) {}

  Status synchronize() override { return {}; }  // a launch has run when it returns
  bool capturing() const override { return recording_.has_value(); }
  WorkerPool& workers() override { return workers_; }

  Status launch(const CpuKernel& kernel) override {
    HF_ASSERT(kernel.run != nullptr, "a kernel without a function");
    HF_ASSERT(kernel.arg_bytes <= kMaxKernelArgBytes, "arguments over kMaxKernelArgBytes");
    HF_ASSERT(kernel.operands.size() <= kMaxKernelOperands, "operands over kMaxKernelOperands");
    if (recording_) {
      recording_->add(kernel);
    } else {
      kernel.run(kernel.args, workers_);
    }
    return {};
  }

  Status copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    const CopyArgs args{to, from, bytes};
    const Operand operands[] = {{"from", range_of(from, bytes), Access::kRead},
                                {"to", range_of(to, bytes), Access::kWrite}};
    HF_ASSERT(operands[0].range.end() <= operands[1].range.begin ||
                  operands[1].range.end() <= operands[0].range.begin,
              "a copy between ranges that overlap");
    return launch(CpuKernel{.name = "copy",
                            .run = &run_copy,
                            .args = &args,
                            .arg_bytes = sizeof(args),
                            .operands = operands});
  }

 protected:
  Status begin_capture() override {
    if (recording_) {
      return make_error(ErrorCode::kFailedPrecondition, "the stream is capturing already");
    }
    recording_.emplace();
    return {};
  }

  Result<std::unique_ptr<Graph>> end_capture(const AddressHome& home, std::string label) override {
    if (!recording_) {
      return make_error(ErrorCode::kFailedPrecondition, "the stream is not capturing");
    }
    CpuRecording recording = std::move(*recording_);
    recording_.reset();
    return std::unique_ptr<Graph>(
        std::make_unique<CpuGraph>(std::move(recording), home, std::move(label)));
  }

 private:
  WorkerPool workers_;
  std::optional<CpuRecording> recording_;
};

}  // namespace

Result<std::unique_ptr<Stream>> make_cpu_stream(int workers) {
  if (workers < 0 || workers > kMaxStreamWorkers) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a CPU stream has 1 to {} workers (0: all cores), not {}", kMaxStreamWorkers,
                      workers);
  }
  return std::unique_ptr<Stream>(std::make_unique<CpuStreamImpl>(workers));
}

}  // namespace holdfast::device
