// Sources that push: any order and chunking gives the same bits, and every fragment counts once.
#include "reload/fragments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "reload/reload_fixture.h"
#include "reload/verify.h"

namespace holdfast::reload {
namespace {

using testing::content;
using testing::Engine;
using testing::FakeSource;
using testing::FakeTensor;
using ::testing::HasSubstr;
using testing::Snapshot;
using testing::snapshot;

struct Piece {
  Fragment fragment;
  std::span<const std::byte> bytes;
};

// All of `source` in whole-element pieces of at most `most` bytes, in an order drawn from `seed`.
std::vector<Piece> cut(const FakeSource& source, std::size_t most, std::uint64_t seed) {
  std::vector<Piece> pieces;
  for (const FakeTensor& tensor : source.data) {
    const std::size_t element = tensor.spec.dtype == tensor::DType::kBF16 ? 2 : 1;
    const std::size_t step = std::max(most / element * element, element);
    for (std::size_t at = 0; at < tensor.bytes.size(); at += step) {
      Piece piece;
      piece.fragment.tensor = tensor.spec.name;
      piece.fragment.offset_bytes = at;
      piece.bytes = std::span(tensor.bytes).subspan(at, std::min(step, tensor.bytes.size() - at));
      pieces.push_back(std::move(piece));
    }
  }
  base::Rng rng(seed);
  for (std::size_t i = pieces.size(); i > 1; --i) {
    std::swap(pieces[i - 1], pieces[rng.next_below(i)]);
  }
  return pieces;
}

struct Pushing {
  explicit Pushing(CommitStrategy strategy = CommitStrategy::kRemap) {
    FakeSource a = engine.source(1);
    engine.reload(a, CommitStrategy::kRemap).value();
    before = snapshot(engine);
    options.strategy = strategy;
  }
  void begin() {
    auto plan = make_plan(engine.registry, engine.model_config, b, options).value();
    engine.transaction =
        Transaction::begin(engine.registry, std::move(plan), {.clock = &engine.clock}).value();
  }
  Transaction& transaction() { return *engine.transaction; }
  Status put(Piece piece) {
    piece.fragment.transaction = transaction().id();
    return transaction().put(piece.fragment, piece.bytes, *engine.stream);
  }
  Status put_all(const std::vector<Piece>& pieces) {
    for (const Piece& piece : pieces) HF_TRY(put(piece));
    return {};
  }
  Status finish() {
    HF_TRY(transaction().finish_staging(*engine.stream));
    HF_TRY(transaction().prepare());
    HF_TRY(transaction().commit());
    return transaction().verify();
  }
  Engine engine;
  FakeSource b = engine.source(2);
  PlanOptions options;
  Snapshot before;
};

std::string text_of(const Status& status) {
  return status.ok() ? "ok" : status.error().to_string();
}

std::vector<std::vector<std::byte>> cold_b() {
  Engine cold;
  FakeSource b = cold.source(2);
  cold.reload(b, CommitStrategy::kRemap).value();
  return content(cold.registry);
}

TEST(Fragments, AnyOrderAndChunkingGivesTheBitsOfAColdLoad) {
  const auto cold = cold_b();
  for (const std::size_t most : {1, 2, 3, 7, 64, 1 << 20}) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      Pushing pushing(seed % 2 == 0 ? CommitStrategy::kRemap : CommitStrategy::kCopy);
      for (const FakeTensor& tensor : pushing.b.data) {
        if (seed < 3) break;  // some with digests, whose slices wait for the whole tensor
        pushing.options.expected_digests[tensor.spec.name] = base::digest_of(tensor.bytes);
      }
      pushing.begin();
      const Status pushed = pushing.put_all(cut(pushing.b, most, seed));
      ASSERT_TRUE(pushed.ok()) << text_of(pushed);
      const Status finished = pushing.finish();
      ASSERT_TRUE(finished.ok()) << text_of(finished) << " chunk " << most << " seed " << seed;
      EXPECT_TRUE(content(pushing.engine.registry) == cold) << most << " seed " << seed;
      const TransactionReport report = pushing.transaction().report();
      EXPECT_EQ(report.receipts_complete, report.receipts_expected);
      EXPECT_LE(report.measured_peak_host_bytes, report.declared_peak_host_bytes);
    }
  }
}

