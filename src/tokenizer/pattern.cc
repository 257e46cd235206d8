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
// What a find may look at, and how often it may backtrack, at no cost; and how both grow.
constexpr std::size_t kFirstWindowBytes = 512;
constexpr std::size_t kWindowGrowth = 4;

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
  if (context_ != nullptr) pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
}

void MatchState::allow(std::size_t text_bytes) {
  work_ = kSplitWork + text_bytes * kSplitWorkPerByte;
}

Pattern::Pattern(std::string_view source, pcre2_real_code_8* code)
    : source_(source),
      code_(code),
      jit_(pcre2_jit_compile(code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0) {}

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

int Pattern::run(std::string_view subject, std::size_t offset, std::uint32_t options,
                 const MatchState& state) const {
  const auto* text = reinterpret_cast<PCRE2_SPTR>(subject.data());
  options |= PCRE2_NO_UTF_CHECK;
  return jit_ ? pcre2_jit_match(code_.get(), text, subject.size(), offset, options,
                                state.data_.get(), state.context_.get())
              : pcre2_match(code_.get(), text, subject.size(), offset, options, state.data_.get(),
                            state.context_.get());
}

// PCRE2 limits backtracking but not how far it reads ahead, and it may read far for each of many
// short matches. So it first sees a window of the subject, as a partial subject: a match that it
// then reports does not depend on what follows. Only when it wants to see more, or to backtrack
// more, do window and limit grow, at the cost of the allowance. All in all the work is linear in
// the text.
Pattern::Match Pattern::find(std::string_view subject, std::size_t offset,
                             MatchState& state) const {
  if (state.data_ == nullptr || state.context_ == nullptr || state.stack_ == nullptr) {
    return {PCRE2_ERROR_NOMEMORY, 0, 0};
  }
  for (std::size_t window = kFirstWindowBytes;; window *= kWindowGrowth) {
    if (window > kFirstWindowBytes) {
      if (state.work_ < 2 * window) return {PCRE2_ERROR_MATCHLIMIT, 0, 0};
      state.work_ -= 2 * window;
    }
    std::size_t end = subject.size();
    if (end - offset > window) {
      end = offset + window;
      while ((static_cast<unsigned char>(subject[end]) & 0xC0) == 0x80) --end;
    }
    const bool whole = end == subject.size();
    pcre2_set_match_limit(state.context_.get(), static_cast<std::uint32_t>(window));
    const int code = run(subject.substr(0, end), offset, whole ? 0 : PCRE2_PARTIAL_HARD, state);
    if (code > 0) {
      const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(state.data_.get());
      return {1, bounds[0], bounds[1]};
    }
    if (code == PCRE2_ERROR_NOMATCH && whole) return {0, 0, 0};
    const bool wants_more = code == PCRE2_ERROR_NOMATCH || code == PCRE2_ERROR_PARTIAL ||
                            code == PCRE2_ERROR_MATCHLIMIT;
    if (!wants_more) return {code, 0, 0};
  }
}

Error Pattern::error_of(int code) const {
  return make_error(ErrorCode::kResourceExhausted,
                    "splitting the text by the pattern \"{}\" takes too much work ({})", source_,
                    pcre2_message(code));
}

}  // namespace holdfast::tokenizer
