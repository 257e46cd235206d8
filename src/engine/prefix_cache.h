// PrefixCache: which KV pages hold the keys and values of which tokens, so that an equal prefix is
// not computed again. A tree of full pages: an entry is found by the weights that made it, the
// salt, and all tokens from the start, which are compared and not only hashed. Knows page numbers
// and tokens, no bytes and no sequences. Owned by the KV cache; engine thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast::engine {

inline constexpr std::int32_t kNoPage = -1;

class PrefixCache {
 public:
  PrefixCache(std::int64_t page_count, std::int64_t page_size);

  // Where a page stands: made by which weights, under which salt, after which page of the cache
  // (kNoPage: it is the first). With the page's own tokens that is all tokens from the start,
  // because a page before another cannot be given up or given to other tokens meanwhile.
  struct Place {
    std::uint64_t epoch = 0;
    std::string_view salt = {};
    std::int32_t before = kNoPage;
  };
  // The page that holds `tokens` at that place, or kNoPage. Asserts one page of tokens.
  std::int32_t find(const Place& place, std::span<const std::int32_t> tokens) const;
  // Enters `page`, in use. Asserts that find gives kNoPage, and that `before` is an entry.
  void insert(const Place& place, std::span<const std::int32_t> tokens, std::int32_t page);
  bool holds(std::int32_t page) const { return entry(page).held; }

  // Nobody uses the page now: it may be given up. Children before their parents, so that the one
  // given up first is nobody's parent. Asserts an entry that is in use.
  void set_idle(std::int32_t page);
  // Somebody uses it again. Asserts an entry; one in use stays so.
  void set_used(std::int32_t page);
  std::int64_t idle_count() const { return idle_count_; }
  bool idle(std::int32_t page) const { return entry(page).idle; }
  // Gives the page up that has been idle longest. Asserts that there is one.
  std::int32_t give_up_oldest();
  // Forgets everything, and calls `freed(page)` for each idle page, the oldest first. Allocates
  // nothing by itself.
  template <typename Freed>
  void clear(const Freed& freed) {
    for (std::int32_t page = oldest_; page != kNoPage; page = entry(page).newer) freed(page);
    forget_all();
  }

 private:
  struct Entry {
    std::uint64_t epoch = 0, hash = 0;
    std::int32_t before = kNoPage;
    std::int32_t next_in_bucket = kNoPage;
    std::int32_t older = kNoPage, newer = kNoPage;  // among the idle ones
    std::int32_t children = 0;
    bool held = false, idle = false;
    std::string salt;  // of a first page; the others have their parent's
  };
  Entry& entry(std::int32_t page) { return entries_.at(static_cast<std::size_t>(page)); }
  const Entry& entry(std::int32_t page) const {
    return entries_.at(static_cast<std::size_t>(page));
  }
  std::span<std::int32_t> tokens_of(std::int32_t page);
  std::span<const std::int32_t> tokens_of(std::int32_t page) const;
  std::int32_t& bucket_of(std::uint64_t hash) { return buckets_[hash & (buckets_.size() - 1)]; }
  void unlink_idle(std::int32_t page);
  void forget_all();

  std::size_t page_size_;
  std::vector<Entry> entries_;         // by page
  std::vector<std::int32_t> tokens_;   // page after page
  std::vector<std::int32_t> buckets_;  // first page of each; a power of two
  std::int32_t oldest_ = kNoPage, newest_ = kNoPage;
  std::int64_t idle_count_ = 0;
};

}  // namespace holdfast::engine
