#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>
#include <simdjson.h>

#include "base/rng.h"
#include "tokenizer/limits.h"
#include "tokenizer/test_support.h"
#include "tokenizer/utf8.h"

namespace holdfast::tokenizer {
namespace {

using Ids = std::vector<std::int32_t>;

const Tokenizer& tiny() {
  static const Tokenizer tokenizer = Tokenizer::load(golden_path("tiny.tokenizer.json")).value();
  return tokenizer;
}

const Tokenizer& o200k() {
  static const Tokenizer tokenizer = Tokenizer::parse(o200k_json()).value();
  return tokenizer;
}

struct Case {
  std::string text;
  Ids ids;
  std::string decoded;
};

Case read_case(simdjson::dom::element element) {
  Case result;
  result.text = element["text"].get_string().value();
  for (const auto id : element["ids"].get_array()) {
    result.ids.push_back(static_cast<std::int32_t>(id.get_int64().value()));
  }
  std::string_view decoded;
  if (element["decoded"].get(decoded) == simdjson::SUCCESS) result.decoded = decoded;
  return result;
}

std::vector<Case> tiny_cases() {
  simdjson::dom::parser parser;
  std::vector<Case> cases;
  for (const auto element : parser.load(golden_path("tiny_cases.json")).get_array()) {
    cases.push_back(read_case(element));
  }
  return cases;
}

std::vector<Case> o200k_vectors() {
  simdjson::dom::parser parser;
  std::vector<Case> cases;
  std::istringstream lines(read_file(golden_path("o200k_vectors.jsonl")));
  for (std::string line; std::getline(lines, line);) {
    cases.push_back(read_case(parser.parse(line)));
  }
  return cases;
}

TEST(Tokenizer, EncodesAndDecodesTheTinyVocabularysCasesLikeHuggingFace) {
  const auto cases = tiny_cases();
  ASSERT_GE(cases.size(), 20u);
  for (const Case& c : cases) {
    EXPECT_EQ(tiny().encode(c.text).value(), c.ids) << c.text;
    EXPECT_EQ(tiny().decode(c.ids).value(), c.decoded) << c.text;
  }
}

TEST(Tokenizer, EncodesThe400VectorsOfTheO200kVocabularyLikeTiktoken) {
  const auto cases = o200k_vectors();
  ASSERT_EQ(cases.size(), 400u);
  EncodeScratch scratch;
  for (const Case& c : cases) {
    EXPECT_EQ(o200k().encode(c.text, {.parse_special = false}).value(), c.ids) << c.text;
    EXPECT_EQ(o200k().encode(c.text, {.parse_special = false}, scratch).value(), c.ids) << c.text;
    EXPECT_EQ(o200k().decode(c.ids).value(), c.text);
  }
}

TEST(Tokenizer, KnowsTheHarmonyTokensOfTheO200kVocabulary) {
  EXPECT_EQ(o200k().vocab_size(), 201088u);
  EXPECT_EQ(o200k().max_token_id(), 201087);
  EXPECT_EQ(o200k().id_of_token("<|start|>"), 200006);
  EXPECT_EQ(o200k().id_of_token("<|return|>"), 200002);
  EXPECT_EQ(o200k().id_of_token("<|nothing|>"), std::nullopt);
  EXPECT_EQ(o200k().token_bytes(200012).value(), "<|call|>");
  EXPECT_TRUE(o200k().is_special(200012));
  EXPECT_FALSE(o200k().is_special(199997));
}

}  // namespace
}  // namespace holdfast::tokenizer