TEST(Fragments, TheDeclaredPeakIsReachedByTheWorstOrder) {
  Pushing pushing;
  pushing.begin();
  auto pieces = cut(pushing.b, 1 << 20, 1);
  // All scales after all blocks: every block is buffered.
  std::stable_partition(pieces.begin(), pieces.end(), [](const Piece& piece) {
    return !piece.fragment.tensor.ends_with("_scales");
  });
  ASSERT_TRUE(pushing.put_all(pieces).ok());
  ASSERT_TRUE(pushing.finish().ok());
  const TransactionReport report = pushing.transaction().report();
  EXPECT_GE(report.measured_peak_host_bytes, 3 * 3 * 7u);
  EXPECT_LE(report.measured_peak_host_bytes, report.declared_peak_host_bytes);
}

TEST(Fragments, RowsSayWhereTheyBelong) {
  Pushing pushing;
  pushing.begin();
  for (Piece& piece : cut(pushing.b, 1 << 20, 3)) {
    const auto& tensor = pushing.b.tensor(piece.fragment.tensor);
    const std::int64_t rows = tensor.spec.shape[0];
    const std::size_t row_bytes = tensor.bytes.size() / static_cast<std::size_t>(rows);
    for (std::int64_t row = rows - 1; row >= 0; --row) {
      Piece one;
      one.fragment.tensor = piece.fragment.tensor;
      one.fragment.rows = RowRange{.begin = row, .count = 1};
      one.bytes = piece.bytes.subspan(static_cast<std::size_t>(row) * row_bytes, row_bytes);
      ASSERT_TRUE(pushing.put(one).ok());
    }
  }
  ASSERT_TRUE(pushing.finish().ok());
  EXPECT_TRUE(content(pushing.engine.registry) == cold_b());
}

TEST(Fragments, ARefusedFragmentChangesNothingAndTheTransactionGoesOn) {
  Pushing pushing;
  pushing.begin();
  const auto pieces = cut(pushing.b, 16, 4);
  ASSERT_TRUE(pushing.put(pieces[0]).ok());
  Piece late = pieces[1];
  late.fragment.transaction = storage::TransactionId{pushing.transaction().id().value - 1};
  const Status refused =
      pushing.transaction().put(late.fragment, late.bytes, *pushing.engine.stream);
  EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message(),
              HasSubstr(fmt::format("belongs to transaction {}, this is transaction {}",
                                    late.fragment.transaction.value,
                                    pushing.transaction().id().value)));
  EXPECT_THAT(text_of(pushing.put(pieces[0])), HasSubstr("arrived a second time"));
  Piece unknown = pieces[1];
  unknown.fragment.tensor = "model.embd";
  EXPECT_THAT(text_of(pushing.put(unknown)), HasSubstr("nearest: model.embed"));
  Piece outside;
  outside.fragment.tensor = "model.embed";
  outside.fragment.offset_bytes = 13 * 10 * 2 - 2;
  outside.bytes = pushing.b.tensor("model.embed").bytes;
  EXPECT_THAT(text_of(pushing.put(outside)), HasSubstr("at byte 258; it has 260 bytes"));
  outside.fragment.offset_bytes = 1;
  outside.bytes = outside.bytes.first(2);
  EXPECT_THAT(text_of(pushing.put(outside)), HasSubstr("elements of 2"));
  outside.fragment.rows = RowRange{.begin = 12, .count = 2};
  EXPECT_THAT(text_of(pushing.put(outside)), HasSubstr("2 rows from row 12"));
  ASSERT_TRUE(pushing.put_all({pieces.begin() + 1, pieces.end()}).ok());
  ASSERT_TRUE(pushing.finish().ok());
  EXPECT_TRUE(content(pushing.engine.registry) == cold_b());
}

TEST(Fragments, WhatNeverCameIsNamedAndNothingIsCommitted) {
  Pushing pushing;
  auto pieces = cut(pushing.b, 4, 5);
  for (std::size_t drop = 0; drop < pieces.size(); drop += 7) {
    pushing.begin();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (i == drop) continue;
      ASSERT_TRUE(pushing.put(pieces[i]).ok());
    }
    const Status status = pushing.finish();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(status.error().message(),
                HasSubstr(fmt::format("tensor {}: bytes [{},", pieces[drop].fragment.tensor,
                                      pieces[drop].fragment.offset_bytes)));
    EXPECT_TRUE(snapshot(pushing.engine) == pushing.before);
    EXPECT_EQ(pushing.transaction().state(), TransactionState::kRolledBack);
  }
}

