#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tokenizer/limits.h"
#include "tokenizer/test_support.h"
#include "tokenizer/tokenizer.h"

namespace holdfast::tokenizer {
namespace {

using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

// The parts of a small tokenizer.json, as JSON text. Ids 0 to 255 are the bytes in their order.
struct Parts {
  std::string vocab = R"(, "ab": 256, "abc": 257, "\u0120a": 258)";
  std::string merges = R"("a b", ["ab", "c"], "\u0120 a")";
  std::string model = R"("ignore_merges": false)";
  std::string added = "";
  std::string pre_tokenizer =
      R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})";
  std::string decoder = R"({"type": "ByteLevel"})";
  std::string rest = "";
};

// The vocabulary's entries for the 256 bytes.
std::string byte_entries() {
  std::string text;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    char entry[32];
    std::snprintf(entry, sizeof entry, "%s\"\\u%04x\": %d", byte == 0 ? "" : ", ",
                  static_cast<unsigned>(printable ? byte : next++), byte);
    text += entry;
  }
  return text;
}

std::string json_of(const Parts& parts) {
  return R"({"version": "1.0", "added_tokens": [)" + parts.added + R"(], "pre_tokenizer": )" +
         parts.pre_tokenizer + R"(, "decoder": )" + parts.decoder +
         R"(, "model": {"type": "BPE", )" + parts.model + R"(, "vocab": {)" + byte_entries() +
         parts.vocab + R"(}, "merges": [)" + parts.merges + "]}" + parts.rest + "}";
}

Ids encode(const Parts& parts, std::string_view text, EncodeOptions options = {}) {
  return Tokenizer::parse(json_of(parts)).value().encode(text, options).value();
}

std::string message_of(const std::string& json) {
  const auto tokenizer = Tokenizer::parse(json);
  return tokenizer.ok() ? "parsed" : tokenizer.error().to_string();
}

TEST(TokenizerJson, MergesByRankAndAcceptsBothFormsOfAMerge) {
  EXPECT_EQ(encode({}, "abc a"), (Ids{257, 258}));
  EXPECT_EQ(encode({.merges = R"("a b", "\u0120 a")"}, "abc"), (Ids{256, 'c'}));
}

TEST(TokenizerJson, KeepsAWholeWordOnlyWithIgnoreMerges) {
  EXPECT_EQ(encode({.merges = ""}, "abc"), (Ids{'a', 'b', 'c'}));
  EXPECT_EQ(encode({.merges = "", .model = R"("ignore_merges": true)"}, "abc"), (Ids{257}));
}

TEST(TokenizerJson, PutsASpaceBeforeEachPieceWhenAskedTo) {
  const Parts parts = {.pre_tokenizer = R"({"type": "ByteLevel", "add_prefix_space": true})"};
  EXPECT_EQ(encode(parts, "a a"), (Ids{258, 258}));
  EXPECT_EQ(encode(parts, " a"), (Ids{258}));
}

std::string added(int id, const std::string& content, const std::string& flags) {
  return R"({"id": )" + std::to_string(id) + R"(, "content": ")" + content +
         R"(", "single_word": false, "normalized": false)" + flags + "}";
}

TEST(TokenizerJson, CutsOutAddedTokensLeftmostLongestBeforeAnythingElse) {
  const Parts parts = {.added = added(300, "<x>", R"(, "special": true)") + "," +
                                added(301, "<x>>", "") + "," + added(302, "bb", "")};
  EXPECT_EQ(encode(parts, "a<x>>abb<x>"), (Ids{'a', 301, 'a', 302, 300}));
  EXPECT_EQ(encode(parts, "<x>bb", {.parse_special = false}), (Ids{'<', 'x', '>', 302}));
  const Tokenizer tokenizer = Tokenizer::parse(json_of(parts)).value();
  EXPECT_EQ(tokenizer.decode(Ids{300, 301}, {.skip_special = true}).value(), "<x>>");
  EXPECT_EQ(tokenizer.vocab_size(), 262u);
  EXPECT_EQ(tokenizer.max_token_id(), 302);
  EXPECT_FALSE(tokenizer.token_bytes(299).ok());
  EXPECT_FALSE(tokenizer.decode(Ids{-1}).ok());
}

