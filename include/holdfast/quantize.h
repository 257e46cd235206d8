// quantize_checkpoint: a bf16, f16 or f32 checkpoint's experts in another scheme, as Hugging Face's
// loaders take it. Blocks; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "holdfast/result.h"

namespace holdfast {

// All buffers of all threads together, unless one thread's matrix alone takes more.
inline constexpr std::uint64_t kMaxQuantizeBufferBytes = 1ull << 30;

struct QuantizeOptions {
  std::string source;      // the directory of a checkpoint
  std::string directory;   // created; it may exist when it is empty
  std::string scheme;      // one of quantize_schemes()
  std::int64_t group_size = 128;  // int4: inputs to a scale
  bool zero_points = false;       // int4: asymmetric
  std::uint64_t max_shard_bytes = 5'000'000'000;  // of tensor data; a tensor is never cut
  int threads = 0;                                // 0: all cores
  std::function<void(double fraction)> progress = {};  // on the caller's thread
  std::function<bool()> cancelled = {};  // asked now and then, on the caller's thread
};

struct QuantizeReport {
  std::string format;  // "mxfp4, activations none, as gpt-oss (Hugging Face)"
  std::uint64_t tensors = 0, shards = 0;
  std::uint64_t bytes = 0;           // of the new checkpoint's tensors
  std::uint64_t source_bytes = 0;    // of the old one's
  std::uint64_t expert_bytes = 0;    // of the old one's experts' matrices, which were quantised
  std::uint64_t buffer_bytes = 0;    // held at most: of all threads
  int threads = 0;
};

// "mxfp4", "mxfp8", "nvfp4", "fp8-block", "fp8-channel", "fp8-tensor", "int4".
std::vector<std::string> quantize_schemes();

// Writes `directory`: the experts' matrices quantised, each by itself and on one thread, under the
// names of the scheme's most usual publisher (docs/formats.md): gpt-oss MXFP4 as on the hub; for
// Qwen3-MoE and Mixtral FP8 blocks with weight_scale_inv, MXFP8 as ModelOpt, all else as
// compressed-tensors. All other tensors are copied bit for bit, as are all other files (tokenizer,
// generation_config.json); config.json gets the quantization_config. Every byte of it depends on
// the source and the scheme alone, not on threads or the source's shards.
// On an error everything that this call has created is removed; what a killed process leaves has no
// config.json, which is written last. Files are not flushed to the disk: they can be made again.
// Errors: those of opening a checkpoint; kUnsupported (quantised already, a scheme that the
// architecture is not published in), kInvalidArgument (an unknown scheme, dimensions that it cannot
// hold, a directory that is not empty or lies in the source), kCorrupt (a value that is not finite,
// naming the tensor), kResourceExhausted naming the bytes needed and free, kIo, kCancelled.
Result<QuantizeReport> quantize_checkpoint(const QuantizeOptions& options);

}  // namespace holdfast
