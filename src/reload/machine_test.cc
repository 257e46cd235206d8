// Property tests: the plan and the transaction against models of themselves.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "reload/intervals.h"
#include "reload/reload_fixture.h"

namespace holdfast::reload {
namespace {

using testing::content;
using testing::Engine;
using testing::FakeSource;

constexpr std::uint64_t kReads = 1 + 3 * (3 + 1 + 2 * 3);  // of a whole source in memory

const std::vector<std::vector<std::byte>>& cold_content(std::uint64_t seed) {
  static std::map<std::uint64_t, std::vector<std::vector<std::byte>>> known;
  auto& bytes = known[seed];
  if (bytes.empty()) {
    Engine cold;
    FakeSource source = cold.source(seed);
    cold.reload(source, CommitStrategy::kRemap).value();
    bytes = content(cold.registry);
  }
  return bytes;
}

// What the transaction and the live weights should be.
struct Model {
  TransactionState state = TransactionState::kRolledBack;
  std::uint64_t epoch = 0;
  std::uint64_t live_seed = 0;
  bool poisoned = false;
  std::string label;
};

// Carries each step out on a real engine and on the model.
class Machine {
 public:
  using Step = std::tuple<std::uint8_t, std::uint8_t>;

  void run(const Step& step) {
    const auto [what, choice] = step;
    switch (what % 8) {
      case 0: begin(choice); break;
      case 1: stage(choice); break;
      case 2: prepare(); break;
      case 3: commit(); break;
      case 4: verify(); break;
      case 5: roll_back(); break;
      case 6: abort(); break;
      default: whole(choice); break;
    }
    check();
  }

 private:
  void begin(std::uint8_t choice) {
    engine_.transaction.reset();
    seed_ = 1 + choice % 3u;
    source_ = std::make_unique<FakeSource>(engine_.source(seed_));
    PlanOptions options;
    strategy_ = kCommitStrategies[choice / 3 % 3];
    options.strategy = strategy_;
    options.undo = choice % 2 == 0 ? UndoPolicy::kImage : UndoPolicy::kNone;
    image_ = options.undo == UndoPolicy::kImage;
    auto plan = make_plan(engine_.registry, engine_.model_config, *source_, options).value();
    label_ = "seed " + std::to_string(seed_);
    engine_.transaction = Transaction::begin(engine_.registry, std::move(plan),
                                             {.clock = &engine_.clock, .label = label_})
                              .value();
    model_.state = TransactionState::kPlanned;
  }

  void stage(std::uint8_t choice) {
    if (engine_.transaction == nullptr) return;
    const bool fails = choice % 3 == 0;
    const bool allowed = model_.state == TransactionState::kPlanned;
    if (allowed) {
      source_->fail_at_call = fails ? choice % kReads : ~0ull;
      source_fails_ = fails;
    }
    const bool ok = engine_.transaction->stage(*source_, *engine_.stream).ok();
    const bool streams = strategy_ == CommitStrategy::kStream;
    RC_ASSERT(ok == (allowed && (streams || !fails)));
    if (!allowed) return;
    model_.state = ok ? TransactionState::kStaging : TransactionState::kRolledBack;
  }

  void prepare() {
    if (engine_.transaction == nullptr) return;
    const bool allowed = model_.state == TransactionState::kStaging;
    RC_ASSERT(engine_.transaction->prepare().ok() == allowed);
    if (allowed) model_.state = TransactionState::kPrepared;
  }

  void commit() {
    if (engine_.transaction == nullptr) return;
    const bool allowed = model_.state == TransactionState::kPrepared;
    const bool fails = strategy_ == CommitStrategy::kStream && source_fails_;
    RC_ASSERT(engine_.transaction->commit().ok() == (allowed && !fails));
    if (!allowed) return;
    if (fails) {
      model_.state = image_ ? TransactionState::kRolledBack : TransactionState::kPoisoned;
      model_.poisoned = model_.poisoned || !image_;
      return;
    }
    before_ = model_;
    model_ = {.state = TransactionState::kCommitted,
              .epoch = ++commits_,
              .live_seed = seed_,
              .poisoned = false,
              .label = label_};
    way_back_ = strategy_ != CommitStrategy::kStream || image_;
  }

  void verify() {
    if (engine_.transaction == nullptr) return;
    const bool allowed = model_.state == TransactionState::kCommitted;
    RC_ASSERT(engine_.transaction->verify().ok() == allowed);
    if (allowed) way_back_ = false;
  }

  void roll_back() {
    if (engine_.transaction == nullptr) return;
    const bool allowed = model_.state == TransactionState::kCommitted && way_back_;
    RC_ASSERT(engine_.transaction->roll_back().ok() == allowed);
    if (!allowed) return;
    model_ = before_;
    model_.state = TransactionState::kRolledBack;
  }

  void abort() {
    if (engine_.transaction == nullptr) return;
    engine_.transaction->abort(Error(ErrorCode::kCancelled, "asked to"));
    const bool before_commit = model_.state == TransactionState::kPlanned ||
                               model_.state == TransactionState::kStaging ||
                               model_.state == TransactionState::kPrepared;
    if (before_commit) model_.state = TransactionState::kRolledBack;
  }