TEST(TokenizerJson, LetsAddedTokensTakeTheWhiteSpaceBesideThem) {
  const Parts parts = {.added = added(300, "<l>", R"(, "lstrip": true)") + "," +
                                added(301, "<r>", R"(, "rstrip": true)")};
  EXPECT_EQ(encode(parts, "a \xE3\x80\x80<l>b"), (Ids{'a', 300, 'b'}));
  EXPECT_EQ(encode(parts, "a<r> \n b"), (Ids{'a', 301, 'b'}));
  EXPECT_EQ(encode(parts, "<r>  <l>"), (Ids{301, 300}));
  const Parts overlapping = {.added = added(301, "<r>", R"(, "rstrip": true)") + "," +
                                      added(302, " x", "")};
  EXPECT_EQ(encode(overlapping, "<r> x x"), (Ids{301, 'x', 302})) << "its first space is taken";
}

TEST(TokenizerJson, LooksForNormalizedAddedTokensInWhatTheOthersLeave) {
  const Parts parts = {
      .added = R"({"id": 300, "content": "ab<", "normalized": true},)" + added(301, "<x>", "")};
  EXPECT_EQ(encode(parts, "ab<x>"), (Ids{256, 301}));
  EXPECT_EQ(encode(parts, "ab<ab<x>"), (Ids{300, 256, 301}));
}

TEST(TokenizerJson, RefusesBadInputWithOneErrorThatNamesIt) {
  const std::string good = json_of({});
  ASSERT_EQ(message_of(good), "parsed");
  const std::string split =
      R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": ")";
  struct Case {
    Parts parts;
    const char* named;
  };
  const std::vector<Case> cases = {
      {{.vocab = R"(, "x1": 7)"}, "corrupt: vocab: \"x1\": token id 7 is given twice"},
      {{.vocab = R"(, "a": 300)"}, "tokens 97 and 300 are the same 1 bytes"},
      {{.vocab = R"(, "x1": "7")"}, "the id of token \"x1\" is a string"},
      {{.vocab = R"(, "x1": 1.5)"}, "the id of token \"x1\" is a number, not an integer"},
      {{.vocab = R"(, "x1": -1)"}, "token id -1 is outside 0..4194303"},
      {{.vocab = R"(, "x1": 9000000000)"}, "token id 9000000000 is outside"},
      {{.vocab = R"(, "": 300)"}, "token 300 is 0 bytes long"},
      {{.vocab = ", \"" + std::string(kMaxTokenBytes + 1, 'q') + "\": 300"}, "is 4097 bytes long"},
      {{.merges = R"("a q")"}, "merge 0 (\"a\" \"q\") names token \"aq\""},
      {{.merges = R"("a zz")"}, "merge 0 (\"a\" \"zz\") names token \"zz\""},
      {{.merges = R"("a b", "a b")"}, "merge 1 repeats merge 0"},
      {{.merges = R"("ab")"}, "merge 0 is a string; it must be"},
      {{.merges = R"("a b c")"}, "merge 0 is a string; it must be"},
      {{.merges = R"(["a", "b", "c"])"}, "merge 0 is an array; it must be"},
      {{.merges = R"(["a", 1])"}, "merge 0 is an array; it must be"},
      {{.merges = "1"}, "merge 0 is a number"},
      {{.model = R"("dropout": 0.1)"}, "dropout is not supported"},
      {{.model = R"("byte_fallback": true)"}, "byte_fallback true is not supported"},
      {{.model = R"("end_of_word_suffix": "</w>")"}, "end_of_word_suffix \"</w>\" is not"},
      {{.model = R"("ignore_merges": 1)"}, "ignore_merges must be a boolean; it is a number"},
      {{.model = R"("surprise": 1)"}, "key \"surprise\" is not supported; known: type, dropout"},
      {{.added = added(97, "<x>", "")}, "added token \"<x>\" has id 97, which is another token"},
      {{.added = added(300, "ab", "")}, "but the vocabulary has it as 256"},
      {{.added = added(300, "<x>", "") + "," + added(300, "<y>", "")}, "id 300 is given twice"},
      {{.added = added(300, "<x>", "") + "," + added(301, "<x>", "")}, "are both \"<x>\""},
      {{.added = added(300, "", "")}, "content is 0 bytes long"},
      {{.added = R"({"id": 300, "content": "<x>", "single_word": true})"}, "single_word true"},
      {{.added = R"({"id": "1", "content": "<x>"})"}, "added_tokens[0].id must be an integer"},
      {{.added = "7"}, "added_tokens[0] must be an object; it is a number"},
      {{.pre_tokenizer = "null"}, "pre_tokenizer must be an object; it is null"},
      {{.pre_tokenizer = R"({"type": "Metaspace"})"},
       "unsupported: tokenizer.json.pre_tokenizer \"Metaspace\" is not supported; known: Sequence, "
       "Split, ByteLevel"},
      {{.pre_tokenizer = split + R"(a"}, "behavior": "Isolated"}]})"}, "without ByteLevel"},
      {{.pre_tokenizer = split + R"(a"}, "behavior": "Removed"}]})"}, "\"Removed\" is not"},
      {{.pre_tokenizer = split + R"(\\bz"}, "behavior": "Isolated"}]})"}, "escape \"\\b\""},
      {{.decoder = R"({"type": "WordPiece"})"}, "decoder \"WordPiece\" is not supported"},
      {{.decoder = R"({"type": "Sequence", "decoders": []})"}, "decoder without parts"},
      {{.decoder = "{}"}, "decoder has no \"type\""},
      {{.rest = R"(, "normalizer": {"type": "NFC"})"}, "normalizer \"NFC\" is not supported"},
      {{.rest = R"(, "truncation": {"max_length": 5})"}, "truncation setting is not supported"},
      {{.rest = R"(, "post_processor": {"type": "Bert"})"}, "post_processor \"Bert\" is not"},
      {{.rest = R"(, "decoder": {"type": "ByteLevel"})"}, "has the key \"decoder\" twice"},
      {{.rest = R"(, "extra": 1)"}, "key \"extra\" is not supported; known: version"},
  };
  for (const Case& c : cases) EXPECT_THAT(message_of(json_of(c.parts)), HasSubstr(c.named));
}

