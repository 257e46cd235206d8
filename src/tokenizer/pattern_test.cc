#include "tokenizer/pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tokenizer/limits.h"
#include "tokenizer/utf8.h"

namespace holdfast::tokenizer {
namespace {

using testing::HasSubstr;

// The matches of `pattern` in `text`, each in brackets.
std::string matches(std::string_view pattern, std::string_view text) {
  const Pattern compiled = Pattern::compile(pattern).value();
  MatchState state;
  state.allow(text.size());
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const Pattern::Match match = compiled.find(text, at, state);
    if (match.code < 0) return compiled.error_of(match.code).message();
    if (match.code == 0 || match.end == match.begin) break;
    out += "[" + std::string(text.substr(match.begin, match.end - match.begin)) + "]";
    at = match.end;
  }
  return out;
}

TEST(Pattern, ReadsWhiteSpaceAndDigitsAsUnicodeProperties) {
  const std::string white = " \xC2\x85\xC2\xA0\xE3\x80\x80\t";
  EXPECT_EQ(matches("\\s+", "a" + white), "[" + white + "]");
  EXPECT_EQ(matches("\\s", "\xE1\xA0\x8E\xE2\x80\x8B"), "") << "U+180E and U+200B are not white";
  EXPECT_EQ(matches("\\S+", "a\xE1\xA0\x8E b"), "[a\xE1\xA0\x8E][b]");
  EXPECT_EQ(matches("[^\\s\\d]+", "ab 12\xD9\xA1" "c"), "[ab][c]");
  EXPECT_EQ(matches("[\\s-]+", "a -\t- b"), "[ -\t- ]") << "the hyphen is itself";
  EXPECT_EQ(matches("\\D", "1\xD9\xA1x"), "[x]");
}

TEST(Pattern, ReadsAScriptNameAsTheScriptItself) {
  // U+30FC is of script Common and has Hiragana and Katakana as script extensions.
  EXPECT_EQ(matches("\\p{Katakana}", "\xE3\x83\x86\xE3\x83\xBC"), "[\xE3\x83\x86]");
  EXPECT_EQ(matches("\\P{Han}|\\p{^L}", "\xE6\x97\xA5x"), "[x]");
}

TEST(Pattern, ReadsDotCodePointsAndIntervals) {
  EXPECT_EQ(matches(".", "\n\r"), "[\r]");
  EXPECT_EQ(matches("[\\x{e9}\\u00e8]{2,}", "\xC3\xA9\xC3\xA8\xC3\xA9"),
            "[\xC3\xA9\xC3\xA8\xC3\xA9]");
  EXPECT_EQ(matches("(a|b){1,2}?c?", "abc"), "[a][bc]");
  EXPECT_EQ(matches("(?i:'S)|(?<=x)y|(?<!x)z|(?>w)", "'sxyzw"), "['s][y][z][w]");
}

TEST(Pattern, RefusesWhatTheTwoDialectsReadDifferently) {
  struct Case {
    const char* pattern;
    const char* named;
  };
  for (const Case& c : std::initializer_list<Case>{{"^a", "a line anchor at byte 0"},
                                                   {"a$", "a line anchor at byte 1"},
                                                   {"\\bx", "escape \"\\b\""},
                                                   {"\\w+", "escape \"\\w\""},
                                                   {"(a)\\1", "escape \"\\1\""},
                                                   {"\\Qa", "escape \"\\Q\""},
                                                   {"\\", "a trailing '\\'"},
                                                   {"[a[b]]", "a class in a class"},
                                                   {"[a&&b]", "a class intersection"},
                                                   {"[\\S]", "\\S in a class"},
                                                   {"[a-\\s]", "a range that ends in a set"},
                                                   {"[]", "an empty class"},
                                                   {"(?m:a)", "group \"(?m\""},
                                                   {"(*ACCEPT)", "group \"(*A\""},
                                                   {"a{1,3}+", "interval \"{1,3}+\""},
                                                   {"a{2}?", "interval \"{2}?\""},
                                                   {"a{,3}", "interval \"{,3}\""},
                                                   {"a{", "'{'"},
                                                   {"a)", "an unopened ')'"},
                                                   {"\\pL", "a property without braces"},
                                                   {"\\p{L&}", "property \"L&\""},
                                                   {"\\x41", "\\x without braces"},
                                                   {"\\x{zz}", "code point \"zz\""}}) {
    const auto pattern = Pattern::compile(c.pattern);
    ASSERT_FALSE(pattern.ok()) << c.pattern;
    EXPECT_EQ(pattern.error().code(), ErrorCode::kUnsupported) << c.pattern;
    EXPECT_THAT(pattern.error().message(), HasSubstr(c.named)) << c.pattern;
  }
  EXPECT_THAT(Pattern::compile("(a").error().message(), HasSubstr("a group does not end"));
  EXPECT_THAT(Pattern::compile("[a").error().message(), HasSubstr("a class does not end"));
  EXPECT_THAT(Pattern::compile("\\p{Nonsense}").error().message(), HasSubstr("PCRE2 refuses"));
  EXPECT_THAT(Pattern::compile(std::string(kMaxPatternBytes + 1, 'a')).error().message(),
              HasSubstr("16385 bytes long; 1 to 16384"));
}

TEST(Pattern, TurnsRunawayWorkIntoAnError) {
  EXPECT_THAT(matches("(a+a+)+[bc]", std::string(64, 'a')), HasSubstr("too much work"));
  // Short matches that each read to the end, without backtracking: quadratic.
  EXPECT_THAT(matches("a*+b|a", std::string(1'000'000, 'a') + "c"), HasSubstr("too much work"));
  EXPECT_THAT(matches("[a-c]*d|a", std::string(1'000'000, 'a') + "c"), HasSubstr("too much work"));
}

TEST(Pattern, FindsMatchesOfAnyLengthAndWhatFollowsThem) {
  for (const std::size_t length : {510, 511, 512, 513, 2047, 2048, 2049, 100'000}) {
    for (const std::string unit : {"a", "\xC3\xA9", "\xE6\x97\xA5"}) {
      std::string word;
      while (word.size() < length) word += unit;
      const std::string pattern = "\\p{L}+(?!5)|\\S";
      EXPECT_TRUE(matches(pattern, word + "y" + word) == "[" + word + "y" + word + "]") << length;
      EXPECT_TRUE(matches(pattern, word + unit + "5") == "[" + word + "][" + unit + "][5]")
          << length;
      EXPECT_TRUE(matches("5", word + "5" + word) == "[5]") << length;
    }
  }
}

TEST(Utf8, StepsOverEveryCodePointAndNoOtherSequence) {
  std::size_t count = 0;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string bytes;
    append_utf8(c, bytes);
    const Utf8Step step = next_utf8(bytes);
    count += step.kind == Utf8Kind::kCharacter && step.length == bytes.size() &&
             step.code_point == c;
  }
  EXPECT_EQ(count, 0x110000u - 0x800u);
  EXPECT_EQ(find_invalid_utf8("ab\xED\xA0\x80"), 2u) << "a surrogate";
  EXPECT_EQ(find_invalid_utf8("\xC0\x80"), 0u) << "an overlong form";
  EXPECT_EQ(find_invalid_utf8("a\xF4\x90\x80\x80"), 1u) << "beyond U+10FFFF";
  EXPECT_EQ(find_invalid_utf8("a\xE2\x82"), 1u) << "cut off";
}

TEST(Utf8, ReplacesEachMaximalSubpartOnce) {
  struct Case {
    const char* bytes;
    const char* text;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"a\xFF" "b", "a\xEF\xBF\xBD" "b"},
           {"\xE2\x82" "A", "\xEF\xBF\xBD" "A"},
           {"\xE2\x28", "\xEF\xBF\xBD("},
           {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
           {"\xF0\x9F\x98", "\xEF\xBF\xBD"}}) {
    std::string text;
    append_lossy_utf8(c.bytes, true, text);
    EXPECT_EQ(text, c.text);
  }
  std::string text;
  EXPECT_EQ(append_lossy_utf8("a\xF0\x9F\x98", false, text), 1u);
  EXPECT_EQ(text, "a");
}

}  // namespace
}  // namespace holdfast::tokenizer