  // A way to deep states that random steps seldom take.
  void whole(std::uint8_t choice) {
    begin(choice);
    stage(static_cast<std::uint8_t>(choice / 3 * 3 + 1));
    prepare();
    commit();
  }

  void check() const {
    RC_ASSERT(engine_.registry.epoch().value == model_.epoch);
    RC_ASSERT(engine_.registry.poisoned() == model_.poisoned);
    RC_ASSERT(engine_.registry.label() == model_.label);
    if (engine_.transaction != nullptr) {
      RC_ASSERT(engine_.transaction->state() == model_.state);
    }
    if (model_.poisoned || model_.epoch == 0) return;
    RC_ASSERT(content(engine_.registry) == cold_content(model_.live_seed));
  }

  Engine engine_;
  std::unique_ptr<FakeSource> source_;
  Model model_, before_;
  std::uint64_t commits_ = 0;  // rolled back or not: the number of the last one is its epoch
  std::uint64_t seed_ = 0;
  CommitStrategy strategy_ = CommitStrategy::kRemap;
  std::string label_;
  bool image_ = false, source_fails_ = false, way_back_ = false;
};

RC_GTEST_PROP(TransactionMachine, IsItsModelAfterEveryStep, ()) {
  Machine machine;
  for (const auto& step : *rc::gen::arbitrary<std::vector<Machine::Step>>()) machine.run(step);
}

// Every versioned byte is written or preserved, once.
void check_covers(const storage::Registry& registry, const ReloadPlan& plan) {
  std::map<storage::SlotId, Intervals> written;
  for (const CopyStep& copy : plan.copies) {
    RC_ASSERT(written[copy.slot].add(copy.offset_bytes, copy.offset_bytes + copy.bytes));
  }
  for (const PreserveStep& step : plan.preserved) {
    RC_ASSERT(written[step.slot].add(step.offset_bytes, step.offset_bytes + step.bytes));
  }
  for (const DeriveStep& step : plan.derivations) {
    const storage::Derivation& of = registry.derivations()[step.derivation_index];
    for (const storage::SlotId id : of.outputs) {
      const auto bytes = registry.slot(id).range.bytes / static_cast<std::size_t>(of.slice_count);
      for (const std::int64_t slice : step.slices) {
        const std::size_t at = static_cast<std::size_t>(slice) * bytes;
        RC_ASSERT(written[id].add(at, at + bytes));
      }
    }
  }
  for (const storage::Slot& slot : registry.slots()) {
    const bool loaded = slot.spec.slot_class == storage::SlotClass::kWeight ||
                        slot.spec.slot_class == storage::SlotClass::kDerived;
    RC_ASSERT(!loaded || written[slot.id].covers(slot.range.bytes));
  }
}

RC_GTEST_PROP(PlanMachine, AnyScopeOfWholeUnitsCoversEveryByteOnce,
              (const std::vector<std::uint8_t>& layers,
               const std::vector<std::pair<std::uint8_t, std::uint8_t>>& experts, bool embed)) {
  static Engine& engine = *new Engine;
  if (engine.registry.epoch().value == 0) {
    FakeSource first = engine.source(1);
    engine.reload(first, CommitStrategy::kRemap).value();
  }
  Scope scope;
  for (const std::uint8_t layer : layers) scope.layers.push_back(layer % 3);
  for (const auto& [layer, expert] : experts) scope.experts.push_back({layer % 3, expert % 3});
  if (embed) scope.parameters.push_back("model.embed");
  PlanOptions options;
  options.scope = scope;
  auto source = make_scoped_source(std::make_unique<FakeSource>(engine.source(2)), engine.registry,
                                   scope)
                    .value();
  const auto plan = make_plan(engine.registry, engine.model_config, *source, options);
  RC_ASSERT(plan.ok());
  check_covers(engine.registry, *plan);
}

// Bent sources: accepted only when every defect was bent away again.
RC_GTEST_PROP(PlanMachine, ASourceIsAcceptedExactlyWhenEveryTensorComesOnceAndFits,
              (const std::vector<std::pair<std::uint8_t, std::uint8_t>>& edits)) {
  static Engine& engine = *new Engine;
  FakeSource source = engine.source(1);
  for (const auto& [what, choice] : edits) {
    if (source.data.empty()) break;
    const std::size_t at = choice % source.data.size();
    switch (what % 4) {
      case 0: source.data.erase(source.data.begin() + static_cast<std::ptrdiff_t>(at)); break;
      case 1: source.data.push_back(testing::FakeTensor(source.data[at])); break;
      case 2: std::swap(source.data[at], source.data.front()); break;
      default:
        source.data[at].spec.shard_count = source.data[at].spec.shard_count == 1 ? 2 : 1;
        break;
    }
  }
  source.refresh();
  std::map<std::string, int> count;
  bool fits = true;
  for (const SourceTensor& tensor : source.tensors()) {
    ++count[tensor.name];
    fits = fits && tensor.shard_count == 1;
  }
  const bool once = count.size() == engine.registry.parameters().size() &&
                    source.tensors().size() == count.size();
  const auto plan = make_plan(engine.registry, engine.model_config, source, PlanOptions{});
  RC_ASSERT(plan.ok() == (fits && once));
  if (plan.ok()) check_covers(engine.registry, *plan);
}

}  // namespace
}  // namespace holdfast::reload
