#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "serve/json_reader.h"
#include "serve/json_writer.h"

namespace holdfast::serve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string written(const auto& value) {
  JsonWriter out;
  out.value(value);
  return out.take();
}

TEST(JsonWriter, WritesObjectsAndArraysWithTheirCommas) {
  JsonWriter out;
  out.begin_object().field("a", 1).key("b").begin_array().value("x").value(true).null();
  out.begin_object().end_object().end_array().field("c", std::uint64_t{18446744073709551615u});
  out.array("d", std::vector<int>{1, -2}).end_object();
  EXPECT_EQ(out.take(),
            R"({"a":1,"b":["x",true,null,{}],"c":18446744073709551615,"d":[1,-2]})");
}

TEST(JsonWriter, FloatsReadBackAsTheSameFloat) {
  for (const float number : {0.1f, -1.2345678f, 1e-30f, 3.4028235e38f, 16777216.0f, -0.0f}) {
    const std::string text = written(number);
    EXPECT_EQ(std::stof(text), number) << text;
    EXPECT_NE(text.find_first_of(".e"), std::string::npos) << text;
  }
  EXPECT_EQ(written(1.0f), "1.0");
  EXPECT_EQ(written(0.1), "0.1");
}

TEST(JsonWriter, WhatIsNoNumberIsNullAndTheLogOfNothingIsFinite) {
  EXPECT_EQ(written(std::nanf("")), "null");
  EXPECT_EQ(written(std::numeric_limits<float>::infinity()), "null");
  JsonWriter out;
  out.logprob(-std::numeric_limits<float>::infinity());
  EXPECT_EQ(out.take(), "-9999.0");
}

TEST(JsonWriter, EscapesAndRepairsText) {
  EXPECT_EQ(written(std::string("a\"\\\n\x01/é🎉\x7f")), "\"a\\\"\\\\\\n\\u0001/é🎉\\u007f\"");
  EXPECT_EQ(written(std::string("x\xff\xe2\x82y")), "\"x\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDy\"");
  EXPECT_EQ(written(std::string("\xed\xa0\x80")).size(), 2 + 3 * 3u);  // half of a surrogate pair
}

TEST(JsonWriter, Base64HasThePaddingOfItsRfc) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
}

std::string parse_error(const std::string& body) {
  JsonDocument document;
  const auto error = JsonDocument::parse(body, document);
  return error ? error->message : "";
}

TEST(JsonDocument, WhatIsNotJsonIsSaid) {
  EXPECT_THAT(parse_error(""), HasSubstr("empty"));
  EXPECT_THAT(parse_error(" \n"), HasSubstr("empty"));
  EXPECT_THAT(parse_error("{"), HasSubstr("not JSON"));
  EXPECT_THAT(parse_error("{} {}"), HasSubstr("not JSON"));
  EXPECT_THAT(parse_error("{\"a\":NaN}"), HasSubstr("not JSON"));
  EXPECT_THAT(parse_error("{\"a\":1e999}"), HasSubstr("not JSON"));
  EXPECT_THAT(parse_error("{\"a\":18446744073709551616}"), HasSubstr("64 bits"));
  EXPECT_THAT(parse_error("{\"a\":\"\xff\"}"), HasSubstr("UTF-8"));
  EXPECT_EQ(parse_error("[1]"), "");
}

TEST(JsonDocument, DepthHasALimit) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(parse_error(nested(kMaxJsonDepth - 1)), "");
  EXPECT_THAT(parse_error(nested(kMaxJsonDepth + 1)), HasSubstr("deeper than 64"));
  EXPECT_THAT(parse_error(nested(1'000'000)), HasSubstr("deeper than 64"));
}

// What `read` finds wrong with a body: "param|message".
std::string wrong(const std::string& body, const auto& read) {
  JsonDocument document;
  if (const auto error = JsonDocument::parse(body, document)) return "|" + error->message;
  RequestErrors errors;
  FieldReader in(document.root(), "", errors);
  read(in);
  in.finish();
  return errors.any() ? errors.first()->param + "|" + errors.first()->message : "";
}

TEST(FieldReader, IntegersAreExact) {
  std::int64_t number = 0;
  const auto read = [&number](FieldReader& in) { in.integer("n", number, {-5, 1 << 20}); };
  EXPECT_EQ(wrong(R"({"n":16.0})", read), "");
  EXPECT_EQ(number, 16);
  EXPECT_EQ(wrong(R"({"n":null})", read), "");
  EXPECT_EQ(number, 16);
  for (const std::string value : {"16.5", "\"16\"", "true", "[]", "{}", "-6", "1e300",
                                  "18446744073709551615"}) {
    EXPECT_THAT(wrong("{\"n\":" + value + "}", read),
                HasSubstr("expected an integer, -5 to 1048576"))
        << value;
  }
  EXPECT_THAT(wrong(R"({"n":16.5})", read), HasSubstr("n|n is 16.5;"));
}

