#include "tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "base/error.h"
#include "tokenizer/limits.h"

namespace holdfast::tokenizer {
namespace {

constexpr std::size_t kJitStackStartBytes = 32 * 1024;
constexpr std::size_t kJitStackMaxBytes = 1024 * 1024;

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

void MatchState::Free::operator()(pcre2_real_match_data_8* data) const {
  pcre2_match_data_free(data);
}
void MatchState::Free::operator()(pcre2_real_match_context_8* context) const {
  pcre2_match_context_free(context);
}
void MatchState::Free::operator()(pcre2_real_jit_stack_8* stack) const {
  pcre2_jit_stack_free(stack);
}
void Pattern::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

MatchState::MatchState()
    : data_(pcre2_match_data_create(1, nullptr)),
      stack_(pcre2_jit_stack_create(kJitStackStartBytes, kJitStackMaxBytes, nullptr)),
      context_(pcre2_match_context_create(nullptr)) {
  if (context_ == nullptr) return;
  pcre2_set_match_limit(context_.get(), kMaxRegexSteps);
  pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
}

Pattern::Pattern(std::string_view source, pcre2_real_code_8* code)
    : source_(source),
      code_(code),
      jit_(pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0) {}

Result<Pattern> Pattern::compile(std::string_view oniguruma) {
  if (oniguruma.empty() || oniguruma.size() > kMaxPatternBytes) {
    return make_error(ErrorCode::kUnsupported, "the pattern is {} bytes long; 1 to {} are allowed",
                      oniguruma.size(), kMaxPatternBytes);
  }
  HF_ASSIGN(const std::string translated, translate_pattern(oniguruma));
  int code = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* compiled =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), PCRE2_UTF,
                    &code, &offset, nullptr);
  if (compiled == nullptr) {
    return make_error(ErrorCode::kUnsupported,
                      "PCRE2 refuses the pattern \"{}\" (translated: \"{}\") at byte {}: {}",
                      oniguruma, translated, offset, pcre2_message(code));
  }
  return Pattern(oniguruma, compiled);
}

Pattern::Match Pattern::find(std::string_view subject, std::size_t offset,
                             MatchState& state) const {
  if (state.data_ == nullptr || state.context_ == nullptr || state.stack_ == nullptr) {
    return {PCRE2_ERROR_NOMEMORY, 0, 0};
  }
  const auto* text = reinterpret_cast<PCRE2_SPTR>(subject.data());
  const int code =
      jit_ ? pcre2_jit_match(code_.get(), text, subject.size(), offset, PCRE2_NO_UTF_CHECK,
                             state.data_.get(), state.context_.get())
           : pcre2_match(code_.get(), text, subject.size(), offset, PCRE2_NO_UTF_CHECK,
                         state.data_.get(), state.context_.get());
  if (code == PCRE2_ERROR_NOMATCH) return {0, 0, 0};
  if (code < 0) return {code, 0, 0};
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(state.data_.get());
  return {1, bounds[0], bounds[1]};
}

Error Pattern::error_of(int code) const {
  const bool limit = code == PCRE2_ERROR_MATCHLIMIT || code == PCRE2_ERROR_JIT_STACKLIMIT ||
                     code == PCRE2_ERROR_DEPTHLIMIT || code == PCRE2_ERROR_HEAPLIMIT;
  if (limit) {
    return make_error(ErrorCode::kResourceExhausted,
                      "splitting the text by the pattern \"{}\" backtracks too much ({}); the "
                      "limit is {} steps a piece",
                      source_, pcre2_message(code), kMaxRegexSteps);
  }
  return make_error(ErrorCode::kResourceExhausted, "splitting the text by the pattern \"{}\": {}",
                    source_, pcre2_message(code));
}

}  // namespace holdfast::tokenizer
