// MergeTable: the merges of a byte-level BPE, and the merging of one word. Owned by a tokenizer's
// data; filled once while loading (one thread), then read by any thread, each with its
// MergeScratch.
//
// The rule (Sennrich et al. 2016; Hugging Face's BPE model): begin with one token per byte; as long
// as some adjacent pair is in the table, replace the pair of lowest rank, the leftmost among
// equals.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "holdfast/result.h"

namespace holdfast::tokenizer {

// Working memory of merging. One thread at a time; reuse it to avoid allocation.
struct MergeScratch {
  std::vector<std::int32_t> ids;       // by position: the token that begins there
  std::vector<std::uint32_t> ranks;    // by position: rank of the pair that begins there
  std::vector<std::uint32_t> next;     // by position: where the next token begins
  std::vector<std::uint32_t> previous;
  std::vector<std::uint64_t> heap;     // rank << 32 | position, smallest first; may be stale
};

class MergeTable {
 public:
  static constexpr std::uint32_t kNoRank = 0xFFFFFFFF;

  void reserve(std::size_t count);
  // Adds the merge of the next rank: the pair (left, right) becomes `merged`. All must be ids >= 0.
  // Errors: the pair already has a rank.
  Status add(std::int32_t left, std::int32_t right, std::int32_t merged);
  // The token of each byte, or -1 for a byte that no word contains.
  void set_byte_ids(const std::array<std::int32_t, 256>& ids) { byte_ids_ = ids; }

  std::size_t size() const { return merged_.size(); }
  // kNoRank if the pair does not merge.
  std::uint32_t rank(std::int32_t left, std::int32_t right) const;

  // Appends the tokens of `word` to `out`. Every byte of the word must have a token.
  // O(n log n) in the length of the word.
  void merge_word(std::string_view word, MergeScratch& scratch,
                  std::vector<std::int32_t>& out) const;

 private:
  struct Slot {
    std::int32_t left = -1;
    std::int32_t right = -1;
    std::uint32_t rank = kNoRank;
  };

  std::size_t slot_of(std::int32_t left, std::int32_t right) const;
  void rehash(std::size_t slot_count);
  void merge_short(std::string_view word, std::vector<std::int32_t>& out) const;
  void merge_long(std::string_view word, MergeScratch& scratch,
                  std::vector<std::int32_t>& out) const;
  void start_long(std::string_view word, MergeScratch& scratch) const;
  // Ranks the pair that begins at position `i` anew and queues it.
  void renew_pair(std::uint32_t i, MergeScratch& scratch) const;

  std::array<std::int32_t, 256> byte_ids_{};
  std::vector<Slot> slots_;  // open addressing, linear probing, at most half full
  std::vector<std::int32_t> merged_;  // by rank: the token that the pair becomes
};

}  // namespace holdfast::tokenizer
