#include "reload/staging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reload/arrivals.h"
#include "reload/receipts.h"
#include "reload/reload_fixture.h"
#include "reload/sanity.h"
#include "reload/unwritten.h"

namespace holdfast::reload {
namespace {

using testing::Engine;
using testing::FakeSource;
using ::testing::HasSubstr;

TEST(Intervals, AgreeWithABitPerByteUnderRandomPieces) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    base::Rng rng(seed);
    Intervals intervals;
    std::vector<bool> written(40);
    for (int i = 0; i < 30; ++i) {
      const std::uint64_t begin = rng.next_below(written.size());
      const std::uint64_t end =
          begin + 1 + rng.next_below(std::min<std::uint64_t>(6, written.size() - begin));
      bool free = true;
      for (auto at = begin; at < end; ++at) free = free && !written[at];
      ASSERT_EQ(intervals.add(begin, end), free) << "seed " << seed;
      if (free)
        std::fill(written.begin() + static_cast<long>(begin),
                  written.begin() + static_cast<long>(end), true);
      std::optional<Interval> hole;
      for (std::uint64_t at = 0; at < written.size() && !hole; ++at) {
        if (written[at]) continue;
        hole = {at, at};
        while (hole->end < written.size() && !written[hole->end]) ++hole->end;
      }
      ASSERT_EQ(intervals.first_hole(written.size()), hole) << "seed " << seed;
    }
  }
}

TEST(Intervals, AreNotFooledByAByteTwiceAndAnotherNever) {
  Intervals intervals;
  EXPECT_TRUE(intervals.add(0, 4));
  EXPECT_FALSE(intervals.add(3, 7));
  EXPECT_TRUE(intervals.add(5, 8));
  EXPECT_EQ(intervals.first_hole(8), (Interval{4, 5}));
}

struct SanityCase {
  tensor::DType dtype;
  std::size_t width;
  std::uint32_t bad;
  std::uint32_t largest_good;
};

TEST(Sanity, FindsTheFirstBadElementAtEveryPlaceAndNoGoodOne) {
  const std::vector<SanityCase> cases = {
      {tensor::DType::kF32, 4, 0x7F800000, 0xFF7FFFFF},
      {tensor::DType::kF32, 4, 0xFFC00001, 0x7F7FFFFF},
      {tensor::DType::kF16, 2, 0x7C00, 0xFBFF},
      {tensor::DType::kF16, 2, 0xFE01, 0x7BFF},
      {tensor::DType::kBF16, 2, 0xFF80, 0xFF7F},
      {tensor::DType::kBF16, 2, 0x7FC1, 0x7F7F},
      {tensor::DType::kF8E4M3, 1, 0x7F, 0xFE},
      {tensor::DType::kF8E4M3, 1, 0xFF, 0x7E},
      {tensor::DType::kF8E5M2, 1, 0x7C, 0xFB},
      {tensor::DType::kF8E5M2, 1, 0xFF, 0x7B},
      {tensor::DType::kF8E8M0, 1, 0xFF, 0x7F},
      {tensor::DType::kF8E8M0, 1, 0xFF, 0xFE},
  };
  constexpr std::size_t kElements = 4200;  // over the block that is tested at once
  for (const SanityCase& c : cases) {
    const Insanity insanity = insanity_of("w", c.dtype);
    std::vector<std::byte> bytes(kElements * c.width);
    for (std::size_t i = 0; i < kElements; ++i)
      std::memcpy(&bytes[i * c.width], &c.largest_good, c.width);
    EXPECT_EQ(find_insane(bytes, insanity), std::nullopt) << tensor::dtype_name(c.dtype);
    for (const std::size_t at : {0ul, 1ul, 511ul, 512ul, 4095ul, 4096ul, kElements - 1}) {
      std::vector<std::byte> broken(bytes);
      std::memcpy(&broken[at * c.width], &c.bad, c.width);
      EXPECT_EQ(find_insane(broken, insanity), at) << tensor::dtype_name(c.dtype);
    }
  }
}

