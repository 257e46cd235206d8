#include "reload/staging.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/error.h"

namespace holdfast::reload {

Result<std::unique_ptr<Staging>> Staging::create(const storage::Registry& registry,
                                                 std::uint64_t generation) {
  HF_ASSERT(generation > 0, "generation 0 means never written");
  std::unique_ptr<Staging> staging(new Staging(registry, generation));
  for (device::Arena* arena : registry.versioned_arenas()) {
    auto backing = arena->create_backing();
    if (!backing.ok()) {
      return backing.error().with_context(
          fmt::format("staging arena {} ({} bytes)", arena->name(), arena->memory().bytes));
    }
    StagedArena& staged = staging->arenas_.emplace_back();
    staged.arena = arena;
    staged.backing = std::move(backing).value();
  }
  staging->place_slots();
  HF_TRY(staging->zero_padding());
  return staging;
}

std::unique_ptr<Staging> Staging::create_live(const storage::Registry& registry,
                                              std::uint64_t generation) {
  HF_ASSERT(generation > 0, "generation 0 means never written");
  std::unique_ptr<Staging> staging(new Staging(registry, generation));
  staging->live_ = true;
  for (device::Arena* arena : registry.versioned_arenas()) {
    staging->arenas_.emplace_back().arena = arena;
  }
  staging->place_slots();
  return staging;
}

std::byte* Staging::target_of(const StagedArena& arena) const {
  return live_ ? arena.arena->memory().address : arena.backing.memory().address;
}

Result<device::Upload*> Staging::upload() {
  HF_ASSERT(!direct(), "the host writes the target itself");
  if (upload_ == nullptr) {
    HF_ASSIGN(upload_, registry_.device().create_upload());
  }
  return upload_.get();
}

Status Staging::finish_writes() { return upload_ == nullptr ? Status() : upload_->finish(); }

Status Staging::put(storage::SlotId id, std::uint64_t offset, std::span<const std::byte> from) {
  if (direct()) {
    std::memcpy(bytes(id).data() + offset, from.data(), from.size());
    return {};
  }
  return send(view(id).address + offset, from);
}

// Through blocks, so that the caller's bytes may change at once.
Status Staging::send(std::byte* to, std::span<const std::byte> from) {
  HF_ASSIGN(device::Upload* const way, upload());
  for (std::size_t done = 0; done < from.size();) {
    HF_ASSIGN(const device::UploadBlock block, way->take());
    const auto piece = from.subspan(done, std::min(block.bytes.size(), from.size() - done));
    std::memcpy(block.bytes.data(), piece.data(), piece.size());
    HF_TRY(way->send(block, to + done, piece.size()));
    done += piece.size();
  }
  return {};
}

Status Staging::put_live(storage::SlotId id, std::uint64_t offset, std::uint64_t bytes) {
  return registry_.device().write(view(id).address + offset, registry_.view(id).address + offset,
                                  bytes);
}

Result<std::span<const std::byte>> Staging::get(const tensor::TensorView& staged,
                                                std::vector<std::byte>& buffer) {
  if (direct()) return staged.const_span();
  HF_TRY(finish_writes());
  buffer.resize(staged.bytes());
  HF_TRY(registry_.device().read(buffer.data(), staged.address, buffer.size()));
  return std::span<const std::byte>(buffer);
}

bool Staging::holds(const tensor::TensorView& view) const {
  return std::any_of(arenas_.begin(), arenas_.end(), [&](const StagedArena& staged) {
    const device::AddressRange range{reinterpret_cast<std::uintptr_t>(target_of(staged)),
                                     staged.arena->memory().bytes};
    return range.contains({reinterpret_cast<std::uintptr_t>(view.address), view.bytes()});
  });
}

Result<base::Digest> Staging::plain_digest(storage::SlotId id, std::uint64_t offset,
                                           std::uint64_t bytes) {
  constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;
  if (direct()) return base::digest_of(this->bytes(id).subspan(offset, bytes));
  base::DigestStream digest;
  std::vector<std::byte> buffer;
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t count = std::min(kPieceBytes, bytes - done);
    const tensor::TensorView piece{.address = view(id).address + offset + done,
                                   .dtype = tensor::DType::kU8,
                                   .shape = {static_cast<std::int64_t>(count)}};
    HF_ASSIGN(const auto found, get(piece, buffer));
    digest.add(found);
    done += count;
  }
  return digest.digest();
}

