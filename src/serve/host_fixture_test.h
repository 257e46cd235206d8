// What the tests of the engine thread share: a host on the tiny models, and what a request was
// given. Test thread.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "serve/host.h"

namespace holdfast::serve {

inline const std::string kModelA = HF_SOURCE_DIR "/models/gptoss-tiny-A";
inline const std::string kModelB = HF_SOURCE_DIR "/models/gptoss-tiny-B";
inline constexpr auto kPatience = std::chrono::minutes(2);

inline EngineOptions small_engine(std::int64_t max_sequences = 4) {
  EngineOptions options;
  options.model_directory = kModelA;
  options.threads = 1;
  options.max_context = 256;
  options.max_sequences = max_sequences;
  return options;
}

inline Request request(std::int32_t first, std::int64_t max_tokens) {
  Request request;
  request.prompt_ids = {first, 34, 56};
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

// What one request was given, and by which weights.
struct Received {
  std::vector<std::int32_t> ids;
  std::vector<float> logprobs;
  std::vector<std::uint64_t> epochs;
  std::vector<std::string> versions;
  std::optional<FinishReason> finish;
  int events_after_the_last = 0;
  std::optional<Error> refused;
  std::optional<RequestId> id;
};

// Takes what sinks are given; waits for it. May go before the sink does.
class Receiver {
 public:
  // `on_event` runs on the engine thread after each token.
  Sink sink(std::function<void(const Received&)> on_event = {}) {
    return [state = state_, on_event = std::move(on_event)](const Output& output) {
      Received now;
      {
        const std::lock_guard lock(state->mutex);
        Received& received = state->received;
        if (received.finish) ++received.events_after_the_last;
        if (output.event.token) {
          received.ids.push_back(output.event.token->id);
          received.logprobs.push_back(output.event.token->logprob);
          received.epochs.push_back(output.event.token->epoch);
          received.versions.push_back(output.version);
        }
        if (output.event.finish_reason) received.finish = output.event.finish_reason;
        state->changed.notify_all();
        now = received;
      }
      if (on_event && output.event.token) on_event(now);
    };
  }
  std::function<void(Result<RequestId>)> accepted() {
    return [state = state_](const Result<RequestId>& id) {
      const std::lock_guard lock(state->mutex);
      if (id.ok()) state->received.id = *id;
      if (!id.ok()) state->received.refused = id.error();
      state->changed.notify_all();
    };
  }
  Received get() const {
    const std::lock_guard lock(state_->mutex);
    return state_->received;
  }
  template <typename Predicate>
  Received wait(Predicate predicate) {
    std::unique_lock lock(state_->mutex);
    EXPECT_TRUE(state_->changed.wait_for(lock, kPatience,
                                         [&] { return predicate(state_->received); }));
    return state_->received;
  }
  Received wait_end() {
    return wait([](const Received& r) { return r.finish || r.refused; });
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    Received received;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Calls `start` with a callback, and gives what it is called with.
template <typename T>
T await(const std::function<void(std::function<void(T)>)>& start) {
  const auto promise = std::make_shared<std::promise<T>>();
  std::future<T> future = promise->get_future();
  start([promise](T value) { promise->set_value(std::move(value)); });
  if (future.wait_for(kPatience) != std::future_status::ready) std::abort();
  return future.get();
}

class HostTest : public ::testing::Test {
 protected:
  void open(EngineOptions options = small_engine(), HostObserver observer = {}) {
    auto host = EngineHost::open(std::move(options), std::move(observer));
    ASSERT_TRUE(host.ok()) << host.error().message();
    host_ = std::move(host).value();
  }
  void open_with_faults(HostObserver observer = {}) {
    EngineOptions options = small_engine();
    options.simulate_faults = true;
    open(std::move(options), std::move(observer));
  }
  void submit(Receiver& receiver, Request what,
              std::function<void(const Received&)> on_event = {}) {
    host_->submit(std::move(what), receiver.sink(std::move(on_event)), receiver.accepted());
  }
  void pause(PauseMode mode) {
    await<bool>([&](auto done) { host_->pause(mode, [done] { done(true); }); });
  }
  Status resume() {
    return await<Status>([&](auto done) { host_->resume(done); });
  }
  // Until everything that was posted before has run.
  void settle() {
    await<bool>([&](auto done) { host_->post([done](Engine&) { done(true); }); });
  }
  Result<ReloadReport> reload(const std::string& directory, ReloadOptions options = {}) {
    return await<Result<ReloadReport>>([&](auto done) {
      host_->reload(directory, std::move(options),
                    [done](const Result<std::uint64_t>& id) {
                      if (!id.ok()) done(id.error());
                    },
                    done);
    });
  }
  // A weight of nothing but bf16's largest number: each is sane, and no logit is finite.
  Result<ReloadReport> reload_what_overflows() {
    const std::vector<std::uint16_t> values(256, 0x7F7F);
    ReloadOptions options;
    options.scope.parameters = {"model.norm.weight"};
    const TensorInfo norm = {.name = "model.norm.weight", .dtype = "BF16", .shape = {256}};
    const auto ended = std::make_shared<std::promise<Result<ReloadReport>>>();
    const auto id = await<Result<std::uint64_t>>([&](auto begun) {
      host_->begin_push({norm}, options, begun, [ended](Result<ReloadReport> report) {
        ended->set_value(std::move(report));
      });
    });
    if (!id.ok()) return id.error();
    HF_TRY(host_->push(*id, norm.name, 0, std::as_bytes(std::span(values))));
    HF_TRY(host_->end_push(*id));
    return ended->get_future().get();
  }
  // The same request alone in an engine of its own.
  static Received alone(const std::string& model, Request what) {
    EngineOptions options = small_engine(1);
    options.model_directory = model;
    auto engine = Engine::open(options);
    EXPECT_TRUE(engine.ok());
    Received received;
    EXPECT_TRUE((*engine)->submit(std::move(what)).ok());
    while (!received.finish) {
      auto events = (*engine)->step();
      EXPECT_TRUE(events.ok());
      for (const Event& event : *events) {
        if (event.token) received.ids.push_back(event.token->id);
        if (event.token) received.logprobs.push_back(event.token->logprob);
        if (event.finish_reason) received.finish = event.finish_reason;
      }
    }
    return received;
  }

  std::unique_ptr<EngineHost> host_;
};

}  // namespace holdfast::serve
