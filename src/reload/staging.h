// Staging: the next content of every versioned arena, in backing of its own, with an account of
// which bytes of which slot were written in this generation. It starts as poison, so that a byte
// that nobody wrote is a known value and never a stranger's data. Where the host can write it, each
// slot's digest grows with it, while its bytes are in the cache; elsewhere bytes go there by an
// Upload, and the device takes the digests. Owned by a Transaction; one staging thread, then the
// engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "device/arena.h"
#include "holdfast/result.h"
#include "reload/intervals.h"
#include "storage/registry.h"
#include "tensor/tensor_view.h"

namespace holdfast::reload {

// An arena and what will lie under its addresses.
struct StagedArena {
  device::Arena* arena = nullptr;
  device::Backing backing;
  device::Protection protection_before = device::Protection::kReadOnly;  // set by a commit
};

class Staging {
 public:
  // Allocates backing for every versioned arena and zeroes what lies between the slots, so that
  // padding is equal after every load. `generation` > 0 is the epoch that these bytes would become.
  // Errors: kResourceExhausted, kDevice.
  static Result<std::unique_ptr<Staging>> create(const storage::Registry& registry,
                                                 std::uint64_t generation);

  // The live slots themselves as the target, for a commit that streams: no device memory is
  // allocated, and the caller makes the arenas writable.
  static std::unique_ptr<Staging> create_live(const storage::Registry& registry,
                                              std::uint64_t generation);
  bool live() const { return live_; }

  // Whether the host can write the target where it lies.
  bool direct() const { return registry_.device().host_addressable(); }

  // Where a versioned slot's next bytes lie. Asserts that the slot is versioned.
  tensor::TensorView view(storage::SlotId id) const;
  // The same for the host. Asserts direct().
  std::span<std::byte> bytes(storage::SlotId id) const;
  // Puts bytes of the host there, which may be reused on return, or the slot's own live bytes.
  // Neither records. Errors: kDevice.
  Status put(storage::SlotId id, std::uint64_t offset, std::span<const std::byte> from);
  Status put_live(storage::SlotId id, std::uint64_t offset, std::uint64_t bytes);
  // What was put there, for the host: in place, or in `buffer`. Waits for what is under way.
  // Errors: kDevice.
  Result<std::span<const std::byte>> get(const tensor::TensorView& staged,
                                         std::vector<std::byte>& buffer);
  // Whether a view lies in the target, and not somewhere else in the host's memory.
  bool holds(const tensor::TensorView& view) const;
  // The plain digest of a part of a slot. Errors: kDevice.
  Result<base::Digest> plain_digest(storage::SlotId id, std::uint64_t offset, std::uint64_t bytes);
  // The way there where the host cannot write. Asserts !direct(). Errors: kDevice.
  Result<device::Upload*> upload();
  // Waits until all that was put has landed. Errors: kDevice.
  Status finish_writes();

  // Records that bytes [offset, offset + bytes) of a slot were written. The slot is stamped with
  // the generation once all of it is. Errors: kCorrupt naming the slot when they leave it or some
  // were written before.
  Status record(storage::SlotId id, std::uint64_t offset, std::uint64_t bytes);
  // Says that bytes of the slot from `offset` on are others now, recorded or not. Whoever writes
  // recorded bytes and does not say so fails the reload: the stamp is not what verify finds.
  void rewritten(storage::SlotId id, std::uint64_t offset);
  // Takes the tree digests that did not grow. Before digest(). Errors: kDevice.
  Status take_digests();
  // Of all bytes of the slot. Asserts fresh.
  base::Digest digest(storage::SlotId id) const;
  // Whether all of the slot was written in this generation.
  bool fresh(storage::SlotId id) const;
  // Errors: kCorrupt naming the first versioned slot with a byte that was not written in this
  // generation, and where.
  Status check_complete() const;
  // Zeroes what lies between the slots, in the target. Errors: kDevice.
  Status zero_padding();
  // After a commit: that what lies between the live slots is zero. Errors: kCorrupt naming arena
  // and byte.
  Status check_live_padding() const;

  std::uint64_t generation() const { return generation_; }
  std::span<StagedArena> arenas() { return arenas_; }
  // Versioned slots, in the registry's order.
  std::span<const storage::SlotId> slots() const { return slots_; }

 private:
  explicit Staging(const storage::Registry& registry, std::uint64_t generation)
      : registry_(registry), generation_(generation) {}
  // Where an arena's next bytes lie.
  std::byte* target_of(const StagedArena& arena) const;
  Status send(std::byte* to, std::span<const std::byte> from);
  void place_slots();
  void digest_on(storage::SlotId id);
  void find_padding(std::size_t arena_index, std::vector<device::AddressRange> slots);
  // Bytes of an arena that belong to no slot.
  struct Padding {
    std::size_t arena_index = 0;
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };
  struct Progress {
    std::byte* address = nullptr;
    Intervals written;
    std::uint64_t generation = 0;
    // Of the first `digested` bytes; once that is all of them, `digest` and no stream.
    std::uint64_t digested = 0;
    std::optional<base::TreeDigestStream> stream = {};
    std::optional<base::Digest> digest = {};
    bool digest_at_end = false;
  };
  const storage::Registry& registry_;
  std::uint64_t generation_ = 0;
  bool live_ = false;
  std::vector<StagedArena> arenas_;
  std::vector<Padding> padding_;
  std::vector<storage::SlotId> slots_;
  std::vector<Progress> progress_;  // by slot id
  std::unique_ptr<device::Upload> upload_;  // once something was sent
};

}  // namespace holdfast::reload
