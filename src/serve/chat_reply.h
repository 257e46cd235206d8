// Replies of /v1/chat/completions, whole and streamed: tokens become content, reasoning and tool
// calls as the chat format reads them. Used on the engine thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/chat_request.h"
#include "serve/completion_reply.h"

namespace holdfast::serve {

std::unique_ptr<ReplyFormat> chat_reply(const ChatRequest& request, const ChatFormat& format,
                                        ReplyContext context);

// Keeps back the end of a text that a stop string may begin in, and cuts the text at the one that
// ended the request.
class StopTail {
 public:
  explicit StopTail(const std::vector<std::string>& stops) : stops_(stops) {}
  std::string push(std::string text);  // what may be shown now
  // The text of the token that ended the request; `stop`: the string that did, else empty.
  std::string finish(std::string text, const std::string& stop, bool keep_stop);

 private:
  std::vector<std::string> stops_;
  std::string held_;
};

// One choice's tokens as a message. The engine's stop strings are found in all of its text, which
// has parts that are no content; so content and reasoning are cut where they hold the match.
class ChatReader {
 public:
  ChatReader(const ChatRequest& request, const ChatFormat& format);
  // What tokens[first...] add; all of it, when the choice has finished.
  ChatDelta read(const Choice& choice, std::size_t first);
  bool has_calls() const { return has_calls_; }

 private:
  void add(ChatDelta from, ChatDelta& into, const std::string* stop);

  std::unique_ptr<ChatFormat::Reply> reply_;
  StopTail content_, reasoning_;
  bool keep_stop_, include_reasoning_;
  bool has_calls_ = false;
};

}  // namespace holdfast::serve
