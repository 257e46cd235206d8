#include "engine/kv_cache.h"

#include "base/assert.h"
#include "base/error.h"

namespace holdfast::engine {

KvCache::KvCache(std::int64_t page_count, std::int64_t page_size, std::int64_t sequence_count)
    : page_count_(page_count), page_size_(page_size), pages_(sequence_count) {
  free_.reserve(static_cast<std::size_t>(page_count));
  for (std::int64_t page = page_count; page > 0; --page) {
    free_.push_back(static_cast<std::int32_t>(page - 1));
  }
}

std::int64_t KvCache::pages_for(std::int64_t tokens) const {
  return (tokens + page_size_ - 1) / page_size_;
}

Status KvCache::reserve(std::int32_t sequence, std::int64_t tokens) {
  std::vector<std::int32_t>& pages = pages_.at(sequence);
  HF_ASSERT(pages.empty(), "the sequence row is in use");
  const std::int64_t wanted = pages_for(tokens);
  if (wanted > free_pages()) {
    return make_error(ErrorCode::kResourceExhausted,
                      "{} tokens need {} KV pages, {} of {} are free", tokens, wanted,
                      free_pages(), page_count_);
  }
  for (std::int64_t i = 0; i < wanted; ++i) {
    pages.push_back(free_.back());
    free_.pop_back();
  }
  return {};
}

void KvCache::release(std::int32_t sequence) {
  std::vector<std::int32_t>& pages = pages_.at(sequence);
  while (!pages.empty()) {
    free_.push_back(pages.back());
    pages.pop_back();
  }
}

std::span<const std::int32_t> KvCache::pages(std::int32_t sequence) const {
  return pages_.at(sequence);
}

std::int32_t KvCache::slot_of(std::int32_t sequence, std::int64_t position) const {
  const std::vector<std::int32_t>& pages = pages_.at(sequence);
  const std::int64_t index = position / page_size_;
  HF_ASSERT(index < static_cast<std::int64_t>(pages.size()), "the position is not reserved");
  return static_cast<std::int32_t>(pages[index] * page_size_ + position % page_size_);
}

}  // namespace holdfast::engine
