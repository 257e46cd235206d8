// Fuzz target: fragments of any name, place and size. Nothing crashes, and a transaction commits
// only when exactly the model's bytes have come, which are then what the slots hold.
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "base/assert.h"
#include "reload/fuzz_model.h"
#include "reload/verify.h"

namespace holdfast::reload::fuzz {
namespace {

// What a plain reader of the same fragments would hold of each tensor.
struct Expected {
  std::vector<std::byte> bytes;
  std::vector<bool> came;
};

class Run {
 public:
  explicit Run(Bytes& bytes) : bytes_(bytes) {
    for (const SourceTensor& tensor : model_.manifest.tensors) {
      const std::size_t size = holdfast::tensor::byte_size(tensor.dtype, tensor.shape).value();
      expected_[tensor.name] = {std::vector<std::byte>(size), std::vector<bool>(size)};
    }
    const auto source = make_manifest_source(model_.manifest);
    PlanOptions options;
    options.strategy = bytes.next() % 2 == 0 ? CommitStrategy::kRemap : CommitStrategy::kCopy;
    auto plan = make_plan(model_.registry, {}, *source, options).value();
    transaction_ =
        Transaction::begin(model_.registry, std::move(plan), {.clock = &model_.clock}).value();
  }

  void put_one() {
    const auto& tensors = model_.manifest.tensors;
    Fragment fragment;
    const std::size_t choice = bytes_.next() % (tensors.size() + 1);
    fragment.tensor = choice < tensors.size() ? tensors[choice].name : bytes_.text();
    fragment.transaction.value =
        transaction_->id().value - (bytes_.next() % 16 == 0 ? 1u : 0u);
    fragment.overwrite = bytes_.next() % 4 == 0;
    fragment.offset_bytes = bytes_.next() % 16;
    std::vector<std::byte> data(bytes_.next() % 16);
    for (std::byte& byte : data) byte = static_cast<std::byte>(bytes_.next());
    const bool accepted = transaction_->put(fragment, data, *model_.stream).ok();
    if (!accepted) return;
    Expected& to = expected_.at(fragment.tensor);
    for (std::size_t i = 0; i < data.size(); ++i) {
      HF_ASSERT(fragment.overwrite || !to.came[fragment.offset_bytes + i],
                "a byte is accepted once unless it is overwritten");
      to.bytes[fragment.offset_bytes + i] = data[i];
      to.came[fragment.offset_bytes + i] = true;
    }
  }

  void put_rest() {
    for (auto& [name, to] : expected_) {
      for (std::size_t at = 0; at < to.bytes.size(); at += 2) {
        if (to.came[at]) continue;
        Fragment fragment;
        fragment.transaction = transaction_->id();
        fragment.tensor = name;
        fragment.offset_bytes = at;
        const std::array<std::byte, 2> zeros{};
        // The second of two bytes may have come by itself.
        const std::size_t count = to.came[at + 1] ? 1 : 2;
        if (transaction_->put(fragment, std::span(zeros).first(count), *model_.stream).ok()) {
          to.came[at] = to.came[at + 1] = true;
        }
      }
    }
  }

  void finish() {
    bool complete = true;
    for (const auto& [name, to] : expected_) {
      for (const bool came : to.came) complete = complete && came;
    }
    const auto run = [&]() -> Status {
      HF_TRY(transaction_->finish_staging(*model_.stream));
      HF_TRY(transaction_->prepare());
      HF_TRY(transaction_->commit());
      return transaction_->verify();
    };
    const bool committed = run().ok();
    HF_ASSERT(!committed || complete, "only a complete set of fragments is committed");
    HF_ASSERT(committed == (model_.registry.epoch().value == 1), "the epoch moves with a commit");
    if (!committed) return;
    HF_ASSERT(verify_registry(model_.registry).ok(), "what is committed is what was stamped");
    const auto slot = model_.registry.find_slot("layers.0.pair").value();
    const auto& a = expected_.at("model.layers.0.a.weight").bytes;
    HF_ASSERT(std::memcmp(model_.registry.view(slot).address, a.data(), a.size()) == 0,
              "the slot holds the fragments");
  }

 private:
  Bytes& bytes_;
  Model model_;
  std::unique_ptr<Transaction> transaction_;
  std::map<std::string, Expected> expected_;
};

}  // namespace
}  // namespace holdfast::reload::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace holdfast::reload::fuzz;
  Bytes bytes(data, size);
  Run run(bytes);
  const bool complete = bytes.next() % 2 == 0;
  while (!bytes.done()) run.put_one();
  if (complete) run.put_rest();
  run.finish();
  return 0;
}
