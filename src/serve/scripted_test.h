// What the tests of replies share: outputs that are written down instead of computed, a responder
// that keeps what it is given, and an engine that answers when told to. One thread.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "holdfast/tokenizer.h"
#include "serve/choice.h"
#include "serve/generation.h"

namespace holdfast::serve {

using Json = nlohmann::json;

inline const Tokenizer& tiny_tokenizer() {
  static const std::unique_ptr<Tokenizer> it =
      Tokenizer::open(HF_SOURCE_DIR "/models/gptoss-tiny-A").value();
  return *it;
}

// Each "data: " of a stream but the last, which must be [DONE].
inline std::vector<Json> sse_objects(std::string_view bytes) {
  std::vector<Json> objects;
  bool done = false;
  while (!bytes.empty()) {
    const std::size_t end = bytes.find("\n\n");
    if (!bytes.starts_with("data: ") || end == std::string_view::npos || done) {
      throw std::runtime_error("not an event: " + std::string(bytes));
    }
    const std::string_view data = bytes.substr(6, end - 6);
    done = data == "[DONE]";
    if (!done) objects.push_back(Json::parse(data));
    bytes.remove_prefix(end + 2);
  }
  if (!done) throw std::runtime_error("the stream does not end with [DONE]");
  return objects;
}

class KeptResponse final : public Responder {
 public:
  void reply(int code, std::string, std::string content,
             std::vector<std::pair<std::string, std::string>> given) override {
    ++answers;
    status = code;
    body = std::move(content);
    headers = std::move(given);
  }
  void begin_stream(std::string) override { ++answers, streamed = true; }
  bool write(std::string bytes) override {
    if (client_gone) return false;
    body += bytes;
    return true;
  }
  void end() override { ended = true; }
  void on_gone(std::function<void()> callback) override { gone = std::move(callback); }

  int answers = 0, status = 0;
  bool streamed = false, ended = false, client_gone = false;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  std::function<void()> gone;
};

// Takes requests and lets the test answer them.
struct ScriptedEngine {
  struct Submitted {
    Request request;
    Sink sink;
    std::function<void(Result<RequestId>)> accepted;
  };
  std::vector<Submitted> submitted;
  std::vector<std::uint64_t> cancelled;
  std::string failure;
  std::shared_ptr<GenerationRegistry> registry = make_generation_registry();

  GenerationPorts ports(std::size_t max_streams = 0) {
    GenerationPorts ports;
    ports.submit = [this](Request request, Sink sink,
                          std::function<void(Result<RequestId>)> accepted) {
      submitted.push_back({std::move(request), std::move(sink), std::move(accepted)});
    };
    ports.cancel = [this](RequestId id) { cancelled.push_back(id.value); };
    ports.failure = [this] { return failure; };
    ports.registry = registry;
    ports.max_streams = max_streams;
    return ports;
  }
  void accept(std::size_t index) { submitted[index].accepted(RequestId{index}); }
  void accept_all() {
    for (std::size_t i = 0; i < submitted.size(); ++i) accept(i);
  }
  void send(std::size_t index, const Event& event, const std::string& version = "") {
    submitted[index].sink({.event = event, .version = version});
  }
};

inline Event token_event(std::int32_t id, std::string text, std::uint64_t epoch = 1) {
  Event event;
  event.token = Token{.id = id, .logprob = -0.5f, .epoch = epoch, .rank = 2};
  event.top_logprobs = {{.id = 9, .logprob = -0.25f}, {.id = id, .logprob = -0.5f}};
  event.text = std::move(text);
  return event;
}

inline Event ending(Event event, FinishReason reason) {
  event.finish_reason = reason;
  return event;
}

}  // namespace holdfast::serve
