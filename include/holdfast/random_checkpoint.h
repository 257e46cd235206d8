// make_random_checkpoint: a model directory with a published model's config, names, shapes and
// layout, and random weights: what an engine of that size is measured and drilled on where the
// published weights are not at hand. Blocks; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "holdfast/result.h"

namespace holdfast {

// What the published files are cut at. A tensor is never cut: a larger one has a file of its own.
inline constexpr std::uint64_t kMaxPublishedShardBytes = 5'000'000'000;
// All that is held in memory besides the list of tensors, whatever the model's size and threads.
inline constexpr std::uint64_t kMaxRandomBufferBytes = 64u << 20;

struct RandomCheckpointOptions {
  std::string like = "gpt-oss-20b";  // one of random_checkpoint_models()
  std::string scale = "full";        // or "tiny": the same architecture with small numbers
  std::uint64_t seed = 0;
  std::string directory;  // created; it may exist when it is empty
  std::string next;       // a second directory, for a training step's weights; empty: none
  std::uint64_t max_shard_bytes = kMaxPublishedShardBytes;  // of tensor data
  int threads = 0;  // 0: all cores
  std::function<void(double fraction)> progress;  // on the caller's thread
  std::function<bool()> cancelled;                // asked now and then, on the caller's thread
};

struct RandomCheckpointReport {
  std::uint64_t tensors = 0, shards = 0;  // of one directory
  std::uint64_t bytes = 0;                // of one directory's tensors
};

// "gpt-oss-20b", "gpt-oss-120b", "tiny". tiny is gpt-oss-20b at scale tiny.
std::vector<std::string> random_checkpoint_models();

// Writes `directory`: config.json and generation_config.json as published, safetensors shards with
// their index, MXFP4 experts and bf16 for all else; no tokenizer. Every byte depends on model,
// scale, seed, tensor name and place, not on threads, shards or machine. Weights are scaled so that
// activations keep their size through the layers and the router has no favourites.
// `next` gets the same config and layout: in every tensor some values differ, about a quarter of
// the bf16 ones by one step of their last place, one MXFP4 code of 16 by one neighbour, one scale
// of 64 by a factor of 2.
// On an error everything that this call has created is removed. What a killed process leaves has no
// config.json, which is written last, so no engine opens it. Files are not flushed to the disk:
// they can be made again. Errors: kInvalidArgument (an unknown model or scale, a directory that is
// not empty, a file in its place, the same directory twice), kResourceExhausted naming the bytes
// needed and free, kNotFound (the parent directory), kIo, kCancelled.
Result<RandomCheckpointReport> make_random_checkpoint(const RandomCheckpointOptions& options);

}  // namespace holdfast
