#include "reload/commit.h"

#include <algorithm>

namespace holdfast::reload {
namespace {

using device::Protection;

bool exchange_back(std::span<StagedArena> arenas) {
  bool restored = true;
  for (auto at = arenas.rbegin(); at != arenas.rend(); ++at) {
    restored = at->arena->exchange(at->backing).ok() && restored;
  }
  return restored;
}

Status make_read_only(device::Arena& arena) {
  if (arena.protection() == Protection::kReadOnly) return {};
  return arena.protect(Protection::kReadOnly);
}

// One block's turn. On a failure the live block is put back from `block`, which holds it.
std::optional<CommitFailure> swap_block(device::Device& device, std::byte* live, std::byte* staged,
                                        std::span<std::byte> block) {
  if (auto status = device.read(block.data(), live, block.size()); !status.ok()) {
    return CommitFailure{status.error(), true};
  }
  auto status = device.write(live, staged, block.size());
  if (status.ok()) status = device.write(staged, block.data(), block.size());
  if (status.ok()) return std::nullopt;
  return CommitFailure{status.error(), device.write(live, block.data(), block.size()).ok()};
}

// Swaps the bytes of a writable arena with its backing's.
std::optional<CommitFailure> swap_bytes(StagedArena& staged, std::span<std::byte> block) {
  device::Device& device = staged.arena->device();
  const device::Memory live = staged.arena->memory();
  std::byte* const next = staged.backing.memory().address;
  if (!device.host_addressable()) {
    const Status swapped = device.swap(live.address, next, live.bytes);
    if (swapped.ok()) return std::nullopt;
    // How far it came is not known.
    if (swapped.error().code() != ErrorCode::kUnsupported) {
      return CommitFailure{swapped.error(), false};
    }
  }
  for (std::size_t done = 0; done < live.bytes;) {
    const std::size_t bytes = std::min(block.size(), live.bytes - done);
    auto failure = swap_block(device, live.address + done, next + done, block.first(bytes));
    if (failure.has_value()) {
      // The staging holds what the finished blocks were.
      if (done > 0) failure->restored &= device.write(live.address, next, done).ok();
      return failure;
    }
    done += bytes;
  }
  return std::nullopt;
}

// Puts a whole arena's bytes back from its backing, which holds what they were.
bool copy_back(StagedArena& staged) {
  device::Arena& arena = *staged.arena;
  const device::Memory live = arena.memory();
  return arena.device().write(live.address, staged.backing.memory().address, live.bytes).ok() &&
         arena.protect(staged.protection_before).ok();
}

std::optional<CommitFailure> swap_arena(StagedArena& staged, std::span<std::byte> block) {
  device::Arena& arena = *staged.arena;
  staged.protection_before = arena.protection();
  if (auto status = arena.protect(Protection::kReadWrite); !status.ok()) {
    return CommitFailure{status.error(), true};
  }
  if (auto failure = swap_bytes(staged, block); failure.has_value()) {
    failure->restored &= arena.protect(staged.protection_before).ok();
    return failure;
  }
  auto status = arena.protect(Protection::kReadOnly);
  if (status.ok()) return std::nullopt;
  return CommitFailure{status.error(), copy_back(staged)};
}

}  // namespace

std::optional<CommitFailure> exchange_all(std::span<StagedArena> arenas) {
  for (std::size_t i = 0; i < arenas.size(); ++i) {
    auto status = arenas[i].arena->exchange(arenas[i].backing);
    if (!status.ok()) return CommitFailure{status.error(), exchange_back(arenas.first(i))};
  }
  for (StagedArena& staged : arenas) {
    auto status = make_read_only(*staged.arena);
    if (!status.ok()) return CommitFailure{status.error(), exchange_back(arenas)};
  }
  return std::nullopt;
}

std::optional<CommitFailure> swap_all(std::span<StagedArena> arenas, std::span<std::byte> block) {
  for (std::size_t i = 0; i < arenas.size(); ++i) {
    auto failure = swap_arena(arenas[i], block);
    if (!failure.has_value()) continue;
    for (StagedArena& done : arenas.first(i)) {
      const bool writable = done.arena->protect(Protection::kReadWrite).ok();
      failure->restored = writable && copy_back(done) && failure->restored;
    }
    return failure;
  }
  return std::nullopt;
}

}  // namespace holdfast::reload
