#include "reload/stage_far.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "reload/sanity.h"

namespace holdfast::reload {
namespace {

// A piece of one copy that lies in one tensor of the source.
struct Piece {
  std::size_t copy_index = 0;
  std::size_t source_index = 0;
  std::uint64_t offset = 0;  // in the parameter
  std::uint64_t source_offset = 0;
  std::size_t bytes = 0;
  // Where the source has it, when it can be sent from there.
  std::span<const std::byte> memory = {};
};

class FarStager {
 public:
  FarStager(const StageJob& job, Arrivals& arrivals, device::Upload& upload)
      : job_(job), arrivals_(arrivals), upload_(upload) {}

  Status run() {
    for (std::size_t i = 0; i < job_.plan.copies.size(); ++i) {
      if (is_plain_copy(job_.plan, job_.plan.copies[i])) cut(i);
    }
    const std::size_t threads = thread_count();
    std::vector<std::thread> helpers;
    for (std::size_t i = 1; i < threads; ++i) helpers.emplace_back([this] { work(false); });
    work(true);
    for (std::thread& helper : helpers) helper.join();
    // Also after an error: nothing may land in memory that is about to be freed.
    const Status landed = upload_.finish();
    if (error_) return *error_;
    return landed;
  }

 private:
  void cut(std::size_t copy_index) {
    const CopyStep& step = job_.plan.copies[copy_index];
    const std::uint64_t end = step.parameter_offset + step.bytes;
    for (const SourcePiece& of : job_.plan.feeds[step.parameter.index()].pieces) {
      const auto memory = job_.source.memory(of.source_index);
      const bool locked = !memory.empty() && upload_.is_page_locked(memory);
      const std::size_t most = locked ? kFarPieceBytes : device::kUploadBlockBytes;
      std::uint64_t at = std::max(of.begin, step.parameter_offset);
      while (at < std::min(of.end, end)) {
        const std::size_t bytes = std::min<std::uint64_t>(most, std::min(of.end, end) - at);
        const std::uint64_t from = at - of.begin;
        pieces_.push_back({.copy_index = copy_index,
                           .source_index = of.source_index,
                           .offset = at,
                           .source_offset = from,
                           .bytes = bytes,
                           .memory = locked ? memory.subspan(from, bytes)
                                            : std::span<const std::byte>()});
        needs_reading_ = needs_reading_ || !locked;
        at += bytes;
      }
    }
  }

  std::size_t thread_count() const {
    if (!needs_reading_ || !job_.source.reads_concurrently()) return 1;
    const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
    return std::max<std::size_t>(1, std::min({kFarThreads, cores, pieces_.size()}));
  }

  // Takes pieces until there are none or something failed. One thread looks at the guard.
  void work(bool guards) {
    while (!failed_.load(std::memory_order_relaxed)) {
      const std::size_t index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= pieces_.size()) return;
      Status status = guards ? job_.guard.check("staging") : Status();
      if (status.ok()) status = send(pieces_[index]);
      if (status.ok()) continue;
      const std::lock_guard lock(mutex_);
      // Of several errors that of the first piece counts.
      if (!error_ || index < error_index_) {
        error_ = status.error();
        error_index_ = index;
      }
      failed_.store(true, std::memory_order_relaxed);
    }
  }

  Status send(const Piece& piece) {
    const CopyStep& step = job_.plan.copies[piece.copy_index];
    const std::uint64_t in_step = piece.offset - step.parameter_offset;
    const std::uint64_t in_slot = step.offset_bytes + in_step;
    std::byte* const to = job_.staging.view(step.slot).address + in_slot;
    if (!piece.memory.empty()) {
      HF_TRY(note(piece, piece.memory, in_step, in_slot));
      job_.source.fetched(piece.source_index, piece.bytes);
      return upload_.send_from(to, piece.memory);
    }
    HF_ASSIGN(const device::UploadBlock block, upload_.take());
    const auto bytes = block.bytes.first(piece.bytes);
    Status status = job_.source.read(piece.source_index, piece.source_offset, bytes);
    if (!status.ok()) {
      const std::string& name = job_.registry.parameters()[step.parameter.index()].name;
      status = status.error().with_context(
          fmt::format("tensor {} bytes [{}, {})", name, piece.source_offset,
                      piece.source_offset + piece.bytes));
    } else {
      status = note(piece, bytes, in_step, in_slot);
    }
    const Status sent = upload_.send(block, to, status.ok() ? piece.bytes : 0);
    return status.ok() ? sent : status;
  }

  // The account of what is under way; an upload that fails fails the staging.
  Status note(const Piece& piece, std::span<const std::byte> bytes, std::uint64_t in_step,
              std::uint64_t in_slot) {
    const CopyStep& step = job_.plan.copies[piece.copy_index];
    const bool zero = all_zero(bytes);
    const std::lock_guard lock(mutex_);
    job_.log.wrote = true;
    arrivals_.note_zero(step.parameter, zero);
    HF_TRY(job_.receipts.record(job_.receipts.of_copy(piece.copy_index), in_step, bytes.size()));
    return job_.staging.record(step.slot, in_slot, bytes.size());
  }

  const StageJob& job_;
  Arrivals& arrivals_;
  device::Upload& upload_;
  std::vector<Piece> pieces_;
  bool needs_reading_ = false;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // guards what follows, the books and the arrivals
  std::optional<Error> error_;
  std::size_t error_index_ = 0;
};

// Of what has landed: in the plan's order, so that the same defect is named every time.
Status check_values(const StageJob& job) {
  std::vector<device::LaneSearch> searches;
  std::vector<const CopyStep*> steps;
  for (const CopyStep& step : job.plan.copies) {
    const storage::ParameterSpec& spec = job.registry.parameters()[step.parameter.index()];
    const Insanity insanity = insanity_of(spec.name, spec.dtype);
    if (insanity == Insanity::kNone || !is_plain_copy(job.plan, step)) continue;
    std::byte* const at = job.staging.view(step.slot).address + step.offset_bytes;
    for (const device::LaneTest& test : lane_tests_of(insanity)) {
      searches.push_back({.range = {at, step.bytes}, .test = test});
      steps.push_back(&step);
    }
  }
  HF_ASSIGN(const auto found, job.registry.device().find_lanes(searches));
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found[i]) continue;
    const CopyStep& step = *steps[i];
    const storage::ParameterSpec& spec = job.registry.parameters()[step.parameter.index()];
    const std::size_t width = searches[i].test.width;
    std::array<std::byte, sizeof(std::uint64_t)> element = {};
    HF_TRY(job.registry.device().read(
        element.data(), searches[i].range.address + *found[i] * width, width));
    return insane_value(spec, step.parameter_offset / width + *found[i],
                        std::span(element).first(width));
  }
  return {};
}

}  // namespace

bool is_plain_copy(const ReloadPlan& plan, const CopyStep& step) {
  const ParameterFeed& feed = plan.feeds[step.parameter.index()];
  const bool promised =
      feed.expected.has_value() ||
      std::any_of(feed.pieces.begin(), feed.pieces.end(),
                  [](const SourcePiece& piece) { return piece.expected.has_value(); });
  return !feed.cast_from.has_value() && !promised;
}

Status stage_far(const StageJob& job, Arrivals& arrivals) {
  HF_ASSIGN(device::Upload* const upload, job.staging.upload());
  HF_TRY(FarStager(job, arrivals, *upload).run());
  return check_values(job);
}

}  // namespace holdfast::reload
