#include "device/cpu/cpu_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "base/assert.h"
#include "base/error.h"

#if defined(__SANITIZE_ADDRESS__)
#define HF_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HF_ASAN 1
#endif
#endif
#ifdef HF_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) (static_cast<void>(address))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) (static_cast<void>(address))
#endif

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

namespace holdfast::device {
namespace {

constexpr int kPoisonValue = static_cast<int>(kPoisonByte);

std::uintptr_t number(const std::byte* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

int native_protection(Protection protection) {
  switch (protection) {
    case Protection::kNone: return PROT_NONE;
    case Protection::kReadOnly: return PROT_READ;
    case Protection::kReadWrite: return PROT_READ | PROT_WRITE;
  }
  return PROT_NONE;
}

void unmap(std::byte* address, std::size_t bytes) {
  // The shadow outlives the mapping: whoever is given this range next must not inherit its marks.
  ASAN_UNPOISON_MEMORY_REGION(address, bytes);
  HF_ASSERT(munmap(address, bytes) == 0, "munmap refused a range that mmap gave");
}

// Anonymous pages aligned to `alignment` (a multiple of the page size). Null when refused.
std::byte* map_aligned(std::size_t bytes, std::size_t alignment, int protection, int flags) {
  const std::size_t slack = alignment > 4096 ? alignment : 0;
  void* raw = mmap(nullptr, bytes + slack, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(raw);
  const std::size_t head = slack == 0 ? 0 : (alignment - number(begin) % alignment) % alignment;
  if (head != 0) munmap(begin, head);
  if (slack != head) munmap(begin + head + bytes, slack - head);
  return begin + head;
}

}  // namespace

bool move_pages_by_mremap(std::byte* from, std::byte* to, std::size_t bytes, bool keep) {
  const int flags = MREMAP_MAYMOVE | MREMAP_FIXED | (keep ? MREMAP_DONTUNMAP : 0);
  return mremap(from, bytes, bytes, flags, to) == static_cast<void*>(to);
}

CpuMemory::CpuMemory(const CpuDeviceOptions& options, MovePages move_pages)
    : options_(options),
      move_pages_(move_pages),
      page_bytes_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {}

CpuMemory::~CpuMemory() {
  HF_ASSERT(live_.empty(), "a device ends while " + std::to_string(live_.size()) +
                               " allocations live: end its arenas and backings first");
  for (auto& [bytes, blocks] : pool_) {
    for (std::byte* block : blocks) unmap(block, bytes);
  }
}

Result<Memory> CpuMemory::allocate(std::size_t bytes) {
  if (bytes == 0) return make_error(ErrorCode::kInvalidArgument, "an allocation of 0 bytes");
  if (bytes > std::numeric_limits<std::size_t>::max() - page_bytes_) {
    return make_error(ErrorCode::kResourceExhausted, "asked for {} bytes, the system has {}", bytes,
                      available_memory_bytes());
  }
  const std::size_t rounded = (bytes + page_bytes_ - 1) / page_bytes_ * page_bytes_;
  Memory memory{take_pooled(rounded), rounded};
  if (memory.address == nullptr) {
    HF_ASSIGN(memory, map_pages(rounded));
  }
  std::memset(memory.address, kPoisonValue, memory.bytes);
  const std::lock_guard lock(mutex_);
  live_.emplace(number(memory.address), rounded);
  count_live(rounded);
  return memory;
}

std::byte* CpuMemory::take_pooled(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = pool_.find(bytes);
  if (found == pool_.end()) return nullptr;
  std::byte* block = found->second.back();
  found->second.pop_back();
  if (found->second.empty()) pool_.erase(found);
  usage_.pooled_bytes -= bytes;
  ASAN_UNPOISON_MEMORY_REGION(block, bytes);
  return block;
}

Result<Memory> CpuMemory::map_pages(std::size_t bytes) {
  const std::size_t available = available_memory_bytes();
  const bool huge = options_.huge_pages && bytes >= kHugePageBytes;
  std::byte* address = nullptr;
  if (bytes <= available) {
    address = map_aligned(bytes, huge ? kHugePageBytes : page_bytes_, PROT_READ | PROT_WRITE, 0);
  }
  if (address == nullptr) {
    return make_error(ErrorCode::kResourceExhausted,
                      "asked for {} bytes of memory, the system has {} available; "
                      "use a smaller model or cache, or a machine with more memory",
                      bytes, available);
  }
  // Best effort: without huge pages everything works, only slower.
  if (huge) madvise(address, bytes, MADV_HUGEPAGE);
  return Memory{address, bytes};
}

void CpuMemory::count_live(std::size_t bytes) {
  usage_.live_bytes += bytes;
  usage_.peak_bytes = std::max(usage_.peak_bytes, usage_.live_bytes);
}

bool CpuMemory::is_live(Memory memory) const {
  const auto found = live_.find(number(memory.address));
  return found != live_.end() && found->second == memory.bytes;
}

void CpuMemory::free(Memory memory) {
  {
    const std::lock_guard lock(mutex_);
    HF_ASSERT(is_live(memory), "free of memory that is not live: freed twice, or never allocated");
    live_.erase(number(memory.address));
    usage_.live_bytes -= memory.bytes;
    const bool pools = memory.bytes <= options_.max_pooled_block_bytes &&
                       usage_.pooled_bytes + memory.bytes <= options_.max_pooled_bytes;
    if (pools) {
      HF_ASSERT(mprotect(memory.address, memory.bytes, PROT_READ | PROT_WRITE) == 0,
                "mprotect refused to make a freed block writable");
      std::memset(memory.address, kPoisonValue, memory.bytes);
      ASAN_POISON_MEMORY_REGION(memory.address, memory.bytes);
      pool_[memory.bytes].push_back(memory.address);
      usage_.pooled_bytes += memory.bytes;
      return;
    }
  }
  unmap(memory.address, memory.bytes);
}

Status CpuMemory::protect(Memory memory, Protection protection) {
  if (memory.address == nullptr || number(memory.address) % page_bytes_ != 0 ||
      memory.bytes == 0 || memory.bytes % page_bytes_ != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "protect of {} bytes at {:#x}: not whole pages of {} bytes", memory.bytes,
                      number(memory.address), page_bytes_);
  }
  if (mprotect(memory.address, memory.bytes, native_protection(protection)) != 0) {
    return make_error(ErrorCode::kDevice, "mprotect of {} bytes at {:#x}: {}", memory.bytes,
                      number(memory.address), std::strerror(errno));
  }
  return {};
}

// An empty mapping stays behind; kernels before 5.7 cannot do that, and leave a gap.
bool CpuMemory::move_pages_out(std::byte* from, std::byte* to, std::size_t bytes) const {
  if (move_pages_(from, to, bytes, true)) return true;
  return errno == EINVAL && move_pages_(from, to, bytes, false);
}

// a's pages step aside into a parking range, b's take their place, the parked ones take b's. Every
// step is one system call that happens or does not, so an error unwinds by the reverse steps.
Status CpuMemory::exchange(Memory a, Memory b) {
  const std::lock_guard lock(mutex_);
  HF_ASSERT(is_live(a) && is_live(b) && a.bytes == b.bytes && a.address != b.address,
            "exchange_backing needs two live allocations of one size");
  const std::size_t bytes = a.bytes;
  const auto failed = [&](const char* step) {
    return make_error(ErrorCode::kDevice, "exchange of {} bytes between {:#x} and {:#x}: {}: {}",
                      bytes, number(a.address), number(b.address), step, std::strerror(errno));
  };
  // Page tables move in 2 MiB steps only between ranges of equal alignment.
  const std::size_t alignment = bytes >= kHugePageBytes ? kHugePageBytes : page_bytes_;
  std::byte* parking = map_aligned(bytes, alignment, PROT_NONE, MAP_NORESERVE);
  if (parking == nullptr) return failed("no address range to park pages in");
  if (!move_pages_out(a.address, parking, bytes)) {
    Error error = failed("parking the live pages");
    munmap(parking, bytes);
    return error;
  }
  constexpr const char* kLost = "exchange_backing could not put the live pages back";
  if (!move_pages_out(b.address, a.address, bytes)) {
    Error error = failed("moving the staged pages in");
    HF_ASSERT(move_pages_(parking, a.address, bytes, false), kLost);
    return error;
  }
  if (!move_pages_(parking, b.address, bytes, false)) {
    Error error = failed("moving the previous pages out");
    HF_ASSERT(move_pages_out(a.address, b.address, bytes), kLost);
    HF_ASSERT(move_pages_(parking, a.address, bytes, false), kLost);
    return error;
  }
  return {};
}

MemoryUsage CpuMemory::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

void CpuMemory::reset_peak() {
  const std::lock_guard lock(mutex_);
  usage_.peak_bytes = usage_.live_bytes;
}

}  // namespace holdfast::device
