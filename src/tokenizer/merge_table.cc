#include "tokenizer/merge_table.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/rng.h"

namespace holdfast::tokenizer {
namespace {

// Up to here a scan for the lowest rank after every merge is faster than a heap.
constexpr std::size_t kShortWordBytes = 96;
// Scratch of words longer than this is given back to the allocator.
constexpr std::size_t kKeptScratchBytes = std::size_t{1} << 16;
constexpr std::uint32_t kNoPosition = 0xFFFFFFFF;

std::uint64_t pair_hash(std::int32_t left, std::int32_t right) {
  const std::uint64_t key = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
                            static_cast<std::uint32_t>(right);
  const std::uint64_t product = key * 0x9E3779B97F4A7C15ull;
  return product ^ (product >> 32);
}

std::uint64_t heap_item(std::uint32_t rank, std::uint32_t position) {
  return (static_cast<std::uint64_t>(rank) << 32) | position;
}

}  // namespace

void MergeTable::reserve(std::size_t count) {
  merged_.reserve(count);
  rehash(std::bit_ceil(std::max<std::size_t>(2 * count, 64)));
}

std::size_t MergeTable::slot_of(std::int32_t left, std::int32_t right) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = pair_hash(left, right) & mask;
  while (slots_[i].left >= 0 && (slots_[i].left != left || slots_[i].right != right)) {
    i = (i + 1) & mask;
  }
  return i;
}

Status MergeTable::add(std::int32_t left, std::int32_t right, std::int32_t merged) {
  if (2 * (size() + 1) > slots_.size()) rehash(std::max<std::size_t>(64, 2 * slots_.size()));
  Slot& slot = slots_[slot_of(left, right)];
  if (slot.left >= 0) {
    return make_error(ErrorCode::kCorrupt, "merge {} repeats merge {} (tokens {} and {})", size(),
                      slot.rank, left, right);
  }
  slot = {left, right, static_cast<std::uint32_t>(size())};
  merged_.push_back(merged);
  return {};
}

void MergeTable::rehash(std::size_t slot_count) {
  std::vector<Slot> old(slot_count);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.left >= 0) slots_[slot_of(slot.left, slot.right)] = slot;
  }
}

std::uint32_t MergeTable::rank(std::int32_t left, std::int32_t right) const {
  if (slots_.empty()) return kNoRank;
  return slots_[slot_of(left, right)].rank;
}

void MergeTable::merge_word(std::string_view word, MergeScratch& scratch,
                            std::vector<std::int32_t>& out) const {
  if (word.size() <= kShortWordBytes) {
    merge_short(word, out);
  } else {
    merge_long(word, scratch, out);
  }
}

void MergeTable::merge_short(std::string_view word, std::vector<std::int32_t>& out) const {
  std::array<std::int32_t, kShortWordBytes> ids;
  std::array<std::uint32_t, kShortWordBytes> ranks;  // of the pair (i, i + 1)
  std::size_t count = word.size();
  for (std::size_t i = 0; i < count; ++i) ids[i] = byte_ids_[static_cast<std::uint8_t>(word[i])];
  for (std::size_t i = 0; i + 1 < count; ++i) ranks[i] = rank(ids[i], ids[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoRank) break;
    ids[best] = merged_[ranks[best]];
    std::copy(ids.begin() + best + 2, ids.begin() + count, ids.begin() + best + 1);
    std::copy(ranks.begin() + best + 1, ranks.begin() + count - 1, ranks.begin() + best);
    --count;
    if (best + 1 < count) ranks[best] = rank(ids[best], ids[best + 1]);
    if (best > 0) ranks[best - 1] = rank(ids[best - 1], ids[best]);
  }
  out.insert(out.end(), ids.begin(), ids.begin() + count);
}

void MergeTable::start_long(std::string_view word, MergeScratch& scratch) const {
  const auto count = static_cast<std::uint32_t>(word.size());
  scratch.ids.resize(count);
  scratch.ranks.resize(count);
  scratch.next.resize(count);
  scratch.previous.resize(count);
  scratch.heap.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    scratch.ids[i] = byte_ids_[static_cast<std::uint8_t>(word[i])];
    scratch.next[i] = i + 1 < count ? i + 1 : kNoPosition;
    scratch.previous[i] = i > 0 ? i - 1 : kNoPosition;
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    scratch.ranks[i] = i + 1 < count ? rank(scratch.ids[i], scratch.ids[i + 1]) : kNoRank;
    if (scratch.ranks[i] != kNoRank) scratch.heap.push_back(heap_item(scratch.ranks[i], i));
  }
  std::make_heap(scratch.heap.begin(), scratch.heap.end(), std::greater<>());
}

void MergeTable::renew_pair(std::uint32_t i, MergeScratch& scratch) const {
  const std::uint32_t next = scratch.next[i];
  scratch.ranks[i] = next == kNoPosition ? kNoRank : rank(scratch.ids[i], scratch.ids[next]);
  if (scratch.ranks[i] == kNoRank) return;
  scratch.heap.push_back(heap_item(scratch.ranks[i], i));
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), std::greater<>());
}

void MergeTable::merge_long(std::string_view word, MergeScratch& scratch,
                            std::vector<std::int32_t>& out) const {
  start_long(word, scratch);
  auto& [ids, ranks, next, previous, heap] = scratch;
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto best_rank = static_cast<std::uint32_t>(heap.back() >> 32);
    const auto i = static_cast<std::uint32_t>(heap.back());
    heap.pop_back();
    if (ranks[i] != best_rank) continue;  // the pair has changed since it was queued
    const std::uint32_t absorbed = next[i];
    ids[i] = merged_[best_rank];
    ranks[absorbed] = kNoRank;
    next[i] = next[absorbed];
    if (next[i] != kNoPosition) previous[next[i]] = i;
    renew_pair(i, scratch);
    if (previous[i] != kNoPosition) renew_pair(previous[i], scratch);
  }
  for (std::uint32_t i = 0; i != kNoPosition; i = next[i]) out.push_back(ids[i]);
  if (word.size() > kKeptScratchBytes) scratch = MergeScratch{};
}

}  // namespace holdfast::tokenizer