TEST(TokenizerJson, RefusesAVocabularyThatLacksAByte) {
  std::string json = json_of({});
  const std::string entry = R"(, "\u007e": 126)";
  json.replace(json.find(entry), entry.size(), "");
  EXPECT_THAT(message_of(json), HasSubstr("no token for byte 0x7e"));
}

TEST(TokenizerJson, RefusesJsonThatIsCutOffTooDeepOrSomethingElse) {
  const std::string good = json_of({});
  for (std::size_t length : {std::size_t{0}, std::size_t{1}, good.size() / 2, good.size() - 1}) {
    EXPECT_NE(message_of(good.substr(0, length)), "parsed") << length;
  }
  const std::string deep = R"({"version": )" + std::string(10000, '[') + std::string(10000, ']');
  EXPECT_THAT(message_of(deep + "}"), HasSubstr("nested deeper than 32"));
  EXPECT_THAT(message_of("[]"), HasSubstr("must be an object; it is an array"));
  EXPECT_THAT(message_of("{}"), HasSubstr("has no \"model\""));
  EXPECT_THAT(message_of("\xFF\xFE"), HasSubstr("is not JSON"));
  EXPECT_THAT(message_of(good + "x"), HasSubstr("is not JSON"));
}

TEST(TokenizerJson, NamesTheFileThatCannotBeLoaded) {
  EXPECT_THAT(Tokenizer::load("/nonexistent/tokenizer.json").error().to_string(),
              HasSubstr("not_found: /nonexistent/tokenizer.json"));
  EXPECT_THAT(Tokenizer::load(HF_SOURCE_DIR).error().message(), HasSubstr("not a readable"));
  EXPECT_THAT(Tokenizer::load(golden_path("README.md")).error().message(),
              HasSubstr("README.md: tokenizer.json ("));
}

}  // namespace
}  // namespace holdfast::tokenizer
