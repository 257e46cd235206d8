// Puts staged backing under the arenas' addresses, and, by the same call again, takes it away: what
// was live is afterwards in the staging. On a failure it undoes what it did and says whether it
// could. The engine thread, between steps. Allocates nothing unless it fails, reads no file.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "holdfast/result.h"
#include "reload/staging.h"

namespace holdfast::reload {

struct CommitFailure {
  Error error;
  bool restored = false;  // every live byte is what it was; otherwise the live bytes are a mixture
};

// Exchanges the pages of every arena with its backing, then makes the arenas read-only.
std::optional<CommitFailure> exchange_all(std::span<StagedArena> arenas);
// Swaps the bytes of every arena with its backing's through `block` (host memory, not empty), and
// makes the arenas read-only.
std::optional<CommitFailure> swap_all(std::span<StagedArena> arenas, std::span<std::byte> block);

}  // namespace holdfast::reload
