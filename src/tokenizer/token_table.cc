#include "tokenizer/token_table.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "tokenizer/limits.h"

namespace holdfast::tokenizer {

std::uint64_t hash_bytes(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

void TokenTable::reserve(std::size_t count, std::size_t bytes) {
  blob_.reserve(bytes);
  entries_.reserve(count);
  rehash(std::bit_ceil(std::max<std::size_t>(2 * count, 64)));
}

Status TokenTable::add(std::int64_t id, std::string_view bytes) {
  const std::uint64_t hash = hash_bytes(bytes);
  if (const std::int32_t other = find_hashed(bytes, hash); other >= 0) {
    return make_error(ErrorCode::kCorrupt, "tokens {} and {} are the same {} bytes", other, id,
                      bytes.size());
  }
  HF_TRY(add_unreachable(id, bytes));
  insert_slot(static_cast<std::int32_t>(id), hash);
  return {};
}

Status TokenTable::add_unreachable(std::int64_t id, std::string_view bytes) {
  if (id < 0 || id > kMaxTokenId) {
    return make_error(ErrorCode::kCorrupt, "token id {} is outside 0..{}", id, kMaxTokenId);
  }
  if (bytes.empty() || bytes.size() > kMaxTokenBytes) {
    return make_error(ErrorCode::kCorrupt, "token {} is {} bytes long; 1 to {} are allowed", id,
                      bytes.size(), kMaxTokenBytes);
  }
  if (contains(id)) {
    return make_error(ErrorCode::kCorrupt, "token id {} is given twice", id);
  }
  const auto index = static_cast<std::size_t>(id);
  if (index >= entries_.size()) entries_.resize(index + 1);
  entries_[index] = {static_cast<std::uint32_t>(blob_.size()),
                     static_cast<std::uint32_t>(bytes.size())};
  blob_.append(bytes);
  ++count_;
  return {};
}

std::int32_t TokenTable::find_hashed(std::string_view bytes, std::uint64_t hash) const {
  if (slots_.empty()) return -1;
  const std::size_t mask = slots_.size() - 1;
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  for (std::size_t i = hash & mask; slots_[i].id >= 0; i = (i + 1) & mask) {
    if (slots_[i].tag == tag && this->bytes(slots_[i].id) == bytes) return slots_[i].id;
  }
  return -1;
}

void TokenTable::insert_slot(std::int32_t id, std::uint64_t hash) {
  if (2 * (slots_used_ + 1) > slots_.size()) {
    rehash(std::max<std::size_t>(64, 2 * slots_.size()));
  }
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = hash & mask;
  while (slots_[i].id >= 0) i = (i + 1) & mask;
  slots_[i] = {static_cast<std::uint32_t>(hash >> 32), id};
  ++slots_used_;
}

void TokenTable::rehash(std::size_t slot_count) {
  std::vector<Slot> old(slot_count);
  old.swap(slots_);
  slots_used_ = 0;
  for (const Slot& slot : old) {
    if (slot.id >= 0) insert_slot(slot.id, hash_bytes(bytes(slot.id)));
  }
}

}  // namespace holdfast::tokenizer
