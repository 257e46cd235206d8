// SafetensorsStream: a safetensors file read as it comes, in pieces of any size, with the memory of
// its header and one element (https://github.com/huggingface/safetensors, "Format"). Pure; one
// thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "holdfast/reload.h"
#include "holdfast/result.h"

namespace holdfast::serve {

inline constexpr std::uint64_t kMaxStreamHeaderBytes = std::uint64_t{32} << 20;
inline constexpr std::size_t kMaxStreamTensors = std::size_t{1} << 20;

class SafetensorsStream {
 public:
  struct Sinks {
    // Once, when the header has come: the tensors in the order of their bytes.
    std::function<Status(const std::vector<TensorInfo>& tensors)> on_header;
    // Whole elements of one tensor, in order.
    std::function<Status(const TensorInfo& tensor, std::uint64_t offset_bytes,
                         std::span<const std::byte> bytes)>
        on_bytes;
  };
  explicit SafetensorsStream(Sinks sinks) : sinks_(std::move(sinks)) {}

  // Errors: kCorrupt naming what breaks the format (a header that is too long or no JSON, an
  // unknown dtype, a hole or an overlap, bytes behind the end); those of the sinks. After an error
  // nothing more may be fed.
  Status feed(std::span<const std::byte> bytes);
  // That all has come. Errors: kCorrupt naming the tensor that is cut short.
  Status finish() const;
  std::uint64_t bytes_fed() const { return fed_; }

 private:
  struct Part {
    TensorInfo tensor;
    std::uint64_t begin = 0, end = 0;  // in the data
    std::size_t element_bytes = 1;
  };
  Status take_header(std::span<const std::byte>& bytes);
  Status parse_header();
  Status take_data(std::span<const std::byte>& bytes);
  Status emit(std::span<const std::byte> bytes);

  Sinks sinks_;
  std::uint64_t fed_ = 0;
  std::vector<std::byte> header_;  // with its 8 bytes of length, until it is parsed
  std::uint64_t header_bytes_ = 0;
  bool parsed_ = false;
  std::vector<Part> parts_;
  std::size_t part_ = 0;        // that the next byte belongs to
  std::uint64_t position_ = 0;  // in the data
  std::array<std::byte, 16> element_ = {};  // one that came in pieces
  std::size_t element_size_ = 0;
};

}  // namespace holdfast::serve