// Of every dtype that scales have: what is none, and zero and the largest, which are.
TEST(Sanity, AScaleIsFiniteAndNotNegative) {
  const std::vector<SanityCase> cases = {
      {tensor::DType::kF32, 4, 0xBF800000, 0x7F7FFFFF}, {tensor::DType::kF32, 4, 0x80000000, 0},
      {tensor::DType::kF32, 4, 0x7F800000, 0x3F800000}, {tensor::DType::kF16, 2, 0xBC00, 0x7BFF},
      {tensor::DType::kF16, 2, 0x7E00, 0},              {tensor::DType::kBF16, 2, 0xBF80, 0x7F7F},
      {tensor::DType::kBF16, 2, 0x7FC0, 0},             {tensor::DType::kF8E4M3, 1, 0x81, 0x7E},
      {tensor::DType::kF8E4M3, 1, 0x7F, 0}};
  for (const SanityCase& c : cases) {
    const Insanity insanity = insanity_of("0.up_proj.weight_scale", c.dtype);
    for (const std::size_t at : {0ul, 1ul, 1023ul, 1699ul}) {
      std::vector<std::byte> bytes(1700 * c.width);
      for (std::size_t i = 0; i < 1700; ++i) {
        std::memcpy(&bytes[i * c.width], &c.largest_good, c.width);
      }
      EXPECT_EQ(find_insane(bytes, insanity), std::nullopt) << tensor::dtype_name(c.dtype);
      std::memcpy(&bytes[at * c.width], &c.bad, c.width);
      EXPECT_EQ(find_insane(bytes, insanity), at) << tensor::dtype_name(c.dtype) << c.bad;
    }
  }
}

TEST(Sanity, WhatIsWrongIsSaidWithTheValue) {
  const struct {
    const char* name;
    tensor::DType dtype;
    std::size_t width;
    std::uint32_t bad;
    const char* says;
  } cases[] = {
      {"0.w1.scales", tensor::DType::kF16, 2, 0xB800, "tensor 0.w1.scales f16 [3]: element 1 is "
       "-0.5; a scale is finite and not negative"},
      {"0.w1.scales", tensor::DType::kBF16, 2, 0x8000, "bf16 [3]: element 1 is -0; a scale is"},
      {"0.w1.weight_scale", tensor::DType::kF32, 4, 0x7F800000, "f32 [3]: element 1 is inf; a s"},
      {"0.w1.weight_scale", tensor::DType::kF8E4M3, 1, 0x81, "e4m3 [3]: element 1 is -0.0019531"},
      {"w", tensor::DType::kF8E5M2, 1, 0xFC, "e5m2 [3]: element 1 is -inf; a weight is finite"},
      {"w", tensor::DType::kF32, 4, 0xFFC00001, "f32 [3]: element 1 is NaN; a weight is finite"},
      {"w_scales", tensor::DType::kU8, 1, 0xFF, "u8 [3]: element 1 is the e8m0 NaN 0xFF"},
  };
  for (const auto& c : cases) {
    std::vector<std::byte> bytes(3 * c.width);
    std::memcpy(&bytes[c.width], &c.bad, c.width);
    const storage::ParameterSpec spec{.name = c.name, .dtype = c.dtype, .shape = {3}, .slot = {}};
    const Status status = check_sane(spec, 0, bytes);
    ASSERT_FALSE(status.ok()) << c.says;
    EXPECT_THAT(status.error().message(), HasSubstr(c.says));
  }
}

TEST(Sanity, TakesU8ForExponentsOnlyWhenTheNameSaysScales) {
  for (const char* scales : {"mlp.experts.down_proj_scales", "block.1.mlp.mlp2_weight.scales",
                             "mlp.experts.down_proj.weight_scale"}) {
    EXPECT_EQ(insanity_of(scales, tensor::DType::kU8), Insanity::kE8M0Nan) << scales;
  }
  for (const char* scales : {"0.w1.weight_scale", "0.w1.weight_scale_inv", "0.w1.scales",
                             "0.w1.weight_scale_2", "0.w1.input_global_scale",
                             "0.w1.input_scale"}) {
    EXPECT_EQ(insanity_of(scales, tensor::DType::kF32), Insanity::kF32Scale) << scales;
  }
  EXPECT_EQ(insanity_of("mlp.experts.down_proj_blocks", tensor::DType::kU8), Insanity::kNone);
  EXPECT_EQ(insanity_of("ids", tensor::DType::kI32), Insanity::kNone);
}

// Outputs of `bytes` bytes that `compute` fills with `value`, except [hole, hole + hole_bytes).
std::optional<UnwrittenByte> unwritten(std::size_t bytes, std::size_t hole, std::size_t hole_bytes,
                                       std::byte value) {
  std::vector<std::byte> memory(bytes, device::kPoisonByte);
  const tensor::TensorView output{.address = memory.data(),
                                  .dtype = tensor::DType::kU8,
                                  .shape = {static_cast<std::int64_t>(bytes)}};
  const auto compute = [&]() -> Status {
    for (std::size_t i = 0; i < bytes; ++i) {
      if (i < hole || i >= hole + hole_bytes) memory[i] = value;
    }
    return {};
  };
  compute().value();
  const auto found = find_unwritten({&output, 1}, compute).value();
  if (hole_bytes == 0) {
    EXPECT_THAT(memory, ::testing::Each(value));
  }
  return found;
}

