// SafetensorsStream on any bytes in any pieces: no crash, offsets in order, whole elements only.
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "base/assert.h"
#include "serve/safetensors_stream.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace holdfast;
  if (size == 0) return 0;
  const std::size_t piece = 1 + data[0] % 64;
  std::map<std::string, std::uint64_t> next;
  serve::SafetensorsStream stream(
      {.on_header = [](const auto&) { return Status(); },
       .on_bytes = [&next](const TensorInfo& tensor, std::uint64_t offset,
                           std::span<const std::byte> bytes) {
         HF_ASSERT(!bytes.empty() && next[tensor.name] == offset, "bytes come in order");
         next[tensor.name] += bytes.size();
         return Status();
       }});
  for (std::size_t at = 1; at < size; at += piece) {
    const auto* from = reinterpret_cast<const std::byte*>(data + at);
    if (!stream.feed({from, std::min(piece, size - at)}).ok()) return 0;
  }
  static_cast<void>(stream.finish());
  return 0;
}
