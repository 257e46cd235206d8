#include "holdfast/drill.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "drill/count.h"
#include "drill/greedy.h"
#include "drill/live_reload.h"
#include "drill/prompts.h"
#include "drill/report_json.h"
#include "holdfast/engine.h"
#include "holdfast/inspect.h"
#include "holdfast/tokenizer.h"

namespace holdfast {
namespace {

using drill::Count;
using drill::Names;
using drill::Prompts;
using drill::Run;

constexpr std::int64_t kMinTokens = 3 * drill::kMinTokensOfEachEpoch;
constexpr std::int64_t kMaxTokens = 1 << 16;
constexpr std::size_t kLivePrompts = 8;  // as many as decode together
constexpr std::int64_t kPageBytes = 4096;
constexpr std::int64_t kNeighbourBlocks = 16;  // on a GPU
constexpr std::int64_t kNeighbourBlockBytes = std::int64_t{256} << 20;

constexpr std::array<std::string_view, 11> kDefects = {
    "rebind-constants",  "stale-derived",      "skip-layer",       "drop-sink",
    "rebuilt-workspace", "reregistered-scale", "stale-sort-index", "stale-permutation",
    "stale-alpha",       "shuffle-twice",      "no-shuffle"};
constexpr std::array<std::string_view, 15> kFaults = {
    "allocation-fails", "copy-fails", "exchange-fails", "protect-fails", "launch-fails",
    "device-lost",      "short-read", "source-dies",    "garbage",       "nan",
    "bad-scale",        "truncated",  "replaced",       "cancelled",     "deadline"};

using Clock = std::chrono::steady_clock;

double ms_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

Status check_options(const DrillOptions& options) {
  const std::vector<std::string> faults = drill_faults();
  if (!options.inject.empty() &&
      std::find(faults.begin(), faults.end(), options.inject) == faults.end()) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("inject is {}, expected one of {}", options.inject,
                             fmt::join(faults, ", ")));
  }
  if (options.max_tokens < kMinTokens || options.max_tokens > kMaxTokens) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("max_tokens is {}, the drill needs {} to {}", options.max_tokens,
                             kMinTokens, kMaxTokens));
  }
  if (options.prompts.size() > drill::kMaxPrompts) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{} prompts, at most {}", options.prompts.size(),
                             drill::kMaxPrompts));
  }
  // The engine would find the same in the middle of the drill.
  HF_ASSIGN(const InspectReport target, inspect(options.to));
  if (!target.complete) {
    return Error(ErrorCode::kMismatch,
                 fmt::format("{}: not a complete model (holdfast inspect {} says why)", options.to,
                             options.to));
  }
  return {};
}

class Drill {
 public:
  explicit Drill(const DrillOptions& options) : options_(options) {}

  Result<DrillReport> run() {
    const Clock::time_point begin = Clock::now();
    report_.label = options_.label;
    HF_TRY(check_options(options_));
    HF_TRY(load());
    HF_TRY(exercise());
    add_figures();
    report_.total_ms = ms_between(begin, Clock::now());
    if (report_.reasons.empty() && !options_.inject.empty()) {
      reason(fmt::format("the fault {} left no trace", options_.inject));
    }
    report_.green = report_.reasons.empty();
    report_.json = drill::report_json(report_, options_);
    return std::move(report_);
  }

 private:
  // Runs the stages up to the first that makes the next ones pointless. Errors: what keeps the
  // drill itself from running; a defect of the engine is a reason.
  Status exercise() {
    HF_TRY(count_and_baseline());
    if (!identity_reload()) return {};
    HF_TRY(generate_again());
    HF_TRY(live_reload());
    if (report_.refusal.empty()) return examine_committed();
    HF_TRY(engine_->poisoned() ? examine_poisoned() : examine_refused());
    const std::size_t reasons = report_.reasons.size();
    if (!recover()) return {};
    HF_TRY(examine_committed());
    report_.recovered = report_.reasons.size() == reasons;
    return {};
  }

  bool injects_fault() const {
    return !options_.inject.empty() &&
           std::find(kDefects.begin(), kDefects.end(), options_.inject) == kDefects.end();
  }
  void say(const std::string& line) const {
    if (options_.progress) options_.progress(line);
  }
  void reason(std::string text) { report_.reasons.push_back(std::move(text)); }
  void reason_if(std::string_view what, const std::string& difference) {
    if (!difference.empty()) reason(fmt::format("{}: {}", what, difference));
  }
  void reason_if(std::string_view what, const Names& names) {
    if (!names.empty()) reason(drill::listed(what, names));
  }

