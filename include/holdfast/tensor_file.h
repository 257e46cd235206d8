// TensorFileWriter: a safetensors file of float32 tensors whose names and shapes are known before
// their values, written piece by piece, that takes its name only when it is whole. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "holdfast/result.h"

namespace holdfast {

struct TensorFileEntry {
  std::string name;  // UTF-8, unique in the file
  std::vector<std::int64_t> shape;
};

class TensorFileWriter {
 public:
  // Writes the header of https://github.com/huggingface/safetensors beside `path` and reserves the
  // whole file's size. Errors: kInvalidArgument (no tensor, a name twice, a negative dimension, a
  // size over 2^62 bytes), kIo, kResourceExhausted when the disk is too small.
  static Result<std::unique_ptr<TensorFileWriter>> create(
      const std::string& path, const std::vector<TensorFileEntry>& entries);
  // Drops a file that was not finished.
  ~TensorFileWriter();
  TensorFileWriter(const TensorFileWriter&) = delete;
  TensorFileWriter& operator=(const TensorFileWriter&) = delete;

  // Stores `values` as elements [first, first + values.size()) of tensor `index`.
  // Errors: kInvalidArgument for a range outside the tensor, kIo.
  Status write(std::size_t index, std::uint64_t first, std::span<const float> values);
  // Gives the file its name. Errors: kIo; kFailedPrecondition naming a tensor of which fewer
  // elements were written than it has.
  Status finish();

 private:
  struct Impl;
  explicit TensorFileWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast
