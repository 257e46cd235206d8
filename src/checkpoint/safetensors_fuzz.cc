// Fuzz target: the safetensors header. The first two bytes choose how many bytes of data the file
// seems to have behind what the fuzzer gives, so that headers with tensors can be whole.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/assert.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace holdfast;
  std::uint16_t more = 0;
  if (size < sizeof(more)) return 0;
  std::memcpy(&more, data, sizeof(more));
  const auto head = std::as_bytes(std::span(data, size)).subspan(sizeof(more));
  // A length within the pretended tail would need bytes that are not there: the whole file then.
  std::uint64_t length = 0;
  if (head.size() >= sizeof(length)) std::memcpy(&length, head.data(), sizeof(length));
  const bool whole = head.size() >= sizeof(length) && length <= head.size() - sizeof(length);
  const std::uint64_t file_bytes = head.size() + (whole ? more : 0);
  const auto header = checkpoint::parse_safetensors_header(head, file_bytes, "fuzz");
  if (!header.ok()) return 0;
  std::uint64_t covered = 0;
  for (const auto& entry : header->tensors) {
    HF_ASSERT(entry.begin == covered && entry.end >= entry.begin, "tensors lie one after another");
    covered = entry.end;
  }
  HF_ASSERT(header->data_begin + covered == file_bytes, "every byte is accounted for");
  return 0;
}