TEST(FieldReader, NumbersHaveRangesAsFloats) {
  float number = 0;
  const auto read = [&number](FieldReader& in) { in.real("p", number, {0, 1, true}); };
  EXPECT_EQ(wrong(R"({"p":1})", read), "");
  EXPECT_EQ(number, 1.0f);
  EXPECT_EQ(wrong(R"({"p":0.1})", read), "");
  EXPECT_EQ(number, 0.1f);
  for (const std::string value : {"0", "1e-60", "1.0001", "-1", "\"1\"", "false"}) {
    EXPECT_THAT(wrong("{\"p\":" + value + "}", read), HasSubstr("expected a number above 0 to 1"))
        << value;
  }
}

TEST(FieldReader, StringsListsAndIdsNameTheElementThatIsWrong) {
  std::vector<std::string> stops;
  const auto strings = [&](FieldReader& in) { in.strings("stop", stops, 2); };
  EXPECT_EQ(wrong(R"({"stop":"a"})", strings), "");
  EXPECT_EQ(wrong(R"({"stop":["b","c"]})", strings), "");
  EXPECT_THAT(stops, ElementsAre("a", "b", "c"));
  EXPECT_THAT(wrong(R"({"stop":["b",""]})", strings), HasSubstr("stop[1]|stop[1] is \"\""));
  EXPECT_THAT(wrong(R"({"stop":["b",3]})", strings), HasSubstr("stop[1] is 3"));
  EXPECT_THAT(wrong(R"({"stop":["a","b","c"]})", strings), HasSubstr("3 strings; at most 2"));
  std::vector<std::int32_t> ids;
  const auto read_ids = [&](FieldReader& in) { in.ids("ids", ids, 3, {0, 9}); };
  EXPECT_EQ(wrong(R"({"ids":[1,2.0]})", read_ids), "");
  EXPECT_THAT(ids, ElementsAre(1, 2));
  EXPECT_THAT(wrong(R"({"ids":[1,10]})", read_ids), HasSubstr("ids[1]|ids[1] is 10; expected an"));
  EXPECT_THAT(wrong(R"({"ids":[1,2,3,4]})", read_ids), HasSubstr("4 entries; at most 3"));
  EXPECT_THAT(wrong(R"({"ids":"1"})", read_ids), HasSubstr("an array of integers"));
}

TEST(FieldReader, ANameThatIsUnknownOrComesTwiceIsRefused) {
  float number = 0;
  const auto read = [&number](FieldReader& in) {
    in.real("temperature", number, {0, 2});
    in.ignore({"user"});
  };
  EXPECT_EQ(wrong(R"({"user":7,"temperature":1})", read), "");
  EXPECT_THAT(wrong(R"({"temprature":1})", read),
              HasSubstr("temprature|temprature is not a field that is known here; did you mean "
                        "temperature?"));
  EXPECT_THAT(wrong(R"({"frobnicate":1})", read), HasSubstr("not a field"));
  EXPECT_EQ(wrong(R"({"frobnicate":null})", read), "");
  EXPECT_THAT(wrong(R"({"temperature":1,"user":1,"temperature":2})", read),
              HasSubstr("temperature comes twice"));
}

TEST(FieldReader, WhatCannotBeHadIsRefusedWhenItAsksForSomething) {
  const auto read = [](FieldReader& in) { in.refuse("suffix", "leave it out", 1); };
  for (const std::string value : {"null", "false", "0", "1", "1.0", "\"\"", "[]", "{}"}) {
    EXPECT_EQ(wrong("{\"suffix\":" + value + "}", read), "") << value;
  }
  for (const std::string value : {"true", "2", "\"x\"", "[0]", "{\"a\":null}"}) {
    EXPECT_THAT(wrong("{\"suffix\":" + value + "}", read), HasSubstr("suffix|suffix is ")) << value;
  }
}

TEST(FieldReader, MessagesAreShortHoweverLongTheValueIs) {
  const auto read = [](FieldReader& in) {
    bool truth = false;
    in.boolean("b", truth);
  };
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += "é";
  EXPECT_LT(wrong("{\"b\":\"" + text + "\"}", read).size(), 200u);
  EXPECT_LT(wrong("{\"" + text + "\":1}", read).size(), 300u);
  EXPECT_THAT(wrong("[]", read), HasSubstr("the body is an array of 0; expected an object"));
}

}  // namespace
}  // namespace holdfast::serve
