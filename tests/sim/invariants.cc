// What must hold after every event of a simulation.
#include <dirent.h>

#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "simulation.h"
#include "storage/census.h"

namespace holdfast::sim {
namespace {

std::size_t count_entries(const char* directory) {
  DIR* const open = ::opendir(directory);
  if (open == nullptr) return 0;
  std::size_t count = 0;
  while (::readdir(open) != nullptr) ++count;
  ::closedir(open);
  return count;
}

}  // namespace

Status Simulation::check(const std::string& after) {
  event_name_ = after;
  if (core_->poisoned() != expected_.poisoned) {
    return violation(core_->poisoned() ? "the engine is poisoned" : "the engine is not poisoned");
  }
  if (core_->epoch() != expected_.epoch) {
    return violation(fmt::format("the epoch is {}, expected {}", core_->epoch(), expected_.epoch));
  }
  HF_TRY(observe({}));
  if (core_->version() != expected_.label) {
    return violation(fmt::format("the version is \"{}\", expected \"{}\"", core_->version(),
                                 expected_.label));
  }
  HF_TRY(check_slots());
  if (!open_) HF_TRY(check_leaks());
  return {};
}

// I1: no slot moved. I3: what is versioned is read-only. I6, I9: its bytes, padding included, are
// those of a cold engine of exactly one version.
Status Simulation::check_slots() {
  const storage::Registry& registry = core_->runtime().registry();
  const auto slots = registry.slots();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].range.begin != addresses_[i]) {
      return violation("slot " + slots[i].spec.name + " moved");
    }
    if (!storage::is_versioned(slots[i].spec.slot_class) || expected_.poisoned) continue;
    if (slots[i].epoch.value != expected_.epoch) {
      return violation(fmt::format("slot {} is stamped with epoch {}, expected {}",
                                   slots[i].spec.name, slots[i].epoch.value, expected_.epoch));
    }
  }
  if (expected_.poisoned || stray_pending_) return {};
  for (const device::Arena* arena : registry.versioned_arenas()) {
    if (arena->protection() != device::Protection::kReadOnly) {
      return violation("arena " + arena->name() + " can be written");
    }
  }
  HF_ASSIGN(const auto wanted, reference_->digests(expected_.version));
  if (digest_arenas(registry) == wanted) return {};
  std::string changed;
  for (const storage::Slot& slot : slots) {
    if (!slot.digest) continue;
    if (base::tree_digest_of(registry.view(slot.id).const_span()) != *slot.digest) {
      changed += " " + slot.spec.name;
    }
  }
  return violation(fmt::format("the bytes are not those of version {}; slots that differ from "
                               "their stamp:{}",
                               expected_.version, changed.empty() ? " none" : changed));
}

// With no reload open everything that one took is back.
Status Simulation::check_leaks() {
  const std::size_t live_bytes = core_->runtime().device().usage().live_bytes;
  const std::size_t descriptors = count_entries("/proc/self/fd");
  const std::size_t threads = count_entries("/proc/self/task");
  if (live_bytes_ == 0) {
    live_bytes_ = live_bytes;
    descriptors_ = descriptors;
    threads_ = threads;
    return {};
  }
  if (live_bytes != live_bytes_) {
    return violation(fmt::format("{} bytes of device memory are live, {} were before any reload",
                                 live_bytes, live_bytes_));
  }
  // The reference opens cold engines, which keep no file either.
  if (descriptors != descriptors_) {
    return violation(fmt::format("{} file descriptors, {} before", descriptors, descriptors_));
  }
  // A reload's thread may still be on its way out.
  if (threads != threads_ && !options_.background) {
    return violation(fmt::format("{} threads, {} before", threads, threads_));
  }
  return {};
}

// I2: every captured address lies in the slot that it lay in at capture.
Status Simulation::check_census() {
  const engine::GraphSet& graphs = core_->runtime().graphs();
  const auto captured = graphs.graphs();
  HF_ASSIGN(const storage::Census census,
            storage::take_census(core_->runtime().registry(), captured));
  if (census.homeless_count() != 0) return violation("a captured address has no home");
  if (!graphs.rehomed(core_->runtime().registry()).empty()) {
    return violation("a captured address lies in another slot than at capture");
  }
  return {};
}

// I4, I9, I10: every request is what a cold engine computes alone, row by row, under the versions
// that its positions were computed with.
Status Simulation::check_requests() {
  for (const auto& tracked : requests_) {
    const RequestRecord& record = tracked->record;
    if (tracked->must_abort && record.reason != FinishReason::kAbort) {
      return violation(fmt::format("request {} outlived the weights of its keys",
                                   record.id.value));
    }
    if (const Status status = reference_->check(record); !status.ok()) {
      return violation(status.error().message());
    }
  }
  return {};
}

}  // namespace holdfast::sim