TEST(Unwritten, TellsAHoleFromDataThatLooksLikePoison) {
  for (const std::size_t bytes : {1ul, 7ul, 8ul, 100ul, 5003ul}) {
    for (const std::byte value : {device::kPoisonByte, std::byte{0x22}, std::byte{0}}) {
      EXPECT_FALSE(unwritten(bytes, 0, 0, value).has_value()) << bytes;
      EXPECT_TRUE(unwritten(bytes, 0, bytes, value).has_value()) << bytes;
      if (bytes < 100) continue;
      for (const std::size_t hole : {0ul, 1ul, 50ul, bytes - 15}) {
        const auto found = unwritten(bytes, hole, 15, value);
        ASSERT_TRUE(found.has_value()) << bytes << " " << hole;
        EXPECT_GE(found->byte, hole);
        EXPECT_LT(found->byte, hole + 15);
      }
    }
  }
}

class StagingTest : public ::testing::Test {
 protected:
  storage::SlotId slot(std::string_view name) const {
    return engine_.registry.find_slot(name).value();
  }
  Engine engine_;
};

TEST_F(StagingTest, StartsAsPoisonWithZeroBetweenTheSlots) {
  auto staging = Staging::create(engine_.registry, 1);
  ASSERT_TRUE(staging.ok());
  std::size_t slot_bytes = 0, poison = 0, zero = 0, all = 0;
  for (const auto id : (*staging)->slots()) slot_bytes += (*staging)->bytes(id).size();
  for (const StagedArena& staged : (*staging)->arenas()) {
    const device::Memory memory = staged.backing.memory();
    all += memory.bytes;
    for (std::size_t i = 0; i < memory.bytes; ++i) {
      poison += memory.address[i] == device::kPoisonByte ? 1 : 0;
      zero += memory.address[i] == std::byte{0} ? 1 : 0;
    }
  }
  EXPECT_EQ(poison, slot_bytes);
  EXPECT_EQ(poison + zero, all);
  EXPECT_THAT((*staging)->bytes(slot("embed")), ::testing::Each(device::kPoisonByte));
}

TEST_F(StagingTest, OneByteThatNobodyWroteFailsAndIsNamed) {
  auto staging = std::move(Staging::create(engine_.registry, 7)).value();
  for (const auto id : staging->slots()) {
    const std::size_t bytes = staging->bytes(id).size();
    if (id == slot("layers.1.qkv")) {
      ASSERT_TRUE(staging->record(id, 0, 100).ok());
      ASSERT_TRUE(staging->record(id, 101, bytes - 101).ok());
      EXPECT_FALSE(staging->fresh(id));
      continue;
    }
    ASSERT_TRUE(staging->record(id, 0, bytes).ok());
    EXPECT_TRUE(staging->fresh(id));
  }
  const Status status = staging->check_complete();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(
      status.error().message(),
      HasSubstr("weight slot layers.1.qkv: bytes [100, 101) of 220 were not written for epoch 7"));
  ASSERT_TRUE(staging->record(slot("layers.1.qkv"), 100, 1).ok());
  EXPECT_TRUE(staging->check_complete().ok());
}

TEST_F(StagingTest, ADerivedSlotThatWasNotRecomputedFailsAndIsNamed) {
  auto staging = std::move(Staging::create(engine_.registry, 2)).value();
  for (const auto id : staging->slots()) {
    if (id == slot("layers.2.experts.sums")) continue;
    ASSERT_TRUE(staging->record(id, 0, staging->bytes(id).size()).ok());
  }
  EXPECT_THAT(staging->check_complete().error().message(),
              HasSubstr("derived slot layers.2.experts.sums"));
}

TEST_F(StagingTest, ADigestIsThatOfTheBytesInWhateverPiecesAndOrderTheyCame) {
  const auto id = slot("embed");
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    auto staging = std::move(Staging::create(engine_.registry, 1)).value();
    const std::span<std::byte> bytes = staging->bytes(id);
    base::Rng rng(seed);
    std::vector<Interval> pieces;
    for (std::uint64_t at = 0; at < bytes.size(); at = pieces.back().end) {
      const std::uint64_t most = std::min<std::uint64_t>(bytes.size() - at, 1 + seed * 6);
      pieces.push_back({at, at + 1 + rng.next_below(most)});
    }
    while (!pieces.empty()) {
      std::swap(pieces[rng.next_below(pieces.size())], pieces.back());
      const Interval piece = pieces.back();
      pieces.pop_back();
      for (auto at = piece.begin; at < piece.end; ++at) {
        bytes[at] = static_cast<std::byte>(rng.next());
      }
      ASSERT_TRUE(staging->record(id, piece.begin, piece.end - piece.begin).ok());
    }
    EXPECT_EQ(staging->digest(id), base::tree_digest_of(bytes)) << "seed " << seed;
  }
}

