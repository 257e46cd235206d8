#include "device/replay_check.h"

#include "base/error.h"

namespace holdfast::device {
namespace {

Error closed_gate(const std::string& label, ReplayGate gate) {
  switch (gate) {
    case ReplayGate::kPoisoned:
      return make_error(ErrorCode::kPoisoned,
                        "graph {}: a reload failed half-way and what it reads is a mixture; it "
                        "runs again after a complete reload",
                        label);
    case ReplayGate::kApplying:
      return make_error(ErrorCode::kFailedPrecondition,
                        "graph {}: launched while a commit is applying; launch it after the commit",
                        label);
    case ReplayGate::kUnpublished:
    case ReplayGate::kOpen: break;
  }
  return make_error(ErrorCode::kFailedPrecondition,
                    "graph {}: pages were exchanged under an arena since the last commit, and no "
                    "commit has published them",
                    label);
}

}  // namespace

Status check_replay(const AddressHome& home, std::uint64_t captured_generation,
                    const std::string& label) {
  if (home.layout_generation() != captured_generation) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "graph {} was captured over layout generation {}, now it is {}: its "
                      "addresses are no longer valid; it must not be replayed",
                      label, captured_generation, home.layout_generation());
  }
  const ReplayGate gate = home.replay_gate();
  return gate == ReplayGate::kOpen ? Status() : closed_gate(label, gate);
}

}  // namespace holdfast::device
