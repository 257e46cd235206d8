// inspect: what a model directory holds, and everything that is wrong with it at once, and digests
// of what it holds. Loads no weights into an engine. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "holdfast/result.h"

namespace holdfast {

struct InspectTensor {
  std::string name;
  std::string dtype;
  std::string shape;  // "[32, 5760, 90, 16]"
  std::uint64_t bytes = 0;
  std::string file;
};

struct InspectReport {
  std::string directory;
  std::string model_type;
  std::string dialect;
  std::string scheme;           // of the experts: "mxfp4", "bf16"
  std::string experts_backend;  // the one that would be chosen, and why
  std::vector<std::pair<std::string, std::string>> config;  // name, value: layers, hidden size, ...
  std::uint64_t total_bytes = 0;
  std::vector<std::pair<std::string, std::uint64_t>> bytes_by_dtype;
  std::vector<InspectTensor> tensors;
  std::vector<std::string> missing, unknown, mismatched;  // one readable line each
  std::string tokenizer;  // "1024 tokens", or what is wrong with it, or that there is none
  // Nothing is missing, unknown or mismatched, and the tokenizer fits if there is one.
  bool complete = false;
};

// Errors: what stops even looking (no config.json, a file that breaks its format, ...).
Result<InspectReport> inspect(const std::string& directory);

// What --experts accepts: "auto" and the name of every experts backend.
std::vector<std::string> experts_backends();
// Which backend runs which weights and activations on which device: a table in Markdown.
std::string experts_matrix();

// XXH3-128 of each tensor's bytes, as 32 hex digits: what ReloadOptions::digests_file holds, for
// whoever has written the checkpoint and vouches for it. Reads every byte. Errors: those of
// inspect; kIo, also for a file that changes meanwhile.
Result<std::map<std::string, std::string>> checkpoint_digests(const std::string& directory);

}  // namespace holdfast
