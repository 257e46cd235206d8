#include "device/cuda/cuda_memory.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/error.h"

namespace holdfast::device::cuda {
namespace {

// Larger handles make an exchange cheaper (its cost is by handle), smaller ones nothing: tiled
// readers get the same bandwidth from both.
constexpr std::size_t kHandleBytes = std::size_t{16} << 30;
constexpr std::size_t kMaxPooledBlockBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxPooledBytes = std::size_t{1} << 30;

CUmemAllocationProp allocation_properties(int device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

CUdeviceptr pointer(const std::byte* address) { return reinterpret_cast<CUdeviceptr>(address); }

Status poison(CUdeviceptr address, std::size_t bytes) {
  const cudaError_t status = cudaMemset(reinterpret_cast<void*>(address),
                                        static_cast<int>(kPoisonByte), bytes);
  HF_TRY(check(status, "poisoning device memory"));
  return check(cudaStreamSynchronize(nullptr), "poisoning device memory");
}

}  // namespace

CudaMemory::~CudaMemory() {
  for (auto& [address, block] : blocks_) drop(address, block);
  for (auto& [bytes, entry] : pool_) drop(entry.first, entry.second);
}

Result<CudaMemory::Block> CudaMemory::create(std::size_t bytes) {
  Block block{.bytes = bytes, .handles = {}, .protection = Protection::kReadWrite};
  const CUmemAllocationProp properties = allocation_properties(device_);
  for (std::size_t done = 0; done < bytes; done += std::min(kHandleBytes, bytes - done)) {
    CUmemGenericAllocationHandle handle = 0;
    const CUresult created =
        driver_.mem_create(&handle, std::min(kHandleBytes, bytes - done), &properties, 0);
    if (created != CUDA_SUCCESS) {
      release(block);
      std::size_t free_bytes = 0;
      std::size_t total_bytes = 0;
      static_cast<void>(cudaMemGetInfo(&free_bytes, &total_bytes));
      return check(created, fmt::format("allocating {} bytes of device memory, {} are free of {}",
                                        bytes, free_bytes, total_bytes))
          .error();
    }
    block.handles.push_back(handle);
  }
  return block;
}

Status CudaMemory::map(CUdeviceptr address, const Block& block) {
  std::size_t done = 0;
  for (const CUmemGenericAllocationHandle handle : block.handles) {
    const std::size_t bytes = std::min(kHandleBytes, block.bytes - done);
    HF_TRY(check(driver_.mem_map(address + done, bytes, 0, handle, 0), "mapping device memory"));
    done += bytes;
  }
  return set_access(address, block);
}

Status CudaMemory::set_access(CUdeviceptr address, const Block& block) {
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device_;
  switch (block.protection) {
    case Protection::kNone: access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE; break;
    case Protection::kReadOnly: access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ; break;
    case Protection::kReadWrite: access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE; break;
  }
  return check(driver_.mem_set_access(address, block.bytes, &access, 1),
               "setting the access to device memory");
}

void CudaMemory::release(Block& block) {
  for (const CUmemGenericAllocationHandle handle : block.handles) driver_.mem_release(handle);
  block.handles.clear();
}

void CudaMemory::drop(CUdeviceptr address, Block& block) {
  static_cast<void>(driver_.mem_unmap(address, block.bytes));
  release(block);
  static_cast<void>(driver_.mem_address_free(address, block.bytes));
}

Result<Memory> CudaMemory::take_pooled(std::size_t bytes) {
  const auto found = pool_.find(bytes);
  if (found == pool_.end()) return Memory{};
  auto [address, block] = std::move(found->second);
  pool_.erase(found);
  pooled_bytes_ -= bytes;
  blocks_.emplace(address, std::move(block));
  return Memory{reinterpret_cast<std::byte*>(address), bytes};
}

// Far up, because the driver's own choice is among the first 64 GiB, where two neighbouring halves
// of small numbers in a kernel's arguments look like an address of ours, which the audit refuses.
Status CudaMemory::reserve(CUdeviceptr& address, std::size_t bytes) {
  const CUdeviceptr wanted = next_address_;
  next_address_ += bytes;
  if (driver_.mem_address_reserve(&address, bytes, granularity_, wanted, 0) == CUDA_SUCCESS) {
    return {};
  }
  return check(driver_.mem_address_reserve(&address, bytes, granularity_, 0, 0),
               "reserving device addresses");
}

Result<Memory> CudaMemory::allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + granularity_ - 1) / granularity_ *
                              granularity_;
  HF_ASSIGN(Memory memory, take_pooled(rounded));
  if (memory.address == nullptr) {
    HF_ASSIGN(Block block, create(rounded));
    CUdeviceptr address = 0;
    Status mapped = reserve(address, rounded);
    if (mapped.ok()) {
      mapped = map(address, block);
      if (mapped.ok()) mapped = poison(address, rounded);
      if (!mapped.ok()) {
        drop(address, block);
        return mapped.error();
      }
    } else {
      release(block);
      return mapped.error();
    }
    blocks_.emplace(address, std::move(block));
    memory = {reinterpret_cast<std::byte*>(address), rounded};
  }
  live_bytes_ += rounded;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  return memory;
}

