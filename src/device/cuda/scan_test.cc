// The GPU's own scans against the host's, and uploads through the ring. The formulas of xxh3.h also
// run on the host, so that they are tested where no GPU is.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/digest.h"
#include "base/rng.h"
#include "device/cuda/cuda_test_device.h"
#include "device/cuda/xxh3.h"

namespace holdfast::device::cuda {
namespace {

std::vector<std::byte> drawn(std::size_t count, std::uint64_t seed) {
  base::Rng rng(seed);
  std::vector<std::byte> bytes((count + 7) / 8 * 8);
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    const std::uint64_t word = rng.next();
    std::memcpy(bytes.data() + at, &word, 8);
  }
  bytes.resize(count);
  return bytes;
}

Xxh3Pair pair_at(const std::byte* from) {
  Xxh3Pair pair;
  std::memcpy(&pair.a, from, 8);
  std::memcpy(&pair.b, from + 8, 8);
  return pair;
}

// What four threads do, one after the other.
base::Digest digest_by_lanes(std::span<const std::byte> bytes) {
  const Xxh3Secret secret;
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  for (int lane = 0; lane < kXxh3Lanes; ++lane) {
    Xxh3Pair acc = xxh3_start(lane);
    const std::size_t stripes = (bytes.size() - 1) / kStripeBytes;
    for (std::size_t stripe = 0; stripe < stripes; ++stripe) {
      const auto in_block = static_cast<int>(stripe % kStripesPerBlock);
      const int word = in_block + 2 * lane;
      xxh3_accumulate(acc, pair_at(bytes.data() + stripe * kStripeBytes + 16 * lane),
                      {secret.words[word], secret.words[word + 1]});
      if (in_block + 1 < kStripesPerBlock) continue;
      const int at = kScrambleSecret / 8 + 2 * lane;
      xxh3_scramble(acc, {secret.words[at], secret.words[at + 1]});
    }
    const int at = kLastStripeSecret + 16 * lane;
    xxh3_accumulate(acc, pair_at(bytes.data() + bytes.size() - kStripeBytes + 16 * lane),
                    {secret.at(at), secret.at(at + 8)});
    low += xxh3_term(acc, secret, kMergeLowSecret, lane);
    high += xxh3_term(acc, secret, kMergeHighSecret, lane);
  }
  return {.high = xxh3_high(high, bytes.size()), .low = xxh3_low(low, bytes.size())};
}

TEST(Xxh3, TheLanesFormulasGiveTheLibrarysDigest) {
  const auto bytes = drawn(70'000, 1);
  for (const std::size_t count : {241, 255, 256, 320, 1024, 1025, 1087, 1088, 1089, 2048, 4096,
                                  65535, 65536, 65537, 70000}) {
    const auto part = std::span(bytes).first(count);
    EXPECT_EQ(digest_by_lanes(part), base::digest_of(part)) << count;
  }
}

TEST(CudaScan, DigestsOfDeviceMemoryAreTheHosts) {
  HF_GPU_OR_SKIP(gpu);
  const std::size_t most = 40 * base::kDigestLeafBytes + 12'345;
  const auto bytes = drawn(most, 2);
  const Memory memory = gpu.allocate(most).value();
  gpu.write(memory.address, bytes.data(), most).value();
  std::vector<Memory> ranges;
  std::vector<base::Digest> expected;
  base::Rng rng(3);
  for (int i = 0; i < 400; ++i) {
    // Slots are aligned, but nothing says so.
    const bool aligned = rng.next_below(2) == 0;
    const std::size_t begin = aligned ? 64 * rng.next_below(99) : rng.next_below(999);
    const std::size_t count = i < 300 ? rng.next_below(2000) : rng.next_below(most - begin);
    ranges.push_back({memory.address + begin, count});
    expected.push_back(base::tree_digest_of(std::span(bytes).subspan(begin, count)));
  }
  const auto found = gpu.digests(ranges);
  ASSERT_TRUE(found.ok()) << found.error().to_string();
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    EXPECT_EQ((*found)[i], expected[i]) << ranges[i].bytes;
  }
  gpu.free(memory);
}

TEST(CudaScan, TheFirstElementThatIsHitIsTheHosts) {
  HF_GPU_OR_SKIP(gpu);
  constexpr std::size_t kCount = 3'000'001;
  // bf16 that are not finite.
  const LaneTest test{0x7F807F807F807F80, 0x0080008000800080, 0x8000800080008000, 0, 2};
  std::vector<std::byte> bytes(2 * kCount);
  const Memory memory = gpu.allocate(bytes.size()).value();
  base::Rng rng(4);
  std::vector<LaneSearch> searches;
  std::vector<std::optional<std::size_t>> expected;
  for (int i = 0; i < 4; ++i) {
    bytes[2 * (kCount / 4 * i + rng.next_below(1000)) + 1] = std::byte{0x7F};
  }
  for (std::size_t at = 0; at < bytes.size(); at += 2) bytes[at] |= std::byte{0x80};
  gpu.write(memory.address, bytes.data(), bytes.size()).value();
  for (int i = 0; i < 200; ++i) {
    const std::size_t begin = rng.next_below(kCount);
    const std::size_t count = rng.next_below(i < 100 ? 9 : kCount - begin + 1);
    const std::size_t fit = std::min(count, kCount - begin);
    searches.push_back({.range = {memory.address + 2 * begin, 2 * fit}, .test = test});
    expected.push_back(find_lane(std::span(bytes).subspan(2 * begin, 2 * fit), test));
  }
  const auto found = gpu.find_lanes(searches);
  ASSERT_TRUE(found.ok()) << found.error().to_string();
  EXPECT_EQ(*found, expected);
  gpu.free(memory);
}

TEST(CudaScan, RangesChangePlaces) {
  HF_GPU_OR_SKIP(gpu);
  constexpr std::size_t kBytes = (std::size_t{6} << 20) + 16 * 77;
  const auto one = drawn(kBytes, 5), other = drawn(kBytes, 6);
  const Memory a = gpu.allocate(kBytes).value(), b = gpu.allocate(kBytes).value();
  gpu.write(a.address, one.data(), kBytes).value();
  gpu.write(b.address, other.data(), kBytes).value();
  ASSERT_TRUE(gpu.swap(a.address, b.address, kBytes).ok());
  std::vector<std::byte> read(kBytes);
  gpu.read(read.data(), a.address, kBytes).value();
  EXPECT_TRUE(read == other);
  gpu.read(read.data(), b.address, kBytes).value();
  EXPECT_TRUE(read == one);
  EXPECT_FALSE(gpu.swap(a.address, b.address, 17).ok());
  gpu.free(a);
  gpu.free(b);
}

TEST(CudaUpload, EveryWayThereBringsTheBytes) {
  HF_GPU_OR_SKIP(gpu);
  const std::size_t bytes = 5 * kUploadBlockBytes + 333;
  const auto source = drawn(bytes, 7);
  void* locked = nullptr;
  ASSERT_EQ(cudaMallocHost(&locked, bytes), cudaSuccess);
  std::memcpy(locked, source.data(), bytes);
  const std::span<const std::byte> page_locked(static_cast<const std::byte*>(locked), bytes);
  const Memory memory = gpu.allocate(bytes).value();
  std::vector<std::byte> read(bytes);
  const auto upload = gpu.create_upload().value();
  EXPECT_TRUE(upload->is_page_locked(page_locked));
  EXPECT_FALSE(upload->is_page_locked(source));
  std::vector<std::byte> pages(3 << 20);
  {
    const auto lock = gpu.page_lock(pages);
    ASSERT_TRUE(lock.ok()) << lock.error().to_string();
    EXPECT_TRUE(upload->is_page_locked(pages));
  }
  EXPECT_FALSE(upload->is_page_locked(pages));
  for (const auto from : {page_locked, std::span<const std::byte>(source)}) {
    const std::vector<std::byte> zeros(bytes);
    gpu.write(memory.address, zeros.data(), bytes).value();
    ASSERT_TRUE(upload->send_from(memory.address, from).ok());
    ASSERT_TRUE(upload->finish().ok());
    gpu.read(read.data(), memory.address, bytes).value();
    EXPECT_TRUE(read == source);
  }
  // Small writes take a way of their own.
  for (const std::size_t count : {1, 3, 4, 100, 65536, 65537}) {
    gpu.write(memory.address + 4, source.data() + 1000, count).value();
    gpu.read(read.data(), memory.address + 4, count).value();
    EXPECT_EQ(std::memcmp(read.data(), source.data() + 1000, count), 0) << count;
  }
  gpu.free(memory);
  cudaFreeHost(locked);
}

}  // namespace
}  // namespace holdfast::device::cuda