  EngineOptions engine_options(const std::string& directory) {
    EngineOptions options;
    options.model_directory = directory;
    options.device = options_.device;
    options.threads = options_.threads;
    options.max_context = context_;
    options.kernels = options_.kernels;
    // Equal prompts are generated from again and again, and each time all of it is to be computed.
    options.prefix_cache = false;
    options.experts = options_.experts;
    options.expert_activations = options_.expert_activations;
    options.quantize_experts = options_.quantize_experts;
    options.quantize_group_size = options_.quantize_group_size;
    // The first load has no choice to make.
    if (options_.commit != "auto") options.commit = options_.commit;
    options.simulate_faults = injects_fault();
    return options;
  }

  // The ids of the prompts, and a context that just holds them and what they become.
  Status encode_prompts() {
    const auto opened = Tokenizer::open(options_.from);
    without_text_ = !opened.ok() && opened.error().code() == ErrorCode::kNotFound;
    if (without_text_ && options_.prompts.empty()) {
      const std::size_t longest_ids = drill::built_in_ids(1).back().size();
      context_ = static_cast<std::int64_t>(longest_ids) + options_.max_tokens;
      return {};  // the ids are chosen once the vocabulary is known
    }
    if (!opened.ok()) return opened.error();
    const Tokenizer& tokenizer = **opened;
    const std::vector<std::string> texts =
        options_.prompts.empty() ? drill::built_in_prompts() : options_.prompts;
    std::size_t longest = 0;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      Result<std::vector<std::int32_t>> ids = tokenizer.encode(texts[i]);
      if (!ids.ok()) return ids.error().with_context(fmt::format("drill: prompt {}", i));
      if (ids->empty()) {
        return Error(ErrorCode::kInvalidArgument, fmt::format("prompt {} is empty", i));
      }
      longest = std::max(longest, ids->size());
      prompts_.push_back(std::move(*ids));
    }
    context_ = static_cast<std::int64_t>(longest) + options_.max_tokens;
    return {};
  }

  Status load() {
    HF_TRY(encode_prompts());
    say("loading " + options_.from);
    EngineOptions options = engine_options(options_.from);
    Clock::time_point capture_begin, capture_end;
    options.progress = [&](const Progress& progress) {
      if (progress.phase == "capture") capture_begin = Clock::now();
      if (progress.phase == "ready") capture_end = Clock::now();
    };
    const Clock::time_point begin = Clock::now();
    HF_ASSIGN(engine_, Engine::open(options));
    report_.load_ms = ms_between(begin, Clock::now());
    if (without_text_) prompts_ = drill::built_in_ids(engine_->vocab_size());
    report_.capture_ms = ms_between(capture_begin, capture_end);
    const std::vector<std::string> names = engine_->experts_constant_slots();
    constants_ = {names.begin(), names.end()};
    return {};
  }

  Result<Count> take_count(const char* when) {
    say(fmt::format("census {}", when));
    HF_ASSIGN(const CensusReport census, engine_->census());
    Result<Count> count = drill::reduce(census);
    if (!count.ok()) return count;
    // Those that had a home when they were captured are among the second.
    if (count->rehomed.empty()) {
      reason_if(fmt::format("captured addresses in no slot {}", when), count->homeless);
    }
    reason_if(fmt::format("captured operands not in their slot {}", when), count->rehomed);
    reason_if(fmt::format("slots not of the engine's epoch {}", when), drill::stale_epochs(*count));
    return count;
  }

  // A greedy run whose tokens must all be of the engine's epoch.
  Result<Run> generate(const char* when) {
    say(fmt::format("generating {}", when));
    HF_ASSIGN(Run run, drill::run_greedy(*engine_, prompts_, options_.max_tokens));
    keep_replay_error(when, run.replay_error);
    keep_epoch_error(when, drill::epoch_difference(run.tokens, engine_->epoch()));
    return run;
  }

  void keep_replay_error(const char* when, const std::string& error) {
    if (!error.empty() && report_.replay_error.empty()) report_.replay_error = error;
    reason_if(fmt::format("replay failed {}", when), error);
  }

  // A fault that finds nothing to act on refuses the reload by its own name.
  void keep_if_not_injected(const std::string& error) {
    const bool found_nothing =
        !options_.inject.empty() && error.starts_with(error_code_name(ErrorCode::kNotFound)) &&
        error.find(fmt::format("fault {}: ", options_.inject)) != std::string::npos;
    if (found_nothing) report_.not_injected = error;
  }

  void keep_epoch_error(const char* when, const std::string& error) {
    if (!error.empty()) report_.versions_match = false;
    reason_if(fmt::format("a token of the wrong epoch {}", when), error);
  }

  // Whether tokens are equal; log probabilities are held against the run as well.
  bool compare(const std::string& what, const Run& expected, const Run& run) {
    const std::string tokens = drill::token_difference(expected.tokens, run.tokens);
    const std::string logprobs = drill::logprob_difference(expected.tokens, run.tokens);
    reason_if("tokens differ " + what, tokens);
    if (tokens.empty()) reason_if("log probabilities differ " + what, logprobs);
    if (!logprobs.empty()) report_.logprobs_match = false;
    return tokens.empty();
  }

  Status count_and_baseline() {
    report_.versions_match = true;
    report_.logprobs_match = true;
    HF_ASSIGN(first_, take_count("after the load"));
    identity_ = after_reload_ = after_pressure_ = first_;
    report_.weights_bytes = first_.versioned_bytes();
    HF_ASSIGN(baseline_, generate("the baseline"));
    return {};
  }

  bool identity_reload() {
    say("reloading " + options_.from + " over itself");
    const std::string fault = injects_fault() ? "" : options_.inject;
    return reload("the identity reload", options_.from,
                  {.commit = options_.commit, .inject = fault});
  }

  // Without requests.
  bool reload(std::string_view what, const std::string& directory, const ReloadOptions& options) {
    Status status = engine_->begin_reload(directory, options);
    if (status.ok()) {
      const Result<ReloadReport> done = engine_->finish_reload();
      if (done.ok() && done->state == "committed") return true;
      status = done.ok() ? Error(ErrorCode::kFailedPrecondition,
                                 fmt::format("{}: {}", done->state, done->error))
                         : done.error();
    }
    const std::string said = status.error().to_string();
    keep_if_not_injected(said);
    reason(fmt::format("{} failed: {}", what, said));
    return false;
  }

  Status generate_again() {
    HF_ASSIGN(identity_, take_count("after the identity reload"));
    reloaded_ = true;
    reason_if("slots moved by the identity reload", drill::moved(first_, identity_));
    reason_if("slots changed by the identity reload", drill::changed(first_, identity_));
    // What the reload freed is used again before anything relies on its being intact by chance.
    HF_TRY(press());
    HF_ASSIGN(const Run run, generate("after the identity reload"));
    report_.tokens_match_identity = compare("after the identity reload", baseline_, run);
    return {};
  }

  Status live_reload() {
    say("reloading to " + options_.to + " while requests run");
    const std::size_t count = std::min(prompts_.size(), kLivePrompts);
    const Prompts prompts(prompts_.begin(), prompts_.begin() + static_cast<std::ptrdiff_t>(count));
    engine_->reset_peak();
    HF_ASSIGN(const drill::LiveReload live,
              drill::reload_under_way(*engine_, prompts, baseline_.tokens,
                                      {.to = options_.to,
                                       .commit = options_.commit,
                                       .inject = options_.inject,
                                       .max_tokens = options_.max_tokens}));
    report_.poisoned = engine_->poisoned();
    report_.refusal = live.refusal;
    if (!live.refusal.empty()) {
      keep_if_not_injected(live.refusal);
      reason(fmt::format("the live reload {}: {}",
                         report_.poisoned ? "poisoned the engine" : "was refused", live.refusal));
    }
    // What the reload disturbs, a clean refusal does not.
    reasons_before_disturbance_ = report_.reasons.size();
    report_.live_tokens_before = live.tokens_before;
    report_.live_tokens_after = live.tokens_after;
    report_.strategy = live.report.strategy;
    report_.stage_ms = live.report.stage_ms;
    report_.pause_us = live.report.pause_us;
    report_.peak_bytes = engine_->peak_bytes();
    report_.declared_peak_bytes = live.report.declared_peak_bytes;
    keep_replay_error("across the live reload", live.replay_error);
    keep_epoch_error("across the live reload", live.epoch_error);
    reason_if("tokens of the old weights differ from the baseline across the live reload",
              live.prefix_error);
    if (!live.prefix_error.empty()) report_.logprobs_match = false;
    if (live.report.measured_peak_bytes > live.report.declared_peak_bytes) {
      reason(fmt::format("the live reload took {} bytes and had declared {}",
                         live.report.measured_peak_bytes, live.report.declared_peak_bytes));
    }
    return {};
  }

  // The old weights must serve on as if nothing had been asked for.
  Status examine_refused() {
    HF_ASSIGN(const Count count, take_count("after the refusal"));
    reason_if("slots moved by a refused reload", drill::moved(identity_, count));
    reason_if("slots changed by a refused reload", drill::changed(identity_, count));
    if (count.epoch != identity_.epoch) {
      reason(fmt::format("a refused reload made epoch {} of {}", count.epoch, identity_.epoch));
    }
    HF_TRY(press());
    HF_ASSIGN(const Run run, generate("after the refusal"));
    compare("after the refusal", baseline_, run);
    HF_ASSIGN(const VerifyReport verified, engine_->verify());
    reason_if("bytes not as committed after the refusal", verified.defects);
    report_.refused_cleanly = report_.reasons.size() == reasons_before_disturbance_;
    return {};
  }

  // No token may come from weights that nobody vouches for.
  Status examine_poisoned() {
    Request request;
    request.prompt_ids = prompts_.front();
    const Result<RequestId> accepted = engine_->submit(std::move(request));
    const Result<std::vector<Event>> events = engine_->step();
    report_.emits_nothing = !accepted.ok() && !events.ok() &&
                            accepted.error().code() == ErrorCode::kPoisoned &&
                            events.error().code() == ErrorCode::kPoisoned;
    if (!report_.emits_nothing) reason("a poisoned engine takes requests or makes steps");
    return {};
  }

  bool recover() {
    say("reloading to " + options_.to + " without the fault");
    return reload("the reload after the fault", options_.to, {.commit = options_.commit});
  }

  Status examine_committed() {
    HF_TRY(generate_under_pressure());
    engine_.reset();  // its memory makes room for the cold engine
    return compare_with_cold();
  }

  // Freed memory that a graph still reads will have changed: blocks of every size that a small
  // arena may have had, then larger ones.
  Status press() {
    say("allocation pressure");
    for (std::int64_t pages = 1; pages <= 32; ++pages) {
      HF_TRY(engine_->allocation_pressure(16, pages * kPageBytes));
    }
    for (std::int64_t bytes = std::int64_t{256} << 10; bytes <= std::int64_t{8} << 20; bytes *= 2) {
      HF_TRY(engine_->allocation_pressure(4, bytes));
    }
    // Where memory is freed for others to take, as much as a neighbour would take.
    if (options_.device == "cpu") return {};
    return engine_->allocation_pressure(kNeighbourBlocks, kNeighbourBlockBytes);
  }

  Status generate_under_pressure() {
    HF_ASSIGN(after_reload_, take_count("after the live reload"));
    HF_ASSIGN(before_pressure_, generate("after the live reload"));
    HF_TRY(press());
    HF_ASSIGN(after_pressure_run_, generate("after pressure"));
    HF_ASSIGN(after_pressure_, take_count("after pressure"));
    reason_if("slots moved since the load", drill::moved(first_, after_pressure_));
    reason_if("slots changed by pressure", drill::changed(after_reload_, after_pressure_));
    pressed_ = true;
    return {};
  }

  // What a stage that was not reached would have shown is not shown.
  void add_figures() {
    const drill::Counts counts{first_, identity_, after_reload_, after_pressure_};
    report_.constants = drill::figures(counts, &constants_);
    report_.slots = drill::figures(counts, nullptr);
    for (DrillCount* count : {&report_.constants, &report_.slots}) {
      count->values_preserved &= reloaded_;
      count->values_intact_post_pressure &= pressed_;
    }
  }

  Status compare_with_cold() {
    say("loading " + options_.to + " afresh");
    HF_ASSIGN(engine_, Engine::open(engine_options(options_.to)));
    HF_ASSIGN(const Count cold, take_count("of the cold engine"));
    HF_ASSIGN(const Run run, generate("with the cold engine"));
    report_.tokens_match_pre_pressure =
        compare("from a cold engine's after the live reload", run, before_pressure_);
    report_.tokens_match_post_pressure =
        compare("from a cold engine's after pressure", run, after_pressure_run_);
    reason_if("slots differ from a cold engine's", drill::different_values(cold, after_pressure_));
    return {};
  }

  const DrillOptions& options_;
  DrillReport report_;
  Prompts prompts_;
  std::int64_t context_ = 0;
  bool without_text_ = false;  // the model has no tokenizer
  std::unique_ptr<Engine> engine_;
  std::set<std::string> constants_;
  Count first_, identity_, after_reload_, after_pressure_;
  bool reloaded_ = false, pressed_ = false;
  std::size_t reasons_before_disturbance_ = 0;
  Run baseline_, before_pressure_, after_pressure_run_;
};

}  // namespace

std::vector<std::string> drill_faults() {
  std::vector<std::string> names(kDefects.begin(), kDefects.end());
  names.insert(names.end(), kFaults.begin(), kFaults.end());
  return names;
}

Result<DrillReport> run_drill(const DrillOptions& options) { return Drill(options).run(); }

}  // namespace holdfast
