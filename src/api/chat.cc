#include <algorithm>
#include <utility>

#include "api/chat_formats.h"
#include "api/tokenizer_impl.h"
#include "base/error.h"
#include "holdfast/tokenizer.h"
#include "tokenizer/harmony.h"
#include "tokenizer/harmony_parser.h"

namespace holdfast {

struct ChatSession::Impl {
  tokenizer::Harmony harmony;
  std::vector<tokenizer::Message> messages;  // the conversation so far
  tokenizer::HarmonyParser parser;           // of the reply under way

  explicit Impl(tokenizer::Harmony format)
      : harmony(std::move(format)), parser(harmony) {}

  std::vector<Piece> pieces_of(const tokenizer::HarmonyDelta& delta) const {
    if (delta.text.empty()) return {};
    return {Piece{parser.current().channel, delta.text}};
  }
};

Result<std::unique_ptr<ChatSession>> ChatSession::open(const Tokenizer& tokenizer,
                                                       std::string_view instructions,
                                                       std::string_view date,
                                                       std::string_view effort) {
  if (!date.empty() && !api::is_date(date)) {
    return make_error(ErrorCode::kInvalidArgument, "date is {}, expected YYYY-MM-DD", date);
  }
  HF_TRY(tokenizer.impl_->tokenizer.check_present());
  tokenizer::SystemPrompt prompt;
  HF_ASSIGN(prompt.effort, tokenizer::reasoning_effort_of(effort));
  prompt.current_date = date;
  Result<tokenizer::Harmony> harmony = tokenizer::Harmony::create(tokenizer.impl_->tokenizer);
  if (!harmony.ok()) {
    return make_error(ErrorCode::kUnsupported, "this model has no chat format: {}",
                      harmony.error().message());
  }
  auto impl = std::make_unique<Impl>(std::move(*harmony));
  impl->messages.push_back(tokenizer::system_message(prompt));
  if (!instructions.empty()) {
    impl->messages.push_back(tokenizer::developer_message(instructions));
  }
  return std::unique_ptr<ChatSession>(new ChatSession(std::move(impl)));
}

ChatSession::ChatSession(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatSession::~ChatSession() = default;

Result<std::vector<std::int32_t>> ChatSession::user_turn(std::string_view text) {
  std::vector<tokenizer::Message>& messages = impl_->messages;
  messages.push_back({.role = tokenizer::Role::kUser, .content = std::string(text)});
  Result<std::vector<std::int32_t>> ids = impl_->harmony.render_prompt(messages);
  if (!ids.ok()) {
    messages.pop_back();
    return ids;
  }
  impl_->parser = tokenizer::HarmonyParser(impl_->harmony);
  return ids;
}

Result<std::vector<ChatSession::Piece>> ChatSession::push(std::int32_t id) {
  // A model that goes on behind the end of its turn has nothing more to say.
  if (impl_->parser.stopped()) return std::vector<Piece>{};
  HF_ASSIGN(const tokenizer::HarmonyDelta delta, impl_->parser.push(id));
  return impl_->pieces_of(delta);
}

Result<std::vector<ChatSession::Piece>> ChatSession::end_turn() {
  const tokenizer::HarmonyDelta delta = impl_->parser.finish();
  std::vector<Piece> pieces = impl_->pieces_of(delta);
  const std::vector<tokenizer::Message>& reply = impl_->parser.messages();
  impl_->messages.insert(impl_->messages.end(), reply.begin(), reply.end());
  return pieces;
}

std::vector<std::int32_t> ChatSession::stop_token_ids() const {
  const auto stop = impl_->harmony.stop_tokens();
  return {stop.begin(), stop.end()};
}

}  // namespace holdfast
