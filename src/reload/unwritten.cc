#include "reload/unwritten.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "device/memory.h"

namespace holdfast::reload {
namespace {

using tensor::TensorView;

constexpr std::size_t kWordBytes = sizeof(std::uint64_t);
constexpr std::byte kSecondFill{0x22};  // differs from the poison in every bit

constexpr std::uint64_t word_of(std::byte fill) {
  return 0x0101010101010101ull * static_cast<std::uint64_t>(fill);
}

// An output as words; the last one may be short.
std::size_t word_count(std::size_t bytes) { return (bytes + kWordBytes - 1) / kWordBytes; }

bool word_is(std::span<const std::byte> bytes, std::size_t index, std::byte fill) {
  const std::size_t at = index * kWordBytes;
  std::uint64_t word = word_of(fill);
  std::memcpy(&word, bytes.data() + at, std::min(kWordBytes, bytes.size() - at));
  return word == word_of(fill);
}

constexpr std::size_t kBlockWords = 512;

// A fixed trip count and no early exit: the compiler turns this into vector code.
bool block_holds(const std::byte* bytes, std::uint64_t wanted) {
  std::uint64_t found = 0;
  for (std::size_t i = 0; i < kBlockWords; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i * kWordBytes, kWordBytes);
    found |= static_cast<std::uint64_t>(word == wanted);
  }
  return found != 0;
}

bool holds_fill(std::span<const std::byte> bytes, std::byte fill) {
  std::size_t index = 0;
  for (; (index + kBlockWords) * kWordBytes <= bytes.size(); index += kBlockWords) {
    if (block_holds(bytes.data() + index * kWordBytes, word_of(fill))) return true;
  }
  for (; index < word_count(bytes.size()); ++index) {
    if (word_is(bytes, index, fill)) return true;
  }
  return false;
}

// Bit i: word i is all poison.
std::vector<bool> poisoned_words(std::span<const std::byte> bytes) {
  std::vector<bool> poisoned(word_count(bytes.size()));
  for (std::size_t i = 0; i < poisoned.size(); ++i) {
    poisoned[i] = word_is(bytes, i, device::kPoisonByte);
  }
  return poisoned;
}

}  // namespace

Result<std::optional<UnwrittenByte>> find_unwritten(std::span<const TensorView> outputs,
                                                    const std::function<Status()>& compute) {
  bool suspect = false;
  for (const TensorView& output : outputs) {
    suspect = suspect || holds_fill(output.const_span(), device::kPoisonByte);
  }
  if (!suspect) return std::optional<UnwrittenByte>{};
  std::vector<std::vector<bool>> poisoned;
  for (const TensorView& output : outputs) {
    poisoned.push_back(poisoned_words(output.const_span()));
    std::memset(output.address, static_cast<int>(kSecondFill), output.bytes());
  }
  HF_TRY(compute());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (std::size_t word = 0; word < poisoned[i].size(); ++word) {
      if (poisoned[i][word] && word_is(outputs[i].const_span(), word, kSecondFill)) {
        return std::optional<UnwrittenByte>{
            UnwrittenByte{.output_index = i, .byte = word * kWordBytes}};
      }
    }
  }
  return std::optional<UnwrittenByte>{};
}

}  // namespace holdfast::reload
