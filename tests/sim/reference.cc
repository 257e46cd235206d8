#include "reference.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/assert.h"
#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "engine/sampler.h"

namespace holdfast::sim {

void RequestRecord::on_keys(std::int64_t positions, std::uint64_t serial) {
  if (positions == 0) {
    has_keys = false;
    return;
  }
  if (!std::exchange(has_keys, true)) lives.push_back({.serial = serial});
  const auto count = static_cast<std::size_t>(positions);
  std::vector<std::size_t>& versions = lives.back().versions;
  HF_ASSERT(count >= versions.size(), "keys and values are lost as a whole");
  versions.resize(count, kUnresolved);
  if (count > first_life.size()) first_life.resize(count, lives.size() - 1);
}

bool RequestRecord::resolve(std::size_t version) {
  bool any = false;
  for (Life& life : lives) {
    for (std::size_t& of_position : life.versions) {
      if (of_position != kUnresolved) continue;
      of_position = version;
      any = true;
    }
  }
  return any;
}

bool RequestRecord::had_keys_before(std::uint64_t serial) const {
  return !lives.empty() && lives.front().serial < serial;
}

void RequestRecord::restart(std::uint64_t serial) {
  generated.clear();
  prompt_logprobs.clear();
  std::erase_if(lives, [serial](const Life& life) { return life.serial < serial; });
  first_life.clear();
  for (std::size_t life = 0; life < lives.size(); ++life) {
    const std::size_t count = lives[life].versions.size();
    if (count > first_life.size()) first_life.resize(count, life);
  }
}

std::vector<base::Digest> digest_arenas(const storage::Registry& registry) {
  std::vector<base::Digest> digests;
  for (const device::Arena* arena : registry.versioned_arenas()) {
    const device::Memory memory = arena->memory();
    digests.push_back(base::digest_of(std::span(memory.address, memory.bytes)));
  }
  return digests;
}

Reference::Reference(const EngineOptions& options,
                     std::function<std::string(std::size_t)> directory_of)
    : options_(options), directory_of_(std::move(directory_of)) {
  // One request, one row at a time: whatever else the live engine does must not show.
  options_.max_sequences = 1;
  options_.prefill_chunk = 1;
  options_.kv_tokens = 0;
}

Result<Reference::Cold*> Reference::cold(std::size_t version) {
  if (version >= colds_.size()) colds_.resize(version + 1);
  Cold& cold = colds_[version];
  if (cold.runtime == nullptr) {
    EngineOptions options = options_;
    options.model_directory = directory_of_(version);
    HF_ASSIGN(cold.runtime,
              engine::Runtime::open(options, device::make_cpu_device(), clock_));
    cold.digests = digest_arenas(cold.runtime->registry());
    std::vector<std::int32_t> pages(static_cast<std::size_t>(cold.runtime->settings().page_count));
    std::iota(pages.begin(), pages.end(), 0);
    HF_TRY(cold.runtime->write_block_table(0, pages));
  }
  return &cold;
}

Result<std::vector<base::Digest>> Reference::digests(std::size_t version) {
  HF_ASSIGN(const Cold* cold, this->cold(version));
  return cold->digests;
}

const config::ModelConfig& Reference::config() { return colds_.at(0).runtime->config(); }

Status Reference::switch_to(std::size_t version) {
  if (current_ == version) return {};
  HF_ASSIGN(Cold * next, cold(version));
  if (current_) {
    const storage::Registry& from = colds_[*current_].runtime->registry();
    storage::Registry& to = next->runtime->registry();
    for (const storage::Slot& slot : from.slots()) {
      if (slot.spec.slot_class != storage::SlotClass::kState) continue;
      const auto bytes = from.view(slot.id).const_span();
      const auto target = to.find_slot(slot.spec.name);
      HF_ASSERT(target.has_value(), "cold engines of one model have the same slots");
      std::memcpy(to.view(*target).address, bytes.data(), bytes.size());
    }
  }
  current_ = version;
  return {};
}

Result<std::span<const float>> Reference::compute(std::int32_t token, std::int64_t position) {
  engine::Runtime& runtime = *colds_[*current_].runtime;
  engine::StepBatch batch;
  batch.rows.push_back({.token = token,
                        .position = static_cast<std::int32_t>(position),
                        .sequence = 0,
                        .kv_slot = static_cast<std::int32_t>(position),
                        .wants_logits = true});
  ++rows_;
  HF_TRY(runtime.run(batch));
  return runtime.logits(0);
}

// ------------------------------------------------------------------------------ one request

namespace {

Error differs(const RequestRecord& record, std::string_view what, std::int64_t position) {
  return make_error(ErrorCode::kMismatch,
                    "request {}: {} differs from the reference at position {}", record.id.value,
                    what, position);
}

}  // namespace

Status Reference::check_row(const RequestRecord& record, std::int64_t position,
                            std::span<const float> logits) {
  const auto prompt_tokens = static_cast<std::int64_t>(record.request.prompt_ids.size());
  const auto at = static_cast<std::size_t>(position);
  if (at < record.prompt.size() &&
      record.prompt[at] != base::digest_of(std::as_bytes(logits))) {
    return differs(record, "a prompt logit", position);
  }
  if (position + 1 < prompt_tokens) {
    if (record.prompt_logprobs.empty()) return {};
    const std::int32_t next = record.request.prompt_ids[at + 1];
    if (record.prompt_logprobs[at] != static_cast<float>(engine::log_probability(logits, next))) {
      return differs(record, "a prompt log probability", position);
    }
    return {};
  }
  const std::int64_t index = position + 1 - prompt_tokens;
  if (index >= static_cast<std::int64_t>(record.generated.size())) return {};
  engine::Sampler sampler(static_cast<std::int64_t>(logits.size()));
  HF_ASSIGN(const engine::Sampled sampled,
            sampler.sample(logits, record.request.sampling, static_cast<std::uint64_t>(index)));
  const Token& token = record.generated[static_cast<std::size_t>(index)];
  if (token.id != sampled.id) return differs(record, "the token after it", position);
  if (token.logprob != sampled.logprob) return differs(record, "the log probability", position);
  return {};
}

Status Reference::check_ending(const RequestRecord& record) {
  if (!record.reason) {
    return make_error(ErrorCode::kMismatch, "request {} never ended", record.id.value);
  }
  const auto count = static_cast<std::int64_t>(record.generated.size());
  const auto is_stop = [&](std::int32_t id) {
    const auto& stops = record.request.stop_token_ids;
    const auto& ends = config().eos_token_ids;
    return std::find(stops.begin(), stops.end(), id) != stops.end() ||
           (!record.request.ignore_eos && std::find(ends.begin(), ends.end(), id) != ends.end());
  };
  for (std::int64_t i = 0; i < count; ++i) {
    const bool last = i + 1 == count;
    const bool stops = is_stop(record.generated[static_cast<std::size_t>(i)].id);
    if (stops && !last) return differs(record, "where it stopped", i);
    if (last && stops != (*record.reason == FinishReason::kStop) &&
        *record.reason != FinishReason::kAbort) {
      return differs(record, "why it ended", i);
    }
  }
  if (*record.reason == FinishReason::kLength && count != record.output_limit) {
    return make_error(ErrorCode::kMismatch, "request {} ended for its length at {} of {} tokens",
                      record.id.value, count, record.output_limit);
  }
  return {};
}

Status Reference::check(const RequestRecord& record) {
  HF_TRY(check_ending(record));
  if (record.generated.empty() && record.prompt.empty()) return {};
  const std::size_t prompt_tokens = record.request.prompt_ids.size();
  if (record.prompt.size() > prompt_tokens) return differs(record, "the length of the prompt", 0);
  const std::size_t told = record.generated.empty() ? record.prompt.size()
                                                    : prompt_tokens + record.generated.size() - 1;
  if (record.first_life.size() < told) return differs(record, "what has keys and values", 0);
  for (std::size_t life = 0; life < record.lives.size(); ++life) HF_TRY(check_life(record, life));
  return {};
}

// All that was told of positions that were first computed in that life.
Status Reference::check_life(const RequestRecord& record, std::size_t life) {
  const auto& first_life = record.first_life;
  const auto last = std::find(first_life.rbegin(), first_life.rend(), life);
  const auto& prompt = record.request.prompt_ids;
  for (std::ptrdiff_t i = 0; i < first_life.rend() - last; ++i) {
    const auto p = static_cast<std::size_t>(i);
    if (p >= prompt.size() && p - prompt.size() >= record.generated.size()) return {};
    HF_TRY(switch_to(record.lives[life].versions.at(p)));
    const std::int32_t token =
        p < prompt.size() ? prompt[p] : record.generated[p - prompt.size()].id;
    HF_ASSIGN(const auto logits, compute(token, static_cast<std::int64_t>(p)));
    if (first_life[p] == life) HF_TRY(check_row(record, static_cast<std::int64_t>(p), logits));
  }
  return {};
}

}  // namespace holdfast::sim
