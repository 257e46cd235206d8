// Pattern: one regular expression of a pre-tokeniser, compiled with PCRE2 (JIT where the machine
// has it). Immutable, owned by a tokenizer's data; any thread, each with its MatchState.
//
// tokenizer.json patterns are written for Oniguruma. The two dialects agree on what is accepted
// here: literals, classes, \p{..}, \s, \d, groups, look-around, alternation and quantifiers; \s and
// \d are spelt out so that they mean the Unicode properties White_Space and Nd. What the dialects
// read differently (anchors, \w, \b, \h, nested classes, {n,m}+, back-references) is refused.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "holdfast/result.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace holdfast::tokenizer {

// The expression in PCRE2's dialect with all groups non-capturing. Errors: kUnsupported, naming the
// construct and its byte offset; kCorrupt, a class or group that does not end.
Result<std::string> translate_pattern(std::string_view oniguruma);

// Working memory of matching. One thread at a time, any patterns.
class MatchState {
 public:
  MatchState();

 private:
  friend class Pattern;
  struct Free {
    void operator()(pcre2_real_match_data_8* data) const;
    void operator()(pcre2_real_match_context_8* context) const;
    void operator()(pcre2_real_jit_stack_8* stack) const;
  };
  std::unique_ptr<pcre2_real_match_data_8, Free> data_;
  std::unique_ptr<pcre2_real_jit_stack_8, Free> stack_;
  std::unique_ptr<pcre2_real_match_context_8, Free> context_;
};

class Pattern {
 public:
  struct Match {
    int code;  // 1: found; 0: none; below 0: PCRE2's error, see error_of
    std::size_t begin;
    std::size_t end;
  };

  // Errors: as translate_pattern; longer than kMaxPatternBytes; refused by PCRE2.
  static Result<Pattern> compile(std::string_view oniguruma);

  // The first match in `subject` at or after byte `offset`. `subject` must be well-formed UTF-8 and
  // `offset` a character boundary; look-behind sees the bytes before it.
  Match find(std::string_view subject, std::size_t offset, MatchState& state) const;

  // What a negative Match::code means: kResourceExhausted for PCRE2's limits on backtracking.
  Error error_of(int code) const;

  // As given to compile.
  const std::string& source() const { return source_; }

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  Pattern(std::string_view source, pcre2_real_code_8* code);

  std::string source_;
  std::unique_ptr<pcre2_real_code_8, Free> code_;
  bool jit_ = false;
};

}  // namespace holdfast::tokenizer