TEST(Fragments, AnOverwriteReplacesUntilSomethingWasComputedFromIt) {
  Pushing pushing;
  pushing.begin();
  const std::vector<std::byte> junk(260);
  Piece first;
  first.fragment.tensor = "model.embed";
  first.bytes = junk;
  ASSERT_TRUE(pushing.put(first).ok());
  first.bytes = pushing.b.tensor("model.embed").bytes;
  EXPECT_FALSE(pushing.put(first).ok());
  first.fragment.overwrite = true;
  ASSERT_TRUE(pushing.put(first).ok());
  Piece sinks;
  sinks.fragment.tensor = "model.layers.0.sinks";
  sinks.fragment.overwrite = true;
  sinks.bytes = pushing.b.tensor("model.layers.0.sinks").bytes;
  ASSERT_TRUE(pushing.put(sinks).ok());
  EXPECT_THAT(text_of(pushing.put(sinks)), HasSubstr("something was computed from them"));
  for (const Piece& piece : cut(pushing.b, 50, 6)) {
    const std::string& name = piece.fragment.tensor;
    if (name == "model.embed" || name == "model.layers.0.sinks") continue;
    ASSERT_TRUE(pushing.put(piece).ok());
  }
  ASSERT_TRUE(pushing.finish().ok());
  EXPECT_TRUE(content(pushing.engine.registry) == cold_b());
}

TEST(Fragments, AnInsaneValueRollsBack) {
  Pushing pushing;
  pushing.b.tensor("model.layers.2.experts.gate_scales").bytes[4] = std::byte{0xFF};
  pushing.begin();
  const Status status = pushing.put_all(cut(pushing.b, 5, 7));
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("element 4 is the e8m0 NaN 0xFF"));
  EXPECT_EQ(pushing.transaction().state(), TransactionState::kRolledBack);
  EXPECT_TRUE(snapshot(pushing.engine) == pushing.before);
  EXPECT_FALSE(pushing.finish().ok());
}

TEST(Fragments, APromisedDigestIsCheckedWhateverTheOrder) {
  for (const char* name : {"model.embed", "model.layers.1.experts.gate_blocks"}) {
    Pushing pushing;
    pushing.options.expected_digests[name] = base::digest_of(pushing.b.tensor(name).bytes);
    pushing.b.tensor(name).bytes[2] ^= std::byte{1};
    pushing.begin();
    Status status = pushing.put_all(cut(pushing.b, 6, 8));
    if (status.ok()) status = pushing.finish();
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message(), HasSubstr(std::string(name) + ": its bytes have digest"));
    EXPECT_TRUE(snapshot(pushing.engine) == pushing.before);
  }
}

TEST(Fragments, AManifestAloneMakesAPlanAndCannotBeRead) {
  Engine engine;
  FakeSource b = engine.source(2);
  Manifest manifest{.description = "trainer", .config = b.model_config, .tensors = {}};
  for (const FakeTensor& tensor : b.data) manifest.tensors.push_back(tensor.spec);
  const auto source = make_manifest_source(std::move(manifest));
  auto plan = make_plan(engine.registry, engine.model_config, *source, PlanOptions{});
  ASSERT_TRUE(plan.ok());
  auto transaction =
      Transaction::begin(engine.registry, std::move(*plan), {.clock = &engine.clock}).value();
  EXPECT_THAT(text_of(transaction->stage(*source, *engine.stream)), HasSubstr("use put"));
}

TEST(VerifyRegistry, NamesASlotThatChangedAndAByteOfPadding) {
  Pushing pushing;
  const storage::Registry& registry = pushing.engine.registry;
  const auto report = verify_registry(registry);
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_EQ(report->slots, registry.slots().size() - 1);
  for (const char* name :
       {"layers.1.qkv", "layers.1.experts.packed", "layers.1.experts.swiglu_beta"}) {
    const auto slot = registry.find_slot(name).value();
    device::Arena& arena = registry.arena_of(slot);
    ASSERT_TRUE(arena.protect(device::Protection::kReadWrite).ok());
    registry.view(slot).address[1] ^= std::byte{1};
    const auto wrong = verify_registry(registry);
    ASSERT_FALSE(wrong.ok());
    EXPECT_EQ(wrong.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(wrong.error().message(), HasSubstr(name));
    EXPECT_THAT(wrong.error().message(), HasSubstr(registry.slot(slot).digest->to_hex()));
    registry.view(slot).address[1] ^= std::byte{1};
  }
  const device::Memory memory = registry.versioned_arenas().front()->memory();
  memory.address[memory.bytes - 1] = std::byte{7};
  EXPECT_THAT(verify_registry(registry).error().message(), HasSubstr("between its slots is 0x7"));
  memory.address[memory.bytes - 1] = std::byte{0};
  EXPECT_TRUE(verify_registry(registry).ok());
}

}  // namespace
}  // namespace holdfast::reload
