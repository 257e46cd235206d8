// RandomTensor: the values of one tensor of a random checkpoint, made anywhere in it and in any
// order. Immutable; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "checkpoint/checkpoint.h"

namespace holdfast::checkpoint {

class RandomTensor {
 public:
  // Where `fill` may begin.
  static constexpr std::uint64_t kAlignment = 8;

  // By the tensor's name: what its values mean and how large they are. `next`: the values after a
  // training step instead of those before it.
  RandomTensor(const ExpectedTensor& tensor, std::uint64_t seed, bool next);

  // Bytes [offset, offset + to.size()) of the tensor. `offset` is a multiple of kAlignment. A byte
  // is a function of seed, name, offset and `next` alone.
  void fill(std::uint64_t offset, std::span<std::byte> to) const;

 private:
  enum class Kind : std::uint8_t { kReals, kCodes, kScales };
  // A real is drawn as the sum of four uniform bytes, which is close to a normal distribution and
  // needs no function that differs between machines; this is the bf16 value of each sum.
  static constexpr int kMostSum = 4 * 255;

  void set_reals(double mean, double deviation);
  void set_scales(double gain, std::int64_t fan_in);
  std::uint64_t word(std::uint64_t index) const;
  std::uint64_t reals(std::uint64_t index) const;
  std::uint64_t codes(std::uint64_t index) const;
  std::uint64_t scales(std::uint64_t index) const;

  std::uint64_t key_ = 0, next_key_ = 0;
  Kind kind_ = Kind::kReals;
  bool next_ = false;
  std::uint8_t least_scale_ = 0;  // each scale is this or the next: e8m0, so a factor of 1 or 2
  std::array<std::uint16_t, kMostSum + 1> value_of_sum_{};
};

}  // namespace holdfast::checkpoint
