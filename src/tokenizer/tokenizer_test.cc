#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>
#include <simdjson.h>

#include <thread>

#include "base/rng.h"
#include "tokenizer/limits.h"
#include "tokenizer/stream_decoder.h"
#include "tokenizer/test_support.h"
#include "tokenizer/tokenizer_data.h"
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

// Valid UTF-8 with a bias to what tokenizers trip over.
std::string random_text(base::Rng& rng, std::size_t length) {
  static constexpr std::string_view kCommon = " \t\n\r'sStTlLmMdDaAzZ019.,/<|>-_\"";
  std::string text;
  for (std::size_t i = 0; i < length; ++i) {
    const std::uint64_t kind = rng.next_below(8);
    if (kind < 5) {
      text += kCommon[rng.next_below(kCommon.size())];
      continue;
    }
    static constexpr char32_t kBounds[] = {0x80, 0x3000, 0x110000};
    const char32_t bound = kBounds[kind - 5];
    const auto code_point = static_cast<char32_t>(rng.next_below(bound));
    if (code_point < 0xD800 || code_point > 0xDFFF) append_utf8(code_point, text);
  }
  return text;
}

TEST(Tokenizer, DecodesWhatItEncodedToTheSameText) {
  base::Rng rng(1);
  EncodeScratch scratch;
  for (int round = 0; round < 2000; ++round) {
    const std::string text = random_text(rng, rng.next_below(200));
    for (const Tokenizer* tokenizer : {&tiny(), &o200k()}) {
      const Ids ids = tokenizer->encode(text, {}, scratch).value();
      ASSERT_EQ(tokenizer->decode(ids).value(), text) << "round " << round;
      ASSERT_EQ(tokenizer->encode(text).value(), ids) << "round " << round;
    }
  }
}

TEST(Tokenizer, GivesTheSameIdsFromManyThreads) {
  base::Rng rng(2);
  const std::string text = random_text(rng, 20000) + "<|start|>" + random_text(rng, 20000);
  const Ids expected = o200k().encode(text).value();
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (Ids& result : results) {
    threads.emplace_back([&] { result = o200k().encode(text).value(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ids& result : results) EXPECT_TRUE(result == expected);
}

// The rule of MergeTable, word for word, in quadratic time.
Ids merge_slowly(const Tokenizer& tokenizer, const MergeTable& merges, std::string_view word) {
  std::vector<std::string> parts;
  for (const char byte : word) parts.emplace_back(1, byte);
  const auto id = [&](std::string_view part) { return tokenizer.id_of_token(part).value(); };
  for (;;) {
    std::uint32_t best_rank = MergeTable::kNoRank;
    std::size_t best = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const std::uint32_t rank = merges.rank(id(parts[i]), id(parts[i + 1]));
      if (rank < best_rank) {
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank == MergeTable::kNoRank) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) ids.push_back(id(part));
  return ids;
}

TEST(MergeTable, MergesShortAndLongWordsByTheSameRule) {
  const TokenizerData data =
      parse_tokenizer_json(read_file(golden_path("tiny.tokenizer.json"))).value();
  base::Rng rng(3);
  MergeScratch scratch;
  for (const std::size_t length : {1, 2, 3, 10, 95, 96, 97, 200, 700}) {
    for (const std::string_view alphabet : {"a", "th", "the ", "an oreh"}) {
      std::string word;
      for (std::size_t i = 0; i < length; ++i) word += alphabet[rng.next_below(alphabet.size())];
      Ids ids;
      data.merges.merge_word(word, scratch, ids);
      EXPECT_EQ(ids, merge_slowly(tiny(), data.merges, word)) << word;
    }
  }
}

TEST(Tokenizer, EncodesAWordOfAMegabyteAndGivesItBack) {
  for (const char* part : {"a", "aB", " ", "1", "\xE6\x97\xA5", "=", "A"}) {
    std::string text;
    while (text.size() < 1'000'000) text += part;
    const Ids ids = o200k().encode(text).value();
    EXPECT_TRUE(o200k().decode(ids).value() == text) << part;
  }
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8OrTooLong) {
  const auto bad = tiny().encode("ab\xC3(");
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(bad.error().message(), "the text is not UTF-8: byte 2 of 4 is 0xc3");
  const auto big = tiny().encode(std::string(kMaxTextBytes + 1, 'a'));
  ASSERT_FALSE(big.ok());
  EXPECT_EQ(big.error().code(), ErrorCode::kResourceExhausted);
}

TEST(Tokenizer, RefusesAnIdWithoutAToken) {
  for (const std::int32_t id : {-1, 1024, 1 << 30}) {
    EXPECT_FALSE(tiny().decode(Ids{64, id}).ok());
    EXPECT_FALSE(tiny().token_bytes(id).ok());
    EXPECT_FALSE(tiny().is_special(id));
  }
}

std::string stream(const Tokenizer& tokenizer, const Ids& ids, DecodeOptions options) {
  StreamDecoder decoder(tokenizer, options);
  std::string text;
  for (const std::int32_t id : ids) {
    const std::string part = decoder.push(id).value();
    EXPECT_EQ(find_invalid_utf8(part), std::string::npos);
    text += part;
  }
  return text + decoder.finish();
}

TEST(StreamDecoder, GivesTheTextOfTheWholeForRandomIds) {
  base::Rng rng(4);
  for (int round = 0; round < 2000; ++round) {
    const Tokenizer& tokenizer = round % 2 == 0 ? tiny() : o200k();
    Ids ids;
    for (std::uint64_t i = rng.next_below(40); i > 0; --i) {
      // Half of them from the bytes that begin or continue a code point.
      const std::uint64_t bound = rng.next_below(2) == 0 ? 256 : tokenizer.vocab_size();
      ids.push_back(static_cast<std::int32_t>(rng.next_below(bound)));
    }
    for (const bool skip_special : {false, true}) {
      const DecodeOptions options = {.skip_special = skip_special};
      EXPECT_EQ(stream(tokenizer, ids, options), tokenizer.decode(ids, options).value());
    }
  }
}

TEST(StreamDecoder, HoldsACodePointBackUntilItsLastByte) {
  const Ids ids = tiny().encode("\xF0\x9F\x98\x80!").value();
  ASSERT_EQ(ids.size(), 5u);
  StreamDecoder decoder(tiny());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(decoder.push(ids[static_cast<std::size_t>(i)]).value(), "");
  EXPECT_FALSE(decoder.push(-1).ok()) << "which changes nothing";
  EXPECT_EQ(decoder.push(ids[3]).value(), "\xF0\x9F\x98\x80");
  EXPECT_EQ(decoder.push(ids[0]).value(), "");
  EXPECT_EQ(decoder.push(ids[4]).value(), "\xEF\xBF\xBD!");
  EXPECT_EQ(decoder.push(ids[0]).value(), "");
  EXPECT_EQ(decoder.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(decoder.finish(), "");
}

}  // namespace
}  // namespace holdfast::tokenizer
