// KvCache: which pages of the KV slots belong to which sequence. Owns page numbers, never bytes.
// Owned by the engine; engine thread. Deterministic: the same calls give the same pages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "holdfast/result.h"

namespace holdfast::engine {

class KvCache {
 public:
  // `sequence_count` rows of the block tables, `page_count` pages of `page_size` tokens.
  KvCache(std::int64_t page_count, std::int64_t page_size, std::int64_t sequence_count);

  std::int64_t page_size() const { return page_size_; }
  std::int64_t page_count() const { return page_count_; }
  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t pages_for(std::int64_t tokens) const;

  // Gives sequence row `sequence` pages for `tokens` tokens. Asserts that the row has none.
  // Errors: kResourceExhausted naming pages wanted and left; nothing has changed then.
  Status reserve(std::int32_t sequence, std::int64_t tokens);
  // Gives all pages of a row back.
  void release(std::int32_t sequence);
  std::span<const std::int32_t> pages(std::int32_t sequence) const;
  // Where the token at `position` lies: page * page_size + offset. Asserts that it is reserved.
  std::int32_t slot_of(std::int32_t sequence, std::int64_t position) const;

 private:
  std::int64_t page_count_;
  std::int64_t page_size_;
  std::vector<std::int32_t> free_;  // a stack: the page freed last goes out first
  std::vector<std::vector<std::int32_t>> pages_;
};

}  // namespace holdfast::engine
