// The reference that a simulation is held to: cold engines, one per version of the weights, that
// never reload; and the tokens of a request recomputed row by row under the versions that its
// positions were computed with, keys and values kept for as long as the engine kept them.
// Test code; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/digest.h"
#include "engine/runtime.h"
#include "holdfast/engine.h"

namespace holdfast::sim {

// What was seen of one request.
struct RequestRecord {
  static constexpr std::size_t kUnresolved = ~std::size_t{0};
  // From the moment when it has keys and values to the one when it loses them, by preemption or a
  // reload: the version that made those of each position.
  struct Life {
    std::uint64_t serial = 0;  // of the call in which it began
    std::vector<std::size_t> versions = {};
  };

  // `positions` have keys and values since the call `serial` of the engine; 0: they are lost.
  void on_keys(std::int64_t positions, std::uint64_t serial);
  // The versions of positions of which they were not known yet. Whether there were any.
  bool resolve(std::size_t version);
  // Whether it had keys and values before that call.
  bool had_keys_before(std::uint64_t serial) const;
  // All that was told of it before that call is void.
  void restart(std::uint64_t serial);

  RequestId id;
  Request request;
  std::int64_t output_limit = 0;
  // By position, as prompt_logits tells; empty for a request that did not ask.
  std::vector<base::Digest> prompt;
  std::vector<Token> generated;
  std::vector<float> prompt_logprobs;
  std::optional<FinishReason> reason;
  std::vector<Life> lives = {};
  bool has_keys = false;  // the last life goes on
  // By position: the life in which it was computed first. What followed from it came then.
  std::vector<std::size_t> first_life = {};
  bool cancelled = false;
};

// The bytes of every versioned arena, padding included.
std::vector<base::Digest> digest_arenas(const storage::Registry& registry);

class Reference {
 public:
  // `directory_of` gives the checkpoint of a version; it must stay as it is.
  Reference(const EngineOptions& options,
            std::function<std::string(std::size_t version)> directory_of);

  // Of a cold engine of that version. Errors: whatever opening says.
  Result<std::vector<base::Digest>> digests(std::size_t version);
  // Whether the record is what cold engines compute. Errors: kMismatch naming request and place.
  Status check(const RequestRecord& record);
  const config::ModelConfig& config();
  std::uint64_t rows() const { return rows_; }

 private:
  struct Cold {
    std::unique_ptr<engine::Runtime> runtime;
    std::vector<base::Digest> digests;
  };
  Result<Cold*> cold(std::size_t version);
  // Makes `version` the one that computes, with the keys and values of the one before.
  Status switch_to(std::size_t version);
  Result<std::span<const float>> compute(std::int32_t token, std::int64_t position);
  Status check_life(const RequestRecord& record, std::size_t life);
  Status check_row(const RequestRecord& record, std::int64_t position,
                   std::span<const float> logits);
  Status check_ending(const RequestRecord& record);

  EngineOptions options_;
  std::function<std::string(std::size_t)> directory_of_;
  base::ManualClock clock_;
  std::vector<Cold> colds_;  // by version
  std::optional<std::size_t> current_;
  std::uint64_t rows_ = 0;
};

}  // namespace holdfast::sim
