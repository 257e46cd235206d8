#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "cli/command_line.h"
#include "cli/interrupt.h"
#include "cli/jsonl.h"
#include "cli/output.h"
#include "cli/session.h"
#include "holdfast/engine.h"
#include "holdfast/tokenizer.h"

namespace holdfast::cli {
namespace {

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  if (gmtime_r(&now, &parts) == nullptr) return "1970-01-01";
  char text[16];
  return std::string(text, std::strftime(text, sizeof(text), "%Y-%m-%d", &parts));
}

// Shows the pieces of one reply. On a terminal the analysis is dim; elsewhere each message begins
// with its channel in brackets; with --json the reply is one object.
class ReplyWriter {
 public:
  ReplyWriter(Output& output, const CommandLine& flags) : output_(output), flags_(flags) {}

  Status add(std::vector<ChatSession::Piece> pieces) {
    for (ChatSession::Piece& piece : pieces) {
      if (piece.text.empty()) continue;
      if (messages_.empty() || messages_.back().channel != piece.channel) {
        if (!messages_.empty()) HF_TRY(end_message());
        messages_.push_back({piece.channel, ""});
        HF_TRY(begin_message());
      }
      messages_.back().text += piece.text;
      if (shown()) HF_TRY(output_.write(piece.text));
    }
    return flags_.json ? Status{} : output_.flush();
  }

  struct Ending {
    FinishReason reason = FinishReason::kAbort;
    std::uint64_t epoch = 0, token_count = 0;
  };
  Status end(const Ending& ending) {
    if (!flags_.json) {
      if (!messages_.empty()) HF_TRY(end_message());
      messages_.clear();
      return output_.flush();
    }
    std::string list = "[";
    for (const ChatSession::Piece& message : messages_) {
      if (list.size() > 1) list += ',';
      list += JsonObject().add("channel", message.channel).add("text", message.text).take();
    }
    JsonObject object;
    object.add_raw("messages", list + "]");
    object.add("finish_reason", finish_reason_name(ending.reason));
    object.add("tokens", ending.token_count).add("epoch", ending.epoch);
    messages_.clear();
    HF_TRY(output_.write(object.take() + "\n"));
    return output_.flush();
  }

 private:
  bool is_analysis() const { return messages_.back().channel == "analysis"; }
  bool shown() const { return !flags_.json && !(flags_.chat.hide_analysis && is_analysis()); }
  Status begin_message() {
    if (!shown()) return {};
    if (!stdout_is_terminal()) return output_.write(label() + " ");
    return output_.write(is_analysis() ? "\x1b[2m" + label() + " " : label() + " ");
  }
  Status end_message() {
    if (!shown()) return {};
    return output_.write(stdout_is_terminal() ? "\x1b[0m\n" : "\n");
  }
  std::string label() const {
    const std::string& channel = messages_.back().channel;
    return fmt::format("[{}]", channel.empty() ? "reply" : channel);
  }

  Output& output_;
  const CommandLine& flags_;
  std::vector<ChatSession::Piece> messages_;
};

class Chat {
 public:
  Chat(const CommandLine& flags, Engine& engine, Output& output)
      : flags_(flags), engine_(engine), output_(output) {}

  // Starts over with no history.
  Status reset() {
    const CommandLine::Chat& chat = flags_.chat;
    HF_ASSIGN(session_, ChatSession::open(engine_.tokenizer(), chat.instructions,
                                          chat.date.empty() ? today() : chat.date, chat.effort));
    return {};
  }

  Status turn(const std::string& text) {
    Request request = request_from_flags(flags_.request);
    HF_ASSIGN(request.prompt_ids, session_->user_turn(text));
    const auto prompt_count = static_cast<std::int64_t>(request.prompt_ids.size());
    if (prompt_count >= engine_.max_context()) {
      return format_error(ErrorCode::kResourceExhausted,
                          "the conversation has {} tokens, the context holds {}; /reset starts "
                          "over", prompt_count, engine_.max_context());
    }
    for (const std::int32_t id : session_->stop_token_ids()) request.stop_token_ids.push_back(id);
    // Every turn draws anew, and the whole chat repeats under the same --seed.
    request.sampling.seed += turn_count_++;
    HF_ASSIGN(const RequestId id, engine_.submit(std::move(request)));
    return reply(id);
  }

