// What the engine's tests share: model directories, engines, transcripts, and the references of the
// fixtures. Test code; one thread.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_core.h"

namespace holdfast::engine {

// A directory of this process alone, gone when it ends: tests run beside each other.
inline const std::filesystem::path& temp_root() {
  struct Root {
    Root()
        : path(std::filesystem::path(testing::TempDir()) /
               ("holdfast-engine-" + std::to_string(::getpid()))) {
      std::filesystem::remove_all(path);
      std::filesystem::create_directories(path);
    }
    ~Root() { std::filesystem::remove_all(path); }
    const std::filesystem::path path;
  };
  static const Root root;
  return root.path;
}

inline std::string source_path(const std::string& relative) {
  return std::string(HF_SOURCE_DIR) + "/" + relative;
}
inline std::string model_a() { return source_path("models/gptoss-tiny-A"); }
inline std::string model_b() { return source_path("models/gptoss-tiny-B"); }
inline std::string model_a_bf16() { return source_path("tests/golden/gptoss-tiny-A-bf16"); }
inline std::string model_qwen_bf16() { return source_path("tests/golden/qwen3moe-tiny-bf16"); }
inline std::string model_qwen_fp8() { return source_path("tests/golden/qwen3moe-tiny-fp8"); }
inline std::string model_mixtral() { return source_path("tests/golden/mixtral-tiny-bf16"); }

// Small and quick: a short context, and one thread, because tests run beside each other and a
// kernel waits for the slowest of its threads. Determinism.* is where thread counts are compared.
inline EngineOptions test_options(const std::string& directory) {
  EngineOptions options;
  options.model_directory = directory;
  options.threads = 1;
  options.max_context = 256;
  return options;
}

// Aborts the test program when it cannot open: no test makes sense then.
inline std::unique_ptr<EngineCore> open_core(const EngineOptions& options) {
  auto core = EngineCore::open(options);
  if (!core.ok()) ADD_FAILURE() << core.error().to_string();
  return std::move(core).value();
}

// What one request came to.
struct Transcript {
  std::vector<std::int32_t> ids;
  std::vector<float> logprobs;
  std::vector<std::uint64_t> epochs;
  std::vector<float> prompt_logprobs;
  FinishReason reason = FinishReason::kAbort;
  bool ended = false;

  void add(const Event& event) {
    if (!event.prompt_logprobs.empty()) prompt_logprobs = event.prompt_logprobs;
    if (event.token) {
      ids.push_back(event.token->id);
      logprobs.push_back(event.token->logprob);
      epochs.push_back(event.token->epoch);
    }
    if (event.finish_reason) {
      EXPECT_FALSE(ended) << "a second last event";
      ended = true;
      reason = *event.finish_reason;
    }
  }
  // Tokens and the bits of their log probabilities.
  bool same_tokens(const Transcript& other) const {
    return ids == other.ids && logprobs == other.logprobs;
  }
};

// Submits all, then steps until idle.
inline std::vector<Transcript> run_together(EngineCore& core, std::vector<Request> requests) {
  std::vector<Transcript> transcripts(requests.size());
  std::vector<RequestId> ids;
  for (Request& request : requests) ids.push_back(core.submit(std::move(request)).value());
  while (!core.idle()) {
    const auto events = core.step();
    if (!events.ok()) {
      ADD_FAILURE() << events.error().to_string();
      break;
    }
    for (const Event& event : *events) {
      const auto at = std::find(ids.begin(), ids.end(), event.request);
      transcripts.at(static_cast<std::size_t>(at - ids.begin())).add(event);
    }
  }
  return transcripts;
}

inline std::vector<Transcript> run_one_by_one(EngineCore& core,
                                              const std::vector<Request>& requests) {
  std::vector<Transcript> transcripts;
  for (const Request& request : requests) {
    transcripts.push_back(run_together(core, {request}).front());
  }
  return transcripts;
}

// How often `body` calls operator new on this thread.
std::size_t count_allocations(const std::function<void()>& body);

// One prompt of a fixture and what the independent implementation made of it.
struct ReferencePrompt {
  std::vector<std::int32_t> ids;
  std::vector<float> logprobs;  // of ids[1:]
  std::vector<std::int32_t> greedy_ids;
  std::vector<float> greedy_logprobs;
};
// Reads tests/golden/reference/`name`.json.
std::vector<ReferencePrompt> read_reference_prompts(const std::string& name);

// Greedy, 48 tokens, end tokens do not stop it: as the references.
inline Request greedy_request(const ReferencePrompt& prompt) {
  Request request;
  request.prompt_ids = prompt.ids;
  request.max_tokens = static_cast<std::int64_t>(prompt.greedy_ids.size());
  request.ignore_eos = true;
  return request;
}
inline std::vector<Request> greedy_requests(const std::vector<ReferencePrompt>& prompts) {
  std::vector<Request> requests;
  for (const ReferencePrompt& prompt : prompts) requests.push_back(greedy_request(prompt));
  return requests;
}

}  // namespace holdfast::engine
