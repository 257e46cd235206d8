// The event of a reload whose bytes the trainer pushes: in any order and in pieces, while the
// engine serves on; cut short, aborted, and with bytes that come twice or belong nowhere.
#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "simulation.h"

namespace holdfast::sim {
namespace {

// Steps and refused calls between two pieces, in one reload.
constexpr int kMaxBetween = 6;

std::size_t element_bytes(const reload::SourceTensor& tensor) {
  return static_cast<std::size_t>(tensor::dtype_bits(tensor.dtype)) / 8;
}

}  // namespace

// All weights of a version whose constants are the live ones: a push brings no config.
bool Simulation::may_push(const ReloadChoice& choice) const {
  return choice.fault == FaultKind::kNone && !choice.part && !choice.streams() &&
         !choice.options.apply_constants &&
         versions_[choice.version].weights.other_constants ==
             versions_[expected_.version].weights.other_constants;
}

// `may_fail`: whether it may be cut short or aborted.
Status Simulation::push_reload(bool may_fail) {
  event_name_ = "push";
  ++table_.pushes;
  const ReloadChoice choice = open_->choice;
  const auto id = core_->begin_push({}, choice.options);
  if (!id.ok()) {
    const Fired fired = take_fired();
    disarm();
    if (fired.empty()) return violation("begin_push: " + id.error().to_string());
    note(fired, Outcome::kRefused);
    open_.reset();
    return {};
  }
  HF_ASSIGN(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
            checkpoint::Checkpoint::open(choice.directory));
  const auto source = reload::make_checkpoint_source(std::move(checkpoint));
  std::vector<std::size_t> order(source->tensors().size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[below(i)]);
  // How many tensors come: mostly all.
  const bool cut = may_fail && one_in(6);
  if (cut) order.resize(below(order.size()));
  int between = 0;
  for (const std::size_t index : order) {
    HF_TRY(push_tensor(*id, *source, index));
    if (!open_ || core_->reload_phase() != ReloadPhase::kStaging) return observe(take_fired());
    if (between == kMaxBetween || !one_in(4)) continue;
    ++between;
    if (may_fail && one_in(12)) return abort_reload();
    HF_TRY(between_pushes(*id, source->tensors()[index]));
    if (!open_) return {};
  }
  if (cut) {
    ++table_.at(FaultKind::kPushCutShort, Outcome::kFired);
    open_->causes.push_back(FaultKind::kPushCutShort);
  }
  const Status ended = core_->end_push(*id);
  if (ended.ok() && cut) return violation("a push that was cut short is ready");
  return observe(take_fired());
}

// One tensor, in pieces of whole elements.
Status Simulation::push_tensor(std::uint64_t id, reload::Source& source, std::size_t index) {
  const reload::SourceTensor& tensor = source.tensors()[index];
  const auto elements = static_cast<std::size_t>(tensor.shape.element_count());
  std::vector<std::byte> bytes(elements * element_bytes(tensor));
  HF_TRY(source.read(index, 0, bytes));
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t piece = (1 + below(elements)) * element_bytes(tensor);
    const std::size_t count = std::min(bytes.size() - at, piece);
    const Status pushed =
        core_->push(id, tensor.name, at, std::span<const std::byte>(bytes).subspan(at, count));
    if (!pushed.ok()) {
      // Only a device may have failed it, and then the reload is over.
      if (core_->reload_phase() == ReloadPhase::kFailed) return {};
      return violation("push: " + pushed.error().to_string());
    }
    at += count;
  }
  return {};
}

// The engine serves on, and what is wrong is refused and disturbs nothing.
Status Simulation::between_pushes(std::uint64_t id, const reload::SourceTensor& pushed) {
  const std::vector<std::byte> one(element_bytes(pushed));
  const auto refused = [&](ErrorCode code, const char* what, const Status& status) -> Status {
    ++table_.at(FaultKind::kPushRefused, Outcome::kFired);
    if (status.ok() || status.error().code() != code) {
      return violation(fmt::format("{}: {}", what,
                                   status.ok() ? "taken" : status.error().to_string()));
    }
    ++table_.at(FaultKind::kPushRefused, Outcome::kServedOn);
    return {};
  };
  switch (below(7)) {
    case 0:
      return refused(ErrorCode::kCorrupt, "bytes that came before",
                     core_->push(id, pushed.name, 0, one));
    case 1:
      return refused(ErrorCode::kNotFound, "an unknown tensor",
                     core_->push(id, pushed.name + ".none", 0, one));
    case 2:
      return refused(ErrorCode::kFailedPrecondition, "bytes of another reload",
                     core_->push(id + 1, pushed.name, 0, one));
    case 3: return begin_while_open();
    case 4: HF_TRY(submit()); [[fallthrough]];
    default:
      HF_TRY(step(true));
      return check("step while pushed");
  }
}

}  // namespace holdfast::sim
