#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <type_traits>
#include <vector>

#include "base/digest.h"
#include "base/error.h"
#include "base/rng.h"

namespace holdfast {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) return make_error(ErrorCode::kInvalidArgument, "{} is odd", value);
  return value / 2;
}

Result<int> quarter(int value) {
  HF_ASSIGN(const int once, half(value));
  HF_ASSIGN(const int twice, half(once));
  return twice;
}

Status check_half(int value) {
  HF_TRY(half(value));
  return {};
}

TEST(Result, CarriesTheValueOrTheErrorThroughTheMacros) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(6).error().to_string(), "invalid_argument: 3 is odd");
  EXPECT_TRUE(check_half(4).ok());
  EXPECT_EQ(check_half(5).error().with_context("call").message(), "call: 5 is odd");
}

Result<std::vector<int>> three() { return std::vector<int>{1, 2, 3}; }

TEST(Result, TheValueOfATemporaryIsAValueAndOutlivesIt) {
  static_assert(std::is_same_v<decltype(*three()), std::vector<int>>);
  static_assert(std::is_same_v<decltype(three().value()), std::vector<int>>);
  int sum = 0;
  for (const int value : *three()) sum += value;
  EXPECT_EQ(sum, 6);
}

TEST(ResultDeathTest, ReadingTheValueOfAFailureAborts) {
  EXPECT_DEATH((void)half(3).value(), "3 is odd");
}

TEST(Rng, IsAPureFunctionOfSeedAndCounter) {
  base::Rng a(7), b(7), c(8);
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    const auto x = a.next();
    EXPECT_EQ(x, b.next());
    EXPECT_NE(x, c.next());
    EXPECT_EQ(x, base::counter_draw(7, static_cast<std::uint64_t>(i)));
    EXPECT_TRUE(seen.insert(x).second);
  }
}

TEST(Rng, StaysBelowTheBound) {
  base::Rng rng(1);
  for (int i = 0; i < 1000; ++i) EXPECT_LT(rng.next_below(7), 7u);
}

TEST(Digest, ChangesWithOneBit) {
  std::byte bytes[64]{};
  const auto before = base::digest_of(bytes);
  bytes[63] = std::byte{1};
  EXPECT_NE(before, base::digest_of(bytes));
  EXPECT_EQ(before.to_hex().size(), 32u);
}

std::vector<std::byte> drawn_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  base::Rng rng(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.next_below(256));
  return bytes;
}

TEST(TreeDigest, OfOneLeafIsThePlainOneAndOfMoreThatOfTheLeavesDigests) {
  const auto bytes = drawn_bytes(2 * base::kDigestLeafBytes + 5);
  const std::span all(bytes);
  EXPECT_EQ(base::tree_digest_of({}), base::digest_of({}));
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, base::kDigestLeafBytes}) {
    EXPECT_EQ(base::tree_digest_of(all.first(count)), base::digest_of(all.first(count)));
  }
  std::vector<std::byte> text;
  for (std::size_t at = 0; at < bytes.size(); at += base::kDigestLeafBytes) {
    const auto leaf = all.subspan(at, std::min(base::kDigestLeafBytes, bytes.size() - at));
    const base::Digest digest = base::digest_of(leaf);
    for (const std::uint64_t half : {digest.high, digest.low}) {
      for (int shift = 56; shift >= 0; shift -= 8) text.push_back(std::byte(half >> shift & 0xFF));
    }
  }
  EXPECT_EQ(base::tree_digest_of(all), base::digest_of(text));
}

TEST(TreeDigest, DoesNotDependOnWhereThePiecesWereCut) {
  const auto bytes = drawn_bytes(5 * base::kDigestLeafBytes + 12345);
  const std::span all(bytes);
  base::Rng rng(3);
  for (int round = 0; round < 50; ++round) {
    const auto part = all.first(rng.next_below(bytes.size() + 1));
    base::TreeDigestStream stream;
    for (std::size_t at = 0; at < part.size();) {
      const std::size_t most = rng.next_below(2) == 0 ? 200 : 3 * base::kDigestLeafBytes;
      const std::size_t count = std::min<std::size_t>(1 + rng.next_below(most), part.size() - at);
      stream.add(part.subspan(at, count));
      at += count;
    }
    EXPECT_EQ(stream.digest(), base::tree_digest_of(part)) << part.size();
  }
}

}  // namespace
}  // namespace holdfast