 private:
  Status reply(RequestId id) {
    ReplyWriter writer(output_, flags_);
    ReplyWriter::Ending ending;
    ending.epoch = engine_.epoch();
    clear_interrupt();
    for (bool ended = false, cancelled = false; !ended;) {
      if (interrupted() && !cancelled) {
        HF_TRY(engine_.cancel(id));
        cancelled = true;
      }
      HF_ASSIGN(const std::vector<Event> events, engine_.step());
      for (const Event& event : events) {
        if (event.request != id) continue;
        if (event.token) {
          ++ending.token_count;
          ending.epoch = event.token->epoch;
          HF_ASSIGN(std::vector<ChatSession::Piece> pieces, session_->push(event.token->id));
          HF_TRY(writer.add(std::move(pieces)));
        }
        if (!event.finish_reason) continue;
        ending.reason = *event.finish_reason;
        ended = true;
      }
    }
    clear_interrupt();
    HF_ASSIGN(std::vector<ChatSession::Piece> rest, session_->end_turn());
    HF_TRY(writer.add(std::move(rest)));
    return writer.end(ending);
  }

  const CommandLine& flags_;
  Engine& engine_;
  Output& output_;
  std::unique_ptr<ChatSession> session_;
  std::uint64_t turn_count_ = 0;
};

// The user's lines, read so that Ctrl-C ends the wait for one.
class LineReader {
 public:
  // The next line; false at the end of input or at an interrupt.
  Result<bool> next(Output& output, std::string& text) {
    if (stdin_is_terminal() && stdout_is_terminal()) {
      HF_TRY(output.write("> "));
      HF_TRY(output.flush());
    }
    text.clear();
    for (;;) {
      if (begin_ == end_ && !refill()) return !interrupted() && !text.empty();
      const char c = buffer_[begin_++];
      if (c == '\n') return true;
      text += c;
      if (text.size() > kMaxLineBytes) {
        return format_error(ErrorCode::kResourceExhausted,
                            "a message is longer than {} bytes", kMaxLineBytes);
      }
    }
  }

 private:
  bool refill() {
    while (wait_for_input(STDIN_FILENO)) {
      const ssize_t count = read(STDIN_FILENO, buffer_.data(), buffer_.size());
      if (count < 0 && errno == EINTR) continue;
      begin_ = 0;
      end_ = count > 0 ? static_cast<std::size_t>(count) : 0;
      return end_ != 0;
    }
    return false;
  }

  std::array<char, 4096> buffer_{};
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

Result<int> chat(const CommandLine& flags) {
  HF_ASSIGN(const std::unique_ptr<Engine> engine, open_engine(flags.model, flags.quiet));
  HF_ASSIGN(const std::unique_ptr<Output> output, Output::open(flags.output));
  Chat session(flags, *engine, *output);
  HF_TRY(session.reset());
  if (stdin_is_terminal() && !flags.quiet) say("/reset starts over, /quit or Ctrl-D ends");
  LineReader lines;
  for (std::string text;;) {
    HF_ASSIGN(const bool more, lines.next(*output, text));
    if (!more || text == "/quit" || text == "/exit") break;
    if (!text.empty() && text.back() == '\r') text.pop_back();
    if (text.empty()) continue;
    const Status status = text == "/reset" ? session.reset() : session.turn(text);
    if (status.ok()) continue;
    // A turn that cannot be (too long, not UTF-8) ends a script and not a conversation.
    const ErrorCode error = status.error().code();
    const bool usable = error == ErrorCode::kInvalidArgument ||
                        error == ErrorCode::kResourceExhausted;
    if (!usable || !stdin_is_terminal()) return status.error();
    say(status.error().message());
  }
  HF_TRY(output->finish());
  return interrupted() ? kExitInterrupted : kExitDone;
}

}  // namespace

int run_chat(const CommandLine& line) {
  const Result<int> code = chat(line);
  return code.ok() ? *code : report_failure(code.error());
}

}  // namespace holdfast::cli