void Staging::place_slots() {
  progress_.resize(registry_.slots().size());
  std::vector<std::vector<device::AddressRange>> ranges(arenas_.size());
  for (const storage::Slot& slot : registry_.slots()) {
    if (!storage::is_versioned(slot.spec.slot_class)) continue;
    const device::Arena* arena = &registry_.arena_of(slot.id);
    const auto staged = std::find_if(arenas_.begin(), arenas_.end(),
                                     [&](const StagedArena& a) { return a.arena == arena; });
    HF_ASSERT(staged != arenas_.end(), "a versioned slot lies in a versioned arena");
    const auto live = reinterpret_cast<std::uintptr_t>(arena->memory().address);
    std::byte* const base = target_of(*staged);
    progress_[slot.id.index()].address = base + (slot.range.begin - live);
    slots_.push_back(slot.id);
    ranges[static_cast<std::size_t>(staged - arenas_.begin())].push_back(slot.range);
  }
  for (std::size_t i = 0; i < arenas_.size(); ++i) find_padding(i, std::move(ranges[i]));
}

// What the slots of an arena, given by their live ranges, leave of it.
void Staging::find_padding(std::size_t arena_index, std::vector<device::AddressRange> slots) {
  std::sort(slots.begin(), slots.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  const device::Memory memory = arenas_[arena_index].arena->memory();
  const auto base = reinterpret_cast<std::uintptr_t>(memory.address);
  std::uintptr_t at = base;
  const auto pad_until = [&](std::uintptr_t end) {
    if (end > at) padding_.push_back({arena_index, at - base, end - at});
  };
  for (const device::AddressRange& slot : slots) {
    pad_until(slot.begin);
    at = slot.end();
  }
  pad_until(base + memory.bytes);
}

Status Staging::zero_padding() {
  std::vector<std::byte> zeros;
  for (const Padding& padding : padding_) {
    std::byte* const to = target_of(arenas_[padding.arena_index]) + padding.offset;
    if (direct()) {
      std::memset(to, 0, padding.bytes);
      continue;
    }
    zeros.resize(std::max(zeros.size(), padding.bytes));
    HF_TRY(send(to, std::span(zeros).first(padding.bytes)));
  }
  return {};
}

Status Staging::check_live_padding() const {
  std::vector<std::byte> copy;
  const auto read = [&copy](const device::Arena& arena,
                            const Padding& padding) -> Result<std::span<const std::byte>> {
    const std::byte* begin = arena.memory().address + padding.offset;
    if (arena.device().host_addressable()) return std::span(begin, padding.bytes);
    copy.resize(padding.bytes);
    HF_TRY(arena.device().read(copy.data(), begin, copy.size()));
    return std::span<const std::byte>(copy);
  };
  for (const Padding& padding : padding_) {
    const device::Arena& arena = *arenas_[padding.arena_index].arena;
    HF_ASSIGN(const std::span<const std::byte> found, read(arena, padding));
    const std::byte* begin = found.data();
    const auto* dirty = std::find_if(begin, begin + padding.bytes,
                                     [](std::byte byte) { return byte != std::byte{0}; });
    if (dirty == begin + padding.bytes) continue;
    return make_error(ErrorCode::kCorrupt, "arena {}: byte {} between its slots is {:#x}, not 0",
                      arena.name(), padding.offset + static_cast<std::size_t>(dirty - begin),
                      static_cast<unsigned>(*dirty));
  }
  return {};
}

tensor::TensorView Staging::view(storage::SlotId id) const {
  std::byte* address = progress_[id.index()].address;
  HF_ASSERT(address != nullptr, "only versioned slots are staged");
  const storage::SlotSpec& spec = registry_.slot(id).spec;
  return {.address = address, .dtype = spec.dtype, .shape = spec.shape};
}

std::span<std::byte> Staging::bytes(storage::SlotId id) const {
  HF_ASSERT(direct(), "the host cannot look into this staging");
  return view(id).span();
}

Status Staging::record(storage::SlotId id, std::uint64_t offset, std::uint64_t bytes) {
  const storage::Slot& slot = registry_.slot(id);
  Progress& progress = progress_[id.index()];
  if (bytes == 0 || offset > slot.range.bytes || bytes > slot.range.bytes - offset) {
    return make_error(ErrorCode::kCorrupt, "slot {}: {} bytes written at offset {}, it has {}",
                      slot.spec.name, bytes, offset, slot.range.bytes);
  }
  if (!progress.written.add(offset, offset + bytes)) {
    return make_error(ErrorCode::kCorrupt, "slot {}: bytes [{}, {}) were written a second time",
                      slot.spec.name, offset, offset + bytes);
  }
  if (progress.written.covers(slot.range.bytes)) progress.generation = generation_;
  digest_on(id);
  return {};
}

// Digests what was written from the slot's beginning on, as far as there is no hole.
void Staging::digest_on(storage::SlotId id) {
  Progress& progress = progress_[id.index()];
  if (progress.digest_at_end || !direct()) return;
  const std::span<const std::byte> all = bytes(id);
  const auto hole = progress.written.first_hole(all.size());
  const std::uint64_t end = hole ? hole->begin : all.size();
  if (end == progress.digested) return;
  if (progress.digested == 0 && !hole) {
    progress.digest = base::tree_digest_of(all);
  } else {
    if (!progress.stream) progress.stream.emplace();
    progress.stream->add(all.subspan(progress.digested, end - progress.digested));
    if (!hole) progress.digest = progress.stream->digest();
  }
  if (!hole) progress.stream.reset();
  progress.digested = end;
}

void Staging::rewritten(storage::SlotId id, std::uint64_t offset) {
  Progress& progress = progress_[id.index()];
  if (direct() && offset >= progress.digested) return;
  progress.digest_at_end = true;
  progress.stream.reset();
  progress.digest.reset();
}

Status Staging::take_digests() {
  HF_TRY(finish_writes());
  std::vector<storage::SlotId> missing;
  std::vector<device::Memory> ranges;
  for (const storage::SlotId id : slots_) {
    if (!fresh(id) || progress_[id.index()].digest) continue;
    missing.push_back(id);
    ranges.push_back({view(id).address, view(id).bytes()});
  }
  if (missing.empty()) return {};
  HF_ASSIGN(const auto digests, registry_.device().digests(ranges));
  for (std::size_t i = 0; i < missing.size(); ++i) {
    progress_[missing[i].index()].digest = digests[i];
  }
  return {};
}

base::Digest Staging::digest(storage::SlotId id) const {
  HF_ASSERT(fresh(id), "the digest of a slot that is not complete");
  const auto& known = progress_[id.index()].digest;
  HF_ASSERT(known || direct(), "take_digests comes first");
  return known ? *known : base::tree_digest_of(bytes(id));
}

bool Staging::fresh(storage::SlotId id) const {
  return progress_[id.index()].generation == generation_;
}

Status Staging::check_complete() const {
  for (const storage::SlotId id : slots_) {
    if (fresh(id)) continue;
    const storage::Slot& slot = registry_.slot(id);
    const auto hole = progress_[id.index()].written.first_hole(slot.range.bytes);
    HF_ASSERT(hole.has_value(), "a slot without a hole is stamped");
    return make_error(ErrorCode::kCorrupt,
                      "{} slot {}: bytes [{}, {}) of {} were not written for epoch {}",
                      storage::slot_class_name(slot.spec.slot_class), slot.spec.name, hole->begin,
                      hole->end, slot.range.bytes, generation_);
  }
  return {};
}

}  // namespace holdfast::reload
