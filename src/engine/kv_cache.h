// KvCache: which pages of the KV slots belong to which sequence, and which are kept for equal
// prefixes. Owns page numbers, never bytes. Owned by the engine; engine thread. Deterministic: the
// same calls give the same pages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/prefix_cache.h"
#include "holdfast/result.h"

namespace holdfast::engine {

class KvCache {
 public:
  struct Options {
    std::int64_t page_count = 0;
    std::int64_t page_size = 0;       // tokens
    std::int64_t sequence_count = 0;  // rows of the block tables
    bool keep_prefixes = true;
  };
  explicit KvCache(const Options& options);

  std::int64_t page_count() const { return options_.page_count; }
  std::int64_t used_pages() const { return page_count() - available_pages(); }
  std::int64_t cached_pages() const { return prefixes_.idle_count(); }
  // Free ones, and those that are kept for a prefix and used by no sequence.
  std::int64_t available_pages() const {
    return static_cast<std::int64_t>(free_.size()) + prefixes_.idle_count();
  }
  std::int64_t pages_for(std::int64_t tokens) const;

  // Prefixes that other weights made are forgotten, and what rows hold now is never kept: a row
  // that goes on over a change of weights is a mixture.
  void enter_epoch(std::uint64_t epoch);
  std::uint64_t epoch() const { return epoch_; }
  // As if the weights had changed.
  void forget_prefixes();

  // What `take_prefix` would find for a row that starts, of `tokens`: full pages, and always at
  // least one token less than all.
  struct Match {
    std::int64_t pages = 0;
    std::int64_t used_pages = 0;  // of those, by other rows: sharing them takes none away
  };
  Match match(const std::string& salt, std::span<const std::int32_t> tokens) const;

  // Begins a row without pages. Asserts that it has none.
  void start(std::int32_t row, const std::string& salt);
  // Adds kept pages to a row that has computed the first `computed` of `tokens`, where they go on
  // and as far as match says. Gives how many it has now.
  std::int64_t take_prefix(std::int32_t row, std::span<const std::int32_t> tokens,
                           std::int64_t computed);
  // Pages for `tokens` tokens in all. Errors: kResourceExhausted naming pages wanted and left;
  // nothing has changed then.
  Status grow(std::int32_t row, std::int64_t tokens);
  // The row has computed exactly `tokens`: its full pages are kept from now on. A page whose twin
  // is kept already is exchanged for it: their bits are the same (I10).
  void keep_prefix(std::int32_t row, std::span<const std::int32_t> tokens);
  // Gives all pages of a row back.
  void release(std::int32_t row);

  std::span<const std::int32_t> pages(std::int32_t row) const { return rows_.at(row).pages; }
  // Pages that would be available if this row alone were released.
  std::int64_t pages_alone(std::int32_t row) const;
  // Whether the pages are others than at the last table_written.
  bool table_changed(std::int32_t row) const { return rows_.at(row).changed; }
  void table_written(std::int32_t row) { rows_.at(row).changed = false; }
  // Where the token at `position` lies: page * page_size + offset. Asserts that it has a page.
  std::int32_t slot_of(std::int32_t row, std::int64_t position) const;

 private:
  struct Row {
    std::vector<std::int32_t> pages;
    std::string salt;
    std::int64_t kept = 0;         // leading pages that are entries of prefixes_
    std::uint64_t generation = 0;  // of the cache when the row's first page came
    bool changed = false;
  };
  std::int32_t next_page(const std::string& salt, std::int32_t before,
                         std::span<const std::int32_t> tokens, std::int64_t index) const;
  // How many pages of `tokens` may come from the cache.
  std::int64_t most_prefix_pages(std::span<const std::int32_t> tokens) const;
  std::int32_t new_page();
  void use(std::int32_t page);
  void drop(std::int32_t page);

  Options options_;
  PrefixCache prefixes_;
  std::uint64_t epoch_ = 0;
  std::uint64_t generation_ = 1;
  std::vector<std::int32_t> free_;   // a stack: the page freed last goes out first
  std::vector<std::int32_t> users_;  // by page: rows that have it
  std::vector<Row> rows_;
};

}  // namespace holdfast::engine
