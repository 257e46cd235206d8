#include "checkpoint/random_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string_view>

#include "base/assert.h"
#include "base/digest.h"
#include "base/rng.h"
#include "tensor/codecs.h"

// Sizes that keep activations near 1. A weight of deviation g / sqrt(fan-in) turns inputs of root
// mean square 1 into outputs of g. The embedding gives a residual stream of 1; each layer's
// attention and experts add about a third of that, so that it has barely tripled after 36 layers
// and the token that was read goes on deciding what the router sees.
namespace holdfast::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little);  // as the format

constexpr double kEmbedding = 1.0;
constexpr double kInputGain = 1.0;     // queries, keys, values, gate and up
constexpr double kResidualGain = 0.7;  // what is added to the residual stream
constexpr double kRouterGain = 1.5;    // its softmax has a clear first, and tokens disagree on it
constexpr double kLogitGain = 2.5;     // the likeliest of 200,000 tokens stands out
constexpr double kNormDeviation = 0.05;
constexpr double kBias = 0.02;
constexpr double kSink = 0.1;
// The root mean square of the 16 codes, and of a scale that is 1 or 2 by even chance.
constexpr double kCodeSize = 2.926174978;
constexpr double kScaleSize = 1.581138830;
constexpr int kScaleBias = 127;

constexpr std::uint64_t kWeyl = 0x9E3779B97F4A7C15ull;  // as SplitMix64 steps its state
constexpr std::uint64_t kEvenBytes = 0x00FF00FF00FF00FFull;
constexpr std::uint64_t kEvenPairs = 0x0000FFFF0000FFFFull;
constexpr std::uint64_t kByteOnes = 0x0101010101010101ull;
constexpr std::uint64_t kNibbleOnes = 0x1111111111111111ull;

std::uint64_t draw(std::uint64_t key, std::uint64_t index) {
  return base::mix64(key + index * kWeyl);
}

// A 1 in the lowest bit of each nibble of `bits` that is zero: one of 16.
std::uint64_t zero_nibbles(std::uint64_t bits) {
  return ~(bits | bits >> 1 | bits >> 2 | bits >> 3) & kNibbleOnes;
}

// A 1 in the lowest bit of each byte of `bits` whose low six bits are zero: one of 64.
std::uint64_t rare_bytes(std::uint64_t bits) {
  const std::uint64_t six = bits & (kByteOnes * 0x3F);
  const std::uint64_t three = six | six >> 3;
  return ~(three | three >> 1 | three >> 2) & kByteOnes;
}

// One step of the last place, up or down; away from zero, where there is no down.
std::uint16_t moved(std::uint16_t value, bool down) {
  const bool at_zero = (value & 0x7FFF) == 0;
  return static_cast<std::uint16_t>(down && !at_zero ? value - 1 : value + 1);
}

}  // namespace

RandomTensor::RandomTensor(const ExpectedTensor& tensor, std::uint64_t seed, bool next)
    : next_(next) {
  const std::string_view name = tensor.name;
  const auto bytes = std::as_bytes(std::span(name.data(), name.size()));
  key_ = base::mix64(base::mix64(seed) ^ base::digest_of(bytes).low);
  next_key_ = base::mix64(~key_);
  const auto is = [name](std::string_view part) { return name.find(part) != name.npos; };
  const bool adds_to_residual = is("o_proj") || is("down_proj");
  const double gain = adds_to_residual   ? kResidualGain
                      : is("router")     ? kRouterGain
                      : is("lm_head")    ? kLogitGain
                                         : kInputGain;
  if (name.ends_with("_blocks")) {
    kind_ = Kind::kCodes;
  } else if (name.ends_with("_scales")) {
    set_scales(gain, tensor.shape[tensor.shape.rank() - 1] * tensor::kMxBlock);
  } else if (name.ends_with("bias")) {
    set_reals(0, kBias);
  } else if (name.ends_with("sinks")) {
    set_reals(0, kSink);
  } else if (is("norm")) {
    set_reals(1, kNormDeviation);
  } else if (is("embed_tokens")) {
    set_reals(0, kEmbedding);
  } else {
    const auto fan_in = static_cast<double>(tensor.shape[tensor.shape.rank() - 1]);
    set_reals(0, gain / std::sqrt(fan_in));
  }
}

void RandomTensor::set_reals(double mean, double deviation) {
  kind_ = Kind::kReals;
  // Of the sum of four bytes: 4 (256^2 - 1) / 12.
  const double unit = deviation / std::sqrt(4.0 * 65535.0 / 12.0);
  for (int sum = 0; sum <= kMostSum; ++sum) {
    const double value = mean + (sum - kMostSum / 2) * unit;
    value_of_sum_[static_cast<std::size_t>(sum)] =
        tensor::f32_to_bf16(static_cast<float>(value));
  }
}

void RandomTensor::set_scales(double gain, std::int64_t fan_in) {
  kind_ = Kind::kScales;
  const double wanted = gain / std::sqrt(static_cast<double>(fan_in)) / (kCodeSize * kScaleSize);
  least_scale_ = static_cast<std::uint8_t>(kScaleBias + std::lround(std::log2(wanted)));
}

void RandomTensor::fill(std::uint64_t offset, std::span<std::byte> to) const {
  HF_ASSERT(offset % kAlignment == 0, "random values begin at whole words");
  std::uint64_t index = offset / kAlignment;
  while (!to.empty()) {
    const std::uint64_t value = word(index++);
    const std::size_t bytes = std::min(to.size(), sizeof(value));
    std::memcpy(to.data(), &value, bytes);
    to = to.subspan(bytes);
  }
}

inline std::uint64_t RandomTensor::word(std::uint64_t index) const {
  switch (kind_) {
    case Kind::kReals: return reals(index);
    case Kind::kCodes: return codes(index);
    case Kind::kScales: break;
  }
  return scales(index);
}

// Four bf16 values.
inline std::uint64_t RandomTensor::reals(std::uint64_t index) const {
  std::array<std::uint16_t, 4> values;
  for (std::size_t half = 0; half < 2; ++half) {
    const std::uint64_t bits = draw(key_, 2 * index + half);
    const std::uint64_t pairs = (bits & kEvenBytes) + (bits >> 8 & kEvenBytes);
    const std::uint64_t sums = (pairs & kEvenPairs) + (pairs >> 16 & kEvenPairs);
    values[2 * half] = value_of_sum_[sums & 0xFFFF];
    values[2 * half + 1] = value_of_sum_[sums >> 32];
  }
  if (next_) {
    const std::uint64_t bits = draw(next_key_, index);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint64_t own = bits >> (16 * i);
      // The first value always, so that no tensor is left as it was.
      if ((own & 3) == 0 || (index == 0 && i == 0)) values[i] = moved(values[i], (own & 4) != 0);
    }
  }
  return std::bit_cast<std::uint64_t>(values);
}

// Sixteen e2m1 codes. The neighbour that a code becomes has another last bit: 2 and 3, 4 and 6.
inline std::uint64_t RandomTensor::codes(std::uint64_t index) const {
  const std::uint64_t now = draw(key_, index);
  if (!next_) return now;
  return now ^ (zero_nibbles(draw(next_key_, index)) | (index == 0 ? 1 : 0));
}

// Eight e8m0 scales.
inline std::uint64_t RandomTensor::scales(std::uint64_t index) const {
  std::uint64_t larger = draw(key_, index) & kByteOnes;
  if (next_) larger ^= rare_bytes(draw(next_key_, index)) | (index == 0 ? 1 : 0);
  return least_scale_ * kByteOnes + larger;
}

}  // namespace holdfast::checkpoint