Result<CudaMemory::Blocks::iterator> CudaMemory::find(Memory memory) {
  const auto found = blocks_.find(pointer(memory.address));
  if (found != blocks_.end() && found->second.bytes == memory.bytes) return found;
  return make_error(ErrorCode::kInvalidArgument,
                    "{} bytes at {} are no block of this device's memory", memory.bytes,
                    static_cast<const void*>(memory.address));
}

void CudaMemory::free(Memory memory) {
  const std::lock_guard lock(mutex_);
  const auto found = find(memory);
  HF_ASSERT(found.ok(), "a block that this device did not give out is freed");
  const auto [address, block] = std::pair(pointer(memory.address), std::move((*found)->second));
  blocks_.erase(*found);
  live_bytes_ -= memory.bytes;
  Block freed = block;
  freed.protection = Protection::kReadWrite;
  const bool pooled = memory.bytes <= kMaxPooledBlockBytes &&
                      pooled_bytes_ + memory.bytes <= kMaxPooledBytes &&
                      set_access(address, freed).ok() && poison(address, memory.bytes).ok();
  if (!pooled) return drop(address, freed);
  pooled_bytes_ += memory.bytes;
  pool_.emplace(memory.bytes, std::pair(address, std::move(freed)));
}

Status CudaMemory::protect(Memory memory, Protection protection) {
  const std::lock_guard lock(mutex_);
  HF_ASSIGN(const auto found, find(memory));
  if (found->second.protection == protection) return {};
  const Protection before = std::exchange(found->second.protection, protection);
  Status status = set_access(found->first, found->second);
  if (!status.ok()) found->second.protection = before;
  return status;
}

// Nothing guards a kernel in flight: the caller has fenced it.
Status CudaMemory::exchange(Memory a, Memory b) {
  const std::lock_guard lock(mutex_);
  HF_ASSIGN(const auto first, find(a));
  HF_ASSIGN(const auto second, find(b));
  if (a.bytes != b.bytes) {
    return make_error(ErrorCode::kMismatch, "exchange of blocks of {} and {} bytes", a.bytes,
                      b.bytes);
  }
  HF_TRY(check(driver_.mem_unmap(first->first, a.bytes), "unmapping device memory"));
  Status status = check(driver_.mem_unmap(second->first, b.bytes), "unmapping device memory");
  if (!status.ok()) {
    HF_TRY(map(first->first, first->second));
    return status;
  }
  std::swap(first->second.handles, second->second.handles);
  std::swap(first->second.protection, second->second.protection);
  status = map(first->first, first->second);
  if (status.ok()) status = map(second->first, second->second);
  if (status.ok()) return {};
  static_cast<void>(driver_.mem_unmap(first->first, a.bytes));
  static_cast<void>(driver_.mem_unmap(second->first, b.bytes));
  std::swap(first->second.handles, second->second.handles);
  std::swap(first->second.protection, second->second.protection);
  HF_TRY(map(first->first, first->second));
  HF_TRY(map(second->first, second->second));
  return status;
}

MemoryUsage CudaMemory::usage() const {
  const std::lock_guard lock(mutex_);
  return {.live_bytes = live_bytes_, .peak_bytes = peak_bytes_, .pooled_bytes = pooled_bytes_};
}

void CudaMemory::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_bytes_ = live_bytes_;
}

}  // namespace holdfast::device::cuda
