#include "engine/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/assert.h"
#include "base/rng.h"

namespace holdfast::engine {

namespace {

std::uint64_t hash_of(const PrefixCache::Place& place, std::span<const std::int32_t> tokens) {
  std::uint64_t hash = base::mix64(place.epoch);
  hash = base::mix64(hash ^ static_cast<std::uint32_t>(place.before));
  if (place.before == kNoPage) hash = base::mix64(hash ^ std::hash<std::string_view>()(place.salt));
  for (const std::int32_t token : tokens) {
    hash = base::mix64(hash ^ static_cast<std::uint32_t>(token));
  }
  return hash;
}

}  // namespace

PrefixCache::PrefixCache(std::int64_t page_count, std::int64_t page_size)
    : page_size_(static_cast<std::size_t>(page_size)),
      entries_(static_cast<std::size_t>(page_count)),
      tokens_(static_cast<std::size_t>(page_count * page_size)),
      buckets_(std::bit_ceil(static_cast<std::size_t>(page_count)), kNoPage) {}

std::span<std::int32_t> PrefixCache::tokens_of(std::int32_t page) {
  return std::span(tokens_).subspan(static_cast<std::size_t>(page) * page_size_, page_size_);
}

std::span<const std::int32_t> PrefixCache::tokens_of(std::int32_t page) const {
  return std::span(tokens_).subspan(static_cast<std::size_t>(page) * page_size_, page_size_);
}

std::int32_t PrefixCache::find(const Place& place, std::span<const std::int32_t> tokens) const {
  HF_ASSERT(tokens.size() == page_size_, "a page of tokens is looked up");
  const std::uint64_t hash = hash_of(place, tokens);
  for (std::int32_t page = buckets_[hash & (buckets_.size() - 1)]; page != kNoPage;
       page = entry(page).next_in_bucket) {
    const Entry& e = entry(page);
    if (e.hash != hash || e.epoch != place.epoch || e.before != place.before) continue;
    if (place.before == kNoPage && e.salt != place.salt) continue;
    if (std::ranges::equal(tokens_of(page), tokens)) return page;
  }
  return kNoPage;
}

void PrefixCache::insert(const Place& place, std::span<const std::int32_t> tokens,
                         std::int32_t page) {
  HF_ASSERT(!holds(page) && find(place, tokens) == kNoPage, "a page is entered once");
  HF_ASSERT(place.before == kNoPage || holds(place.before), "the page before is not an entry");
  Entry& e = entry(page);
  e.epoch = place.epoch;
  e.hash = hash_of(place, tokens);
  e.before = place.before;
  e.held = true;
  e.salt = place.before == kNoPage ? std::string(place.salt) : std::string();
  std::ranges::copy(tokens, tokens_of(page).begin());
  if (place.before != kNoPage) ++entry(place.before).children;
  std::int32_t& bucket = bucket_of(e.hash);
  e.next_in_bucket = bucket;
  bucket = page;
}

void PrefixCache::set_idle(std::int32_t page) {
  Entry& e = entry(page);
  HF_ASSERT(e.held && !e.idle, "the page is an entry in use");
  e.idle = true;
  e.older = newest_;
  e.newer = kNoPage;
  (newest_ == kNoPage ? oldest_ : entry(newest_).newer) = page;
  newest_ = page;
  ++idle_count_;
}

void PrefixCache::set_used(std::int32_t page) {
  HF_ASSERT(holds(page), "the page is an entry");
  if (entry(page).idle) unlink_idle(page);
}

void PrefixCache::unlink_idle(std::int32_t page) {
  Entry& e = entry(page);
  (e.older == kNoPage ? oldest_ : entry(e.older).newer) = e.newer;
  (e.newer == kNoPage ? newest_ : entry(e.newer).older) = e.older;
  e.older = e.newer = kNoPage;
  e.idle = false;
  --idle_count_;
}

std::int32_t PrefixCache::give_up_oldest() {
  HF_ASSERT(oldest_ != kNoPage, "no page is idle");
  const std::int32_t page = oldest_;
  Entry& e = entry(page);
  HF_ASSERT(e.children == 0, "a page that others follow would be given up");
  unlink_idle(page);
  if (e.before != kNoPage) --entry(e.before).children;
  std::int32_t* link = &bucket_of(e.hash);
  while (*link != page) link = &entry(*link).next_in_bucket;
  *link = e.next_in_bucket;
  e = Entry();
  return page;
}

void PrefixCache::forget_all() {
  for (Entry& e : entries_) {
    if (e.held) e = Entry();
  }
  std::fill(buckets_.begin(), buckets_.end(), kNoPage);
  oldest_ = newest_ = kNoPage;
  idle_count_ = 0;
}

}  // namespace holdfast::engine
