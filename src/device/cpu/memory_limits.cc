#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "device/cpu/cpu_memory.h"

namespace holdfast::device {
namespace {

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

// The number after `key` in a file of "key number" lines (/proc/meminfo, memory.stat).
std::size_t number_after(const char* path, const std::string& key, std::size_t otherwise) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (word != key) continue;
    std::size_t value = 0;
    if (file >> value) return value;
  }
  return otherwise;
}

// The number that is the whole of a file; "max" and an absent file give `otherwise`.
std::size_t number_in(const char* path, std::size_t otherwise) {
  std::ifstream file(path);
  std::size_t value = 0;
  return file >> value ? value : otherwise;
}

std::size_t control_group_bytes() {
  const std::size_t limit = number_in("/sys/fs/cgroup/memory.max", kUnlimited);
  if (limit == kUnlimited) return kUnlimited;
  // The group's page cache counts as used and is given back on demand.
  const std::size_t used = number_in("/sys/fs/cgroup/memory.current", 0);
  const std::size_t cache = number_after("/sys/fs/cgroup/memory.stat", "inactive_file", 0);
  const std::size_t held = used - std::min(used, cache);
  return limit - std::min(limit, held);
}

}  // namespace

std::size_t available_memory_bytes() {
  const std::size_t kib = number_after("/proc/meminfo", "MemAvailable:", kUnlimited);
  const std::size_t machine = kib == kUnlimited ? kUnlimited : kib * 1024;
  return std::min(machine, control_group_bytes());
}

}  // namespace holdfast::device
