// CommandLine: the command and its flags, parsed and checked against their ranges. Values only; the
// parsing itself (CLI11) and the help texts are in command_line.cc and help.cc. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench.h"
#include "cli/make_checkpoint.h"
#include "cli/quantize.h"
#include "cli/serve.h"
#include "holdfast/engine.h"

namespace holdfast::cli {

// Process exit codes. A pipe that its reader closed ends a command quietly, as the signal would.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;  // an input line, a file, the engine; a RED drill
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;  // by Ctrl-C, as the signal would
inline constexpr int kExitClosedPipe = 141;

struct ModelFlags {
  std::string directory;
  int threads = 0;
  std::string device = "cpu";
  std::string kernels = "fast";
  std::string experts = "auto";
  std::string expert_activations = "published";
  std::string quantize_experts;
  std::int64_t quantize_group = 128;
  std::string commit = "remap";
  std::int64_t max_context = 0;
  std::int64_t max_sequences = 8;
};

// What a request asks for when its line does not say.
struct RequestFlags {
  Sampling sampling;
  std::int64_t max_tokens = 128;
  bool ignore_eos = false;
  std::vector<std::int32_t> stop_token_ids;
  std::vector<std::string> stop;
  bool prompt_logprobs = false;
  bool plain_text = false;    // special tokens written in a prompt are text
  bool skip_special = false;  // special tokens are left out of the text that comes back
};

struct CommandLine {
  std::string command;
  bool quiet = false;
  bool json = false;
  ModelFlags model;
  RequestFlags request;
  std::optional<std::string> prompt;  // generate --prompt, tokenize --text
  std::string input;                  // a file of JSON Lines, or "-"
  std::string output;                 // empty: stdout
  std::string logits;                 // score --logits
  bool decode = false;                // tokenize --decode
  bool tensors = false;               // inspect --tensors
  bool matrix = false;                // inspect --matrix
  bool verbose = false;               // census --verbose
  bool graphs = false;                // census --graphs
  std::string inject;                 // census, drill: a fault's name
  struct Reload {                     // plan; census: `to` alone
    std::string to;
    ReloadOptions options;
  } reload;
  std::string digests, write_digests;  // verify
  struct Chat {
    std::string instructions, date, effort = "medium";
    bool hide_analysis = false;
  } chat;
  struct Drill {
    std::string from, to, json_file, label;
    std::vector<std::string> prompts;
    std::int64_t max_tokens = 48;
  } drill;
  BenchFlags bench;
  ServeFlags serve;
  MakeCheckpointFlags make_checkpoint;
  QuantizeFlags quantize;
};

// Parses into `line`. An exit code when there is nothing left to do: help or a version was printed
// (0), or the usage is wrong and stderr says how (kExitUsage).
std::optional<int> parse_command_line(int argc, char** argv, CommandLine& line);

// The examples and notes under a command's flags in --help; "" is holdfast itself.
std::string_view help_footer(std::string_view command);

// The ranges that a request's fields may have; flags and input lines share them.
inline constexpr std::int64_t kMaxRequestTokens = 1 << 20;
inline constexpr std::size_t kMaxStopTokenIds = 64;
inline constexpr std::size_t kMaxStopStrings = 16;
inline constexpr std::size_t kMaxStopBytes = 1024;

// One function a command; each returns the process's exit code and has said on stderr what failed.
int run_generate(const CommandLine& line);
int run_score(const CommandLine& line);
int run_tokenize(const CommandLine& line);
int run_chat(const CommandLine& line);
int run_inspect(const CommandLine& line);
int run_drill_command(const CommandLine& line);
int run_census(const CommandLine& line);
int run_plan(const CommandLine& line);
int run_verify(const CommandLine& line);
int run_bench_command(const CommandLine& line);
int run_serve(const CommandLine& line);
int run_make_checkpoint(const CommandLine& line);
int run_quantize(const CommandLine& line);

}  // namespace holdfast::cli
