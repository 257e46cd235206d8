// TokenTable: the bytes of every token, by id and by content. Owned by a tokenizer's data; filled
// once while loading (one thread), then read by any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/result.h"

namespace holdfast::tokenizer {

// The hash under which find_hashed looks words up.
std::uint64_t hash_bytes(std::string_view bytes);

class TokenTable {
 public:
  // Makes room for about `count` tokens of about `bytes` bytes in all.
  void reserve(std::size_t count, std::size_t bytes);

  // Adds token `id`. Errors: id outside 0..kMaxTokenId or taken, bytes empty or longer than
  // kMaxTokenBytes, bytes taken by another id.
  Status add(std::int64_t id, std::string_view bytes);
  // The same for a token that find must not return (its text lies outside the byte alphabet); its
  // bytes may equal another token's.
  Status add_unreachable(std::int64_t id, std::string_view bytes);

  bool contains(std::int64_t id) const {
    return id >= 0 && static_cast<std::size_t>(id) < entries_.size() &&
           entries_[static_cast<std::size_t>(id)].length != kAbsent;
  }
  // Only of a token that is contained. Valid until the table changes.
  std::string_view bytes(std::int32_t id) const {
    const Entry& entry = entries_[static_cast<std::size_t>(id)];
    return std::string_view(blob_).substr(entry.offset, entry.length);
  }
  // The id of the token with these bytes, or -1.
  std::int32_t find(std::string_view bytes) const { return find_hashed(bytes, hash_bytes(bytes)); }
  std::int32_t find_hashed(std::string_view bytes, std::uint64_t hash) const;

  std::size_t size() const { return count_; }
  // -1 when empty.
  std::int32_t max_id() const { return static_cast<std::int32_t>(entries_.size()) - 1; }

 private:
  static constexpr std::uint32_t kAbsent = 0xFFFFFFFF;
  struct Entry {
    std::uint32_t offset = 0;
    std::uint32_t length = kAbsent;
  };
  struct Slot {
    std::uint32_t tag = 0;  // upper half of the hash
    std::int32_t id = -1;
  };

  void insert_slot(std::int32_t id, std::uint64_t hash);
  void rehash(std::size_t slot_count);

  std::string blob_;
  std::vector<Entry> entries_;  // by id
  std::vector<Slot> slots_;     // open addressing, linear probing, at most half full
  std::size_t count_ = 0;
  std::size_t slots_used_ = 0;
};

}  // namespace holdfast::tokenizer
