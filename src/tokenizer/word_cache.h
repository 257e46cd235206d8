// WordCache: the tokens of words seen lately. Part of an EncodeScratch; one thread. A lookup
// changes only the speed of encode, never its result.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace holdfast::tokenizer {

class WordCache {
 public:
  static constexpr std::size_t kMaxWordBytes = 30;
  static constexpr std::size_t kMaxTokens = 8;

  struct Entry {
    std::uint8_t length = 0;  // of the word; 0: empty
    std::uint8_t count = 0;
    std::array<char, kMaxWordBytes> word{};
    std::array<std::int32_t, kMaxTokens> ids{};
  };
  static_assert(sizeof(Entry) == 64);

  // Forgets all. Allocates 2 MiB the first time.
  void clear() { entries_.assign(kEntries, Entry{}); }

  // `hash` is hash_bytes(word); word.size() <= kMaxWordBytes. Null: not there.
  const Entry* find(std::string_view word, std::uint64_t hash) const {
    const Entry& entry = entries_[hash % kEntries];
    const bool same = entry.length == word.size() &&
                      std::memcmp(entry.word.data(), word.data(), word.size()) == 0;
    return same ? &entry : nullptr;
  }

  // Remembers `ids` (at most kMaxTokens) in place of whatever shares the slot.
  void put(std::string_view word, std::uint64_t hash, std::span<const std::int32_t> ids) {
    Entry& entry = entries_[hash % kEntries];
    entry.length = static_cast<std::uint8_t>(word.size());
    entry.count = static_cast<std::uint8_t>(ids.size());
    std::memcpy(entry.word.data(), word.data(), word.size());
    std::memcpy(entry.ids.data(), ids.data(), ids.size_bytes());
  }

 private:
  static constexpr std::size_t kEntries = std::size_t{1} << 15;
  std::vector<Entry> entries_;
};

}  // namespace holdfast::tokenizer
