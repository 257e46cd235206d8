// Pattern: one regular expression of a pre-tokeniser, compiled with PCRE2 (JIT where the machine
// has it). Immutable, owned by a tokenizer's data; any thread, each with its MatchState.
//
// tokenizer.json patterns are written for Oniguruma. The two dialects agree on what is accepted
// here: literals, classes, \p{..}, \s, \d, groups, look-around, alternation and quantifiers; \s and
// \d are spelt out so that they mean the Unicode properties White_Space and Nd. What the dialects
// read differently (anchors, \w, \b, \h, nested classes, {n,m}+, back-references) is refused.
// Character properties are those of the linked PCRE2 (10.42: Unicode 14); a code point assigned
// later counts as unassigned.
#pragma once

#include <cstddef>
#include <cstdint>
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

// Working memory of matching, and the work still allowed. One thread at a time, any patterns.
class MatchState {
 public:
  // Nothing is allowed yet beyond what each find has free.
  MatchState();

  // Sets what the finds that follow may do in all: kSplitWork + text_bytes * kSplitWorkPerByte.
  void allow(std::size_t text_bytes);

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
  std::uint64_t work_ = 0;
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
  // `offset` a character boundary; look-behind sees the bytes before it. Takes time in proportion
  // to the bytes looked at, of which 512 are free and the others come out of the state's allowance.
  Match find(std::string_view subject, std::size_t offset, MatchState& state) const;

  // What a negative Match::code means: kResourceExhausted.
  Error error_of(int code) const;

  // As given to compile.
  const std::string& source() const { return source_; }

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  Pattern(std::string_view source, pcre2_real_code_8* code);
  int run(std::string_view subject, std::size_t offset, std::uint32_t options,
          const MatchState& state) const;

  std::string source_;
  std::unique_ptr<pcre2_real_code_8, Free> code_;
  bool jit_ = false;
};

}  // namespace holdfast::tokenizer