TEST_F(StagingTest, BytesThatAreRewrittenAreDigestedAnew) {
  const auto id = slot("embed");
  for (const std::size_t at : {0, 100, 150, 259}) {
    auto staging = std::move(Staging::create(engine_.registry, 1)).value();
    const std::span<std::byte> bytes = staging->bytes(id);
    ASSERT_TRUE(staging->record(id, 0, 120).ok());
    bytes[at] ^= std::byte{1};
    staging->rewritten(id, at);
    ASSERT_TRUE(staging->record(id, 120, bytes.size() - 120).ok());
    EXPECT_EQ(staging->digest(id), base::tree_digest_of(bytes)) << at;
    bytes[at] ^= std::byte{1};
    staging->rewritten(id, at);
    EXPECT_EQ(staging->digest(id), base::tree_digest_of(bytes)) << at;
  }
}

TEST_F(StagingTest, WritesTwiceOrOutsideOfTheSlotAreRefused) {
  auto staging = std::move(Staging::create(engine_.registry, 1)).value();
  const auto id = slot("embed");
  ASSERT_TRUE(staging->record(id, 10, 20).ok());
  for (const auto& [offset, bytes] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {29, 1}, {0, 11}, {260, 1}, {259, 2}, {~0ull, 2}, {2, ~0ull}, {0, 0}}) {
    const Status status = staging->record(id, offset, bytes);
    ASSERT_FALSE(status.ok()) << offset << " " << bytes;
    EXPECT_EQ(status.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(status.error().message(), HasSubstr("slot embed"));
  }
}

class ReceiptTest : public StagingTest {
 protected:
  ReceiptTest() : source_(engine_.source(1)) {
    plan_ =
        make_plan(engine_.registry, engine_.model_config, source_, CommitStrategy::kRemap).value();
    book_ = ReceiptBook(engine_.registry, plan_);
  }
  void deliver_all_but(std::size_t skipped) {
    for (std::size_t i = 0; i < book_.expected_count(); ++i) {
      if (i == skipped) continue;
      const auto id = DeliveryId{static_cast<std::uint32_t>(i)};
      ASSERT_TRUE(book_.record(id, 0, book_.receipt(id).bytes).ok());
    }
  }
  FakeSource source_;
  ReloadPlan plan_;
  ReceiptBook book_;
};

TEST_F(ReceiptTest, ASingleMissingDeliveryIsNamed) {
  for (std::size_t skipped = 0; skipped < book_.expected_count(); ++skipped) {
    book_ = ReceiptBook(engine_.registry, plan_);
    deliver_all_but(skipped);
    const Status status = book_.check_complete();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(book_.complete_count() + 1, book_.expected_count());
    const auto& receipt = book_.receipt(DeliveryId{static_cast<std::uint32_t>(skipped)});
    EXPECT_THAT(status.error().message(),
                HasSubstr(engine_.registry.parameters()[receipt.parameter.index()].name));
  }
}

TEST_F(ReceiptTest, ALastByteThatNeverArrivedIsNamed) {
  for (std::size_t cut = 0; cut < book_.expected_count(); ++cut) {
    book_ = ReceiptBook(engine_.registry, plan_);
    deliver_all_but(cut);
    const auto id = DeliveryId{static_cast<std::uint32_t>(cut)};
    const std::uint64_t bytes = book_.receipt(id).bytes;
    ASSERT_TRUE(book_.record(id, 0, bytes - 1).ok());
    const Status status = book_.check_complete();
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message(),
                HasSubstr("bytes [" + std::to_string(bytes - 1) + ", " + std::to_string(bytes)));
  }
}

TEST_F(ReceiptTest, ADuplicateDoesNotStandInForWhatIsMissing) {
  const DeliveryId first = book_.of_copy(0);
  const std::uint64_t bytes = book_.receipt(first).bytes;
  ASSERT_TRUE(book_.record(first, 0, bytes / 2).ok());
  const Status again = book_.record(first, 0, bytes / 2);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(again.error().message(), HasSubstr("a second time"));
  EXPECT_FALSE(book_.record(first, bytes - 1, 2).ok());
  EXPECT_FALSE(book_.check_complete().ok());
  EXPECT_EQ(book_.complete_count(), 0u);
}

TEST_F(ReceiptTest, EveryTransientInputOfEveryDerivationHasItsOwn) {
  std::size_t transient = 0;
  for (const DeriveStep& step : plan_.derivations) {
    for (const bool from_source : step.from_source) transient += from_source ? 1 : 0;
  }
  EXPECT_EQ(transient, 3u * 3);
  EXPECT_EQ(book_.expected_count(), plan_.copies.size() + transient);
}

}  // namespace
}  // namespace holdfast::reload
