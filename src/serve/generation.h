// Generation: the one place that turns prompts times n into requests of the engine, gathers what
// comes back, and answers: whole or as a stream. Made on an I/O thread; fed on the engine thread;
// told on any thread that its client is gone. It lives as long as one of its requests does.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "serve/api_error.h"
#include "serve/choice.h"
#include "serve/http.h"
#include "serve/metrics.h"

namespace holdfast::serve {

// What a choice has gained since the last chunk.
struct Gain {
  std::size_t first_token = 0;  // tokens[first_token...] are new
  std::string_view text = {};
  bool first = false;           // the choice's first chunk
};

// Makes the bytes of one dialect out of choices. Calls come one at a time, on the engine thread.
class ReplyFormat {
 public:
  virtual ~ReplyFormat() = default;
  // The whole reply, as JSON.
  virtual std::string body(std::span<const Choice> choices) = 0;
  // Server-sent events for what one choice has gained; empty where nothing is to be said yet. The
  // last call for a choice has choice.finish.
  virtual std::string chunk(const Choice& choice, const Gain& gain) = 0;
  // What comes after the last chunk: usage, where it was asked for, and the end mark.
  virtual std::string last(std::span<const Choice> choices) = 0;
};

struct GenerationPlan {
  std::vector<Request> requests = {};  // the choices, prompt by prompt
  std::size_t per_prompt = 1;          // choices of one prompt
  // Of each prompt, the names by which it may be aborted.
  std::vector<std::vector<std::string>> names = {};
  bool stream = false;
  std::vector<TopFilter> filters = {};  // of each prompt; empty: everything is kept
};

class Generation;

// The generations that are open, by the names that clients gave them. Thread-safe.
class GenerationRegistry {
 public:
  // Ends the requests of this name with their tokens so far (finish_reason abort). Gives the number
  // of engine requests that this ends: 0 for a name that is unknown or has ended.
  std::size_t abort(const std::string& name);
  // As abort, for all names that begin with `prefix` (SGLang's /abort_request).
  std::size_t abort_prefix(std::string_view prefix);
  std::size_t abort_all();
  std::size_t open_streams() const;
  std::size_t open() const;   // generations
  std::size_t names() const;  // by which they can be aborted

 private:
  friend class Generation;
  struct Entry {
    std::weak_ptr<Generation> generation;
    const Generation* key = nullptr;  // to compare only
    std::size_t prompt = 0;
  };
  // False: as many streams as may be are open.
  bool add(const std::shared_ptr<Generation>& generation, std::size_t max_streams);
  void remove(const Generation& generation);
  std::size_t abort_entries(const std::vector<Entry>& entries);

  mutable std::mutex mutex_;
  std::multimap<std::string, Entry, std::less<>> entries_;
  std::size_t streams_ = 0, open_ = 0;
};
std::shared_ptr<GenerationRegistry> make_generation_registry();

// What a generation needs of the server.
struct GenerationPorts {
  std::function<void(Request, Sink, std::function<void(Result<RequestId>)>)> submit;
  std::function<void(RequestId)> cancel;
  // Why requests ended although nobody asked for it (a poisoned engine); empty: all is well.
  std::function<std::string()> failure;
  Metrics* metrics = nullptr;  // may be null
  std::shared_ptr<GenerationRegistry> registry = make_generation_registry();
  std::size_t max_streams = 0;  // 0: no limit
};
GenerationPorts ports_of(EngineHost& host);

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Submits everything and returns. Every end of it is an answer: of `format`, or an error (429
  // when the engine's queue or the limit of streams is full). The format's pieces that hold
  // references must live as long as the engine thread.
  static void start(GenerationPorts ports, GenerationPlan plan,
                    std::unique_ptr<ReplyFormat> format, ResponderPtr responder);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

 private:
  friend class GenerationRegistry;
  // One choice, and how far it has been told.
  struct Lane {
    RequestId request = {};
    bool accepted = false, ended = false, cancelled = false;
    bool told = false;              // a chunk has been written
    std::size_t told_tokens = 0, told_text = 0;
    std::int64_t begin_ns = 0, first_ns = -1, last_ns = -1;
    std::int64_t max_tokens = 0;
  };

  Generation(GenerationPorts ports, GenerationPlan& plan, std::unique_ptr<ReplyFormat> format,
             ResponderPtr responder);
  void submit_all(std::vector<Request> requests);
  void on_accepted(std::size_t index, const Result<RequestId>& id);
  void on_output(std::size_t index, const Output& output);
  void on_gone();
  std::size_t abort_prompt(std::size_t prompt);
  void cancel_lanes(std::size_t begin, std::size_t end);  // mutex_ held
  void tell(std::size_t index);                           // mutex_ held; the ones below, too
  void end_lane(std::size_t index);
  void finish();
  void fail(const ApiError& error);
  void count(const Lane& lane, const Choice& choice);

  GenerationPorts ports_;
  const std::size_t per_prompt_;
  const std::vector<std::vector<std::string>> names_;
  const bool stream_;
  base::SteadyClock clock_;

  std::mutex mutex_;
  std::unique_ptr<ReplyFormat> format_;
  ResponderPtr responder_;  // null once answered
  std::vector<Choice> choices_;
  std::vector<Lane> lanes_;
  std::size_t accepted_ = 0, ended_ = 0;
  bool began_ = false;       // the stream's header has been sent
  bool registered_ = false;
};

}  // namespace holdfast::serve
