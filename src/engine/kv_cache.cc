#include "engine/kv_cache.h"

#include <algorithm>

#include "base/assert.h"
#include "base/error.h"

namespace holdfast::engine {

KvCache::KvCache(const Options& options)
    : options_(options),
      prefixes_(options.page_count, options.page_size),
      users_(static_cast<std::size_t>(options.page_count)),
      rows_(static_cast<std::size_t>(options.sequence_count)) {
  free_.reserve(users_.size());
  for (std::int64_t page = options.page_count; page > 0; --page) {
    free_.push_back(static_cast<std::int32_t>(page - 1));
  }
}

std::int64_t KvCache::pages_for(std::int64_t tokens) const {
  return (tokens + options_.page_size - 1) / options_.page_size;
}

// ------------------------------------------------------------------------------ prefixes

void KvCache::enter_epoch(std::uint64_t epoch) {
  if (epoch == epoch_) return;
  epoch_ = epoch;
  forget_prefixes();
}

void KvCache::forget_prefixes() {
  ++generation_;
  prefixes_.clear([this](std::int32_t page) { free_.push_back(page); });
  for (Row& row : rows_) row.kept = 0;
}

std::int32_t KvCache::next_page(const std::string& salt, std::int32_t before,
                                std::span<const std::int32_t> tokens, std::int64_t index) const {
  const auto size = static_cast<std::size_t>(options_.page_size);
  return prefixes_.find({.epoch = epoch_, .salt = salt, .before = before},
                        tokens.subspan(static_cast<std::size_t>(index) * size, size));
}

std::int64_t KvCache::most_prefix_pages(std::span<const std::int32_t> tokens) const {
  if (!options_.keep_prefixes || tokens.empty()) return 0;
  // A request needs the logits of its last token, so that one at least is computed.
  return (static_cast<std::int64_t>(tokens.size()) - 1) / options_.page_size;
}

KvCache::Match KvCache::match(const std::string& salt,
                              std::span<const std::int32_t> tokens) const {
  Match match;
  const std::int64_t most = most_prefix_pages(tokens);
  for (std::int32_t before = kNoPage; match.pages < most; ++match.pages) {
    before = next_page(salt, before, tokens, match.pages);
    if (before == kNoPage) break;
    if (!prefixes_.idle(before)) ++match.used_pages;
  }
  return match;
}

std::int64_t KvCache::take_prefix(std::int32_t row, std::span<const std::int32_t> tokens,
                                  std::int64_t computed) {
  Row& r = rows_.at(row);
  if (r.pages.empty()) r.generation = generation_;
  auto held = static_cast<std::int64_t>(r.pages.size());
  // Only after pages that are entries themselves, so that who uses a page uses all before it. A row
  // with pages that it has not filled (its step failed) computes them.
  const bool goes_on = r.generation == generation_ && r.kept == held &&
                       computed == held * options_.page_size;
  if (!goes_on) return computed;
  const std::int64_t most = most_prefix_pages(tokens);
  while (held < most) {
    const std::int32_t page =
        next_page(r.salt, r.pages.empty() ? kNoPage : r.pages.back(), tokens, held);
    if (page == kNoPage) break;
    use(page);
    r.pages.push_back(page);
    r.changed = true;
    r.kept = ++held;
  }
  return held * options_.page_size;
}

void KvCache::keep_prefix(std::int32_t row, std::span<const std::int32_t> tokens) {
  Row& r = rows_.at(row);
  if (!options_.keep_prefixes || r.generation != generation_) return;
  const auto full = static_cast<std::int64_t>(tokens.size()) / options_.page_size;
  const auto size = static_cast<std::size_t>(options_.page_size);
  for (; r.kept < full; ++r.kept) {
    const auto index = static_cast<std::size_t>(r.kept);
    const std::int32_t before = index == 0 ? kNoPage : r.pages[index - 1];
    const std::int32_t twin = next_page(r.salt, before, tokens, r.kept);
    if (twin == kNoPage) {
      prefixes_.insert({.epoch = epoch_, .salt = r.salt, .before = before},
                       tokens.subspan(index * size, size), r.pages[index]);
      continue;
    }
    use(twin);
    drop(r.pages[index]);
    r.pages[index] = twin;
    r.changed = true;
  }
}

// ------------------------------------------------------------------------------ pages

void KvCache::use(std::int32_t page) {
  if (users_[static_cast<std::size_t>(page)]++ == 0 && prefixes_.holds(page)) {
    prefixes_.set_used(page);
  }
}

void KvCache::drop(std::int32_t page) {
  std::int32_t& users = users_[static_cast<std::size_t>(page)];
  HF_ASSERT(users > 0, "the page is in use");
  if (--users > 0) return;
  if (prefixes_.holds(page)) {
    prefixes_.set_idle(page);
  } else {
    free_.push_back(page);
  }
}

std::int32_t KvCache::new_page() {
  if (free_.empty()) return prefixes_.give_up_oldest();
  const std::int32_t page = free_.back();
  free_.pop_back();
  return page;
}

void KvCache::start(std::int32_t row, const std::string& salt) {
  Row& r = rows_.at(row);
  HF_ASSERT(r.pages.empty(), "the sequence row is in use");
  r = Row{.pages = {}, .salt = salt, .kept = 0, .generation = generation_, .changed = false};
}

Status KvCache::grow(std::int32_t row, std::int64_t tokens) {
  Row& r = rows_.at(row);
  const std::int64_t more = pages_for(tokens) - static_cast<std::int64_t>(r.pages.size());
  if (more > available_pages()) {
    return make_error(ErrorCode::kResourceExhausted,
                      "{} tokens need {} KV pages more, {} of {} are available", tokens, more,
                      available_pages(), page_count());
  }
  if (more > 0 && r.pages.empty()) r.generation = generation_;
  for (std::int64_t i = 0; i < more; ++i) {
    const std::int32_t page = new_page();
    use(page);
    r.pages.push_back(page);
    r.changed = true;
  }
  return {};
}

// The last page first: a kept page becomes idle before the one that it follows.
void KvCache::release(std::int32_t row) {
  Row& r = rows_.at(row);
  while (!r.pages.empty()) {
    drop(r.pages.back());
    r.pages.pop_back();
  }
  r.kept = 0;
}

std::int64_t KvCache::pages_alone(std::int32_t row) const {
  const std::vector<std::int32_t>& pages = rows_.at(row).pages;
  return std::ranges::count_if(
      pages, [this](std::int32_t page) { return users_[static_cast<std::size_t>(page)] == 1; });
}

std::int32_t KvCache::slot_of(std::int32_t row, std::int64_t position) const {
  const std::vector<std::int32_t>& pages = rows_.at(row).pages;
  const std::int64_t index = position / options_.page_size;
  HF_ASSERT(index < static_cast<std::int64_t>(pages.size()), "the position has no page");
  return static_cast<std::int32_t>(pages[static_cast<std::size_t>(index)] * options_.page_size +
                                   position % options_.page_size);
}

}  // namespace holdfast::engine
