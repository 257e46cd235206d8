#include "device/cuda/cuda_scans.h"

#include <algorithm>
#include <array>

#include "device/cuda/driver.h"
#include "device/cuda/xxh3.h"

namespace holdfast::device::cuda {
namespace {

constexpr std::size_t kTableBytes = std::size_t{4} << 20;  // of each of the two
constexpr std::size_t kLeavesAtOnce = kTableBytes / sizeof(LeafJob);
constexpr std::size_t kSearchesAtOnce = kTableBytes / sizeof(WordSearch);

}  // namespace

CudaScans::~CudaScans() {
  if (table_ != nullptr) static_cast<void>(cudaFree(table_));
  if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
}

Status CudaScans::open() {
  if (table_ != nullptr) return {};
  if (stream_ == nullptr) {
    HF_TRY(check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                 "creating the stream of scans"));
  }
  void* table = nullptr;
  HF_TRY(check(cudaMalloc(&table, 2 * kTableBytes), "allocating the tables of scans"));
  table_ = static_cast<std::byte*>(table);
  return {};
}

Status CudaScans::read(const std::byte* from, std::span<std::byte> to) {
  HF_TRY(check(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, stream_),
               "reading what a scan found"));
  return check(cudaStreamSynchronize(stream_), "waiting for a scan");
}

// Of leaves that are long enough for a GPU, by it; of the others by the host.
Status CudaScans::take_leaves(std::span<const LeafJob> jobs, std::span<base::Digest> digests) {
  std::vector<LeafJob> long_jobs;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].bytes >= kXxh3MinBytes) {
      long_jobs.push_back(jobs[i]);
      places.push_back(i);
      continue;
    }
    std::array<std::byte, kXxh3MinBytes> bytes;
    const auto leaf = std::span(bytes).first(jobs[i].bytes);
    if (!leaf.empty()) HF_TRY(read(jobs[i].address, leaf));
    digests[i] = base::digest_of(leaf);
  }
  if (long_jobs.empty()) return {};
  auto* const in = reinterpret_cast<LeafJob*>(table_);
  auto* const out = reinterpret_cast<LeafDigest*>(table_ + kTableBytes);
  HF_TRY(check(cudaMemcpyAsync(in, long_jobs.data(), long_jobs.size() * sizeof(LeafJob),
                               cudaMemcpyHostToDevice, stream_),
               "sending the leaves of a scan"));
  HF_TRY(check(digest_leaves(in, out, long_jobs.size(), stream_), "digesting device memory"));
  std::vector<LeafDigest> found(long_jobs.size());
  HF_TRY(read(table_ + kTableBytes, std::as_writable_bytes(std::span(found))));
  for (std::size_t i = 0; i < found.size(); ++i) {
    digests[places[i]] = {.high = found[i].high, .low = found[i].low};
  }
  return {};
}

Result<std::vector<base::Digest>> CudaScans::digests(std::span<const Memory> ranges) {
  const std::lock_guard lock(mutex_);
  HF_TRY(open());
  std::vector<LeafJob> jobs;
  for (const Memory& range : ranges) {
    for (std::size_t leaf = 0; leaf < base::digest_leaf_count(range.bytes); ++leaf) {
      const std::size_t at = leaf * base::kDigestLeafBytes;
      jobs.push_back({range.address + at, std::min(base::kDigestLeafBytes, range.bytes - at)});
    }
  }
  std::vector<base::Digest> leaves(jobs.size());
  for (std::size_t done = 0; done < jobs.size(); done += kLeavesAtOnce) {
    const std::size_t count = std::min(kLeavesAtOnce, jobs.size() - done);
    HF_TRY(take_leaves(std::span(jobs).subspan(done, count),
                       std::span(leaves).subspan(done, count)));
  }
  std::vector<base::Digest> digests;
  std::size_t first = 0;
  for (const Memory& range : ranges) {
    const std::size_t count = base::digest_leaf_count(range.bytes);
    digests.push_back(base::tree_digest_of_leaves(std::span(leaves).subspan(first, count)));
    first += count;
  }
  return digests;
}

Result<std::optional<std::size_t>> CudaScans::find_in(const std::byte* from, std::size_t bytes,
                                                      const LaneTest& test) {
  std::array<std::byte, sizeof(std::uint64_t)> copy;
  const auto part = std::span(copy).first(bytes);
  if (part.empty()) return std::optional<std::size_t>{};
  HF_TRY(read(from, part));
  return find_lane(part, test);
}

Status CudaScans::find_firsts(std::span<const WordSearch> words, std::span<std::uint64_t> firsts) {
  auto* const in = reinterpret_cast<WordSearch*>(table_);
  auto* const out = reinterpret_cast<std::uint64_t*>(table_ + kTableBytes);
  HF_TRY(check(cudaMemcpyAsync(in, words.data(), words.size_bytes(), cudaMemcpyHostToDevice,
                               stream_),
               "sending the searches of a scan"));
  HF_TRY(check(cudaMemsetAsync(out, 0xFF, firsts.size_bytes(), stream_), "clearing a table"));
  HF_TRY(check(find_words(in, out, words.size(), stream_), "searching device memory"));
  return read(table_ + kTableBytes, std::as_writable_bytes(firsts));
}

// The whole words of each range by the GPU, what lies before and after them by the host. A lane's
// width divides a word's, so an element never lies in two parts.
Result<std::vector<std::optional<std::size_t>>> CudaScans::find_lanes(
    std::span<const LaneSearch> searches) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  const std::lock_guard lock(mutex_);
  HF_TRY(open());
  std::vector<WordSearch> words;
  std::vector<std::size_t> heads;
  for (const LaneSearch& search : searches) {
    const auto begin = reinterpret_cast<std::uintptr_t>(search.range.address);
    const std::size_t head = std::min((kWord - begin % kWord) % kWord, search.range.bytes);
    heads.push_back(head);
    words.push_back({reinterpret_cast<const std::uint64_t*>(search.range.address + head),
                     (search.range.bytes - head) / kWord, search.test});
  }
  std::vector<std::uint64_t> firsts(words.size());
  for (std::size_t done = 0; done < words.size(); done += kSearchesAtOnce) {
    const std::size_t count = std::min(kSearchesAtOnce, words.size() - done);
    HF_TRY(find_firsts(std::span(words).subspan(done, count),
                       std::span(firsts).subspan(done, count)));
  }
  std::vector<std::optional<std::size_t>> found;
  for (std::size_t i = 0; i < searches.size(); ++i) {
    const auto& [range, test] = searches[i];
    const std::size_t tail = heads[i] + words[i].count * kWord;
    const auto look = [&](std::size_t at, std::size_t bytes) -> Result<std::optional<std::size_t>> {
      HF_ASSIGN(const auto index, find_in(range.address + at, bytes, test));
      return index ? std::optional(at / test.width + *index) : std::nullopt;
    };
    HF_ASSIGN(std::optional<std::size_t> first, look(0, heads[i]));
    if (!first && firsts[i] != kNoWord) {
      HF_ASSIGN(first, look(heads[i] + firsts[i] * kWord, kWord));
    }
    if (!first) {
      HF_ASSIGN(first, look(tail, range.bytes - tail));
    }
    found.push_back(first);
  }
  return found;
}

}  // namespace holdfast::device::cuda
