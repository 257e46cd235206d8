// safetensors: one file, mapped and validated as a whole before anything of it is used, and a
// writer. Format: u64 little-endian header length, JSON header, data
// (https://github.com/huggingface/safetensors). Immutable after open; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file_io.h"
#include "holdfast/result.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace holdfast::checkpoint {

inline constexpr std::uint64_t kMaxHeaderBytes = 100ull << 20;
inline constexpr std::size_t kMaxTensorsPerFile = 1u << 20;
inline constexpr std::size_t kMaxTensorNameBytes = 512;

struct TensorEntry {
  std::string name;
  tensor::DType dtype = tensor::DType::kU8;
  tensor::Shape shape;
  std::uint64_t begin = 0;  // byte range in the data section
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in order of `begin`
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;  // file offset of the data section
};

// Parses and validates the leading bytes of a file of `file_bytes` bytes. `head` must hold the
// whole header (8 + length bytes) or the whole file. The fuzz target's entry.
// Errors (kCorrupt; `name` is put first in every message): header longer than the file or than
// kMaxHeaderBytes, invalid or too deep JSON, duplicate tensor, byte range that is reversed, out of
// the file, overlapping, leaving a hole, at a file offset unaligned to the dtype, or unequal to the
// product of shape and dtype width. kUnsupported: a dtype that holdfast has no DType for.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> head,
                                                   std::uint64_t file_bytes,
                                                   const std::string& name);

class SafetensorsFile {
 public:
  // Maps `path` read-only. Symbolic links are followed. Errors: kNotFound, kIo, kInvalidArgument
  // (not a regular file), and those of parse_safetensors_header.
  static Result<std::unique_ptr<SafetensorsFile>> open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }
  const TensorEntry* find(const std::string& name) const;  // nullptr when absent
  // The mapped bytes of `entry`, which must come from this file.
  std::span<const std::byte> data(const TensorEntry& entry) const;
  // Copies bytes [offset, offset + to.size()) of `entry` with pread, so that a file truncated or
  // replaced behind the mapping gives kIo and never a fault. Errors: kIo, kInvalidArgument.
  Status read(const TensorEntry& entry, std::uint64_t offset, std::span<std::byte> to) const;
  // Tells whether the file at path() is still the one that was opened (inode, size, mtime).
  // Errors: kIo.
  Status check_unchanged() const;

 private:
  SafetensorsFile() = default;
  std::string path_;
  OpenedFile opened_;
  std::span<const std::byte> mapping_;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t, std::less<>> index_by_name_;
};

// One tensor to be written.
struct TensorToWrite {
  std::string name;
  tensor::DType dtype = tensor::DType::kF32;
  tensor::Shape shape;
  std::span<const std::byte> data;
};
// The leading bytes of a file whose data section is `tensors` at their byte ranges: length, header,
// spaces up to 8 bytes. Errors: kInvalidArgument (with `path` first) for what the reader would not
// take: a name twice, reserved or not UTF-8, ranges that are not one after the other.
Result<std::vector<std::byte>> make_safetensors_head(
    const std::string& path, std::span<const TensorEntry> tensors,
    const std::map<std::string, std::string>& metadata = {});

// Writes `path` whole or not at all (a temporary beside it, fsync, rename). Tensors are laid out in
// the given order, the header padded with spaces to 8 bytes. Errors: kIo, kInvalidArgument.
Status write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                         const std::map<std::string, std::string>& metadata = {});

}  // namespace holdfast::checkpoint
