#include "serve/http_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "serve/http.h"
#include "serve/http_format.h"
#include "serve/http_parser.h"

namespace holdfast::serve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// --- the target

Target parsed(std::string_view text) {
  const Result<Target> target = parse_target(text);
  EXPECT_TRUE(target.ok()) << text << ": " << target.error().message();
  return target.ok() ? *target : Target{};
}

TEST(HttpTarget, APathIsDecodedAndLosesItsTrailingSlashes) {
  EXPECT_EQ(parsed("/v1/models").path, "/v1/models");
  EXPECT_EQ(parsed("/v1/models/").path, "/v1/models");
  EXPECT_EQ(parsed("/v1/models///?a=b").path, "/v1/models");
  EXPECT_EQ(parsed("/").path, "/");
  EXPECT_EQ(parsed("///").path, "/");
  EXPECT_EQ(parsed("/a%2Fb%20c+d").path, "/a/b c+d");
}

TEST(HttpTarget, AnAbsoluteTargetIsItsPath) {
  EXPECT_EQ(parsed("http://host:80/pause?mode=keep").path, "/pause");
  EXPECT_EQ(parsed("HTTPS://host").path, "/");
  EXPECT_EQ(parsed("http://host?x=1").path, "/");
  EXPECT_EQ(parsed("http://host?x=1").query.find("x")->second, "1");
}

TEST(HttpTarget, AQueryIsDecodedAndMayRepeatNames) {
  const Target target = parsed("/wake_up?tags=weights&tags=kv%5Fcache&empty&=v&&a+b=c%2Bd=e");
  std::multimap<std::string, std::string> expected = {
      {"tags", "weights"}, {"tags", "kv_cache"}, {"empty", ""}, {"", "v"}, {"a b", "c+d=e"}};
  EXPECT_EQ(target.query, expected);
}

TEST(HttpTarget, WhatIsNoTargetIsRefusedByName) {
  const auto error = [](std::string_view text) {
    const Result<Target> target = parse_target(text);
    EXPECT_FALSE(target.ok()) << text;
    return target.ok() ? std::string() : target.error().message();
  };
  EXPECT_THAT(error("/a%2"), HasSubstr("\"%\" at byte 2 of \"/a%2\""));
  EXPECT_THAT(error("/a%"), HasSubstr("two hex digits"));
  EXPECT_THAT(error("/a?b=%zz"), HasSubstr("two hex digits"));
  EXPECT_THAT(error("/a%00"), HasSubstr("control character (code 0)"));
  EXPECT_THAT(error("/a?b=%0d%0a"), HasSubstr("control character (code 13)"));
  EXPECT_THAT(error("/a#b"), HasSubstr("fragment"));
  EXPECT_THAT(error("*"), HasSubstr("not with a slash"));
  EXPECT_THAT(error("host:443"), HasSubstr("not with a slash"));
  EXPECT_THAT(error("http:///a"), HasSubstr("not with a slash"));
  EXPECT_THAT(error(""), HasSubstr("not with a slash"));
  std::string many = "/?";
  for (std::size_t i = 0; i <= kMaxQueryPairs; ++i) many += "a&";
  EXPECT_THAT(error(many), HasSubstr("more than 256 parameters"));
}

TEST(HttpTarget, ABearerTokenMatchesAsAWholeOnly) {
  EXPECT_TRUE(bearer_matches("Bearer secret", "secret"));
  EXPECT_TRUE(bearer_matches("bearer   secret ", "secret"));
  EXPECT_FALSE(bearer_matches("Bearer secre", "secret"));
  EXPECT_FALSE(bearer_matches("Bearer secrets", "secret"));
  EXPECT_FALSE(bearer_matches("Bearer secretsecret", "secret"));
  EXPECT_FALSE(bearer_matches("Bearer ", "secret"));
  EXPECT_FALSE(bearer_matches("Basic secret", "secret"));
  EXPECT_FALSE(bearer_matches("secret", "secret"));
  EXPECT_FALSE(bearer_matches("", "secret"));
  EXPECT_FALSE(bearer_matches("Bearer ", ""));
}

TEST(HttpTarget, ARequestIdIsTakenOnlyIfItCanStandInALog) {
  EXPECT_EQ(accepted_request_id("chatcmpl-1:a_b.c/d"), "chatcmpl-1:a_b.c/d");
  EXPECT_EQ(accepted_request_id("a b"), "");
  EXPECT_EQ(accepted_request_id("a\"b"), "");
  EXPECT_EQ(accepted_request_id("\xc3\xa4"), "");
  EXPECT_EQ(accepted_request_id(std::string(129, 'a')), "");
  EXPECT_EQ(accepted_request_id(std::string(128, 'a')).size(), 128u);
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(make_request_id());
  EXPECT_EQ(ids.size(), 1000u);
}

// --- texts

TEST(HttpFormat, AnErrorBodyIsJsonWhateverTheMessageHolds) {
  EXPECT_EQ(http_error_body(404, "a \"b\" \\ \n\x01 \xc3\xa4 \xff \xed\xa0\x80", ""),
            "{\"error\":{\"message\":\"a \\\"b\\\" \\\\ \\u000a\\u0001 \xc3\xa4 \xef\xbf\xbd "
            "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\",\"type\":\"not_found_error\",\"param\":null,"
            "\"code\":404}}");
  EXPECT_THAT(http_error_body(400, "m", "top_p"), HasSubstr("\"param\":\"top_p\""));
}

TEST(HttpFormat, AFieldCannotBreakOutOfItsLine) {
  std::string out;
  append_field(out, "X-A", "b\r\nX-C: d\0e");
  EXPECT_EQ(out, "X-A: b  X-C: d\r\n");
}

TEST(HttpFormat, LoopbackIsWhatOnlyThisMachineReaches) {
  for (const char* address : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) {
    EXPECT_TRUE(is_loopback(address)) << address;
  }
  for (const char* address : {"0.0.0.0", "::", "10.0.0.1", "127.evil.example", "example", ""}) {
    EXPECT_FALSE(is_loopback(address)) << address;
  }
}

// --- the router

class RouterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Handler handler = [](HttpRequest, const ResponderPtr&) {};
    router_.add("GET", "/v1/models", handler, Access::kOpen);
    router_.add("POST", "/reload/{id}", handler);
    router_.add("POST", "/reload/plan", handler);
    router_.add("GET", "/reload/{id}", handler);
    router_.add("GET", "/", handler);
  }
  Router router_;
};

TEST_F(RouterTest, AnExactPathGoesBeforeAVariable) {
  EXPECT_EQ(router_.find("POST", "/reload/plan").route->path, "/reload/plan");
  const Router::Match match = router_.find("POST", "/reload/7");
  EXPECT_EQ(match.route->path, "/reload/{id}");
  EXPECT_EQ(match.parameter, "7");
  EXPECT_EQ(router_.find("GET", "/").route->path, "/");
}

TEST_F(RouterTest, AnUnknownPathIs404AndAnotherMethodIs405WithWhatIsAllowed) {
  EXPECT_EQ(router_.find("GET", "/v1/model").status, 404);
  EXPECT_EQ(router_.find("GET", "/v1/models/x").status, 404);
  EXPECT_EQ(router_.find("GET", "/reload").status, 404);
  EXPECT_EQ(router_.find("GET", "/reload/").status, 404);
  EXPECT_EQ(router_.find("GET", "/reload/1/2").status, 404);
  EXPECT_EQ(router_.find("GET", "").status, 404);
  const Router::Match match = router_.find("DELETE", "/reload/7");
  EXPECT_EQ(match.status, 405);
  EXPECT_EQ(match.allow, "POST, GET, HEAD");
  EXPECT_EQ(router_.find("GET", "/reload/plan").status, 405);
}

TEST_F(RouterTest, HeadIsTheGetOfItsPath) {
  EXPECT_EQ(router_.find("HEAD", "/v1/models").route->method, "GET");
  EXPECT_EQ(router_.find("HEAD", "/reload/plan").status, 405);
}

TEST_F(RouterTest, ListsItsPathsInOrder) {
  EXPECT_THAT(router_.paths(), ElementsAre("GET /", "GET /reload/{id}", "GET /v1/models",
                                           "POST /reload/plan", "POST /reload/{id}"));
}

// --- the parser

// Feeds `text` in pieces of `size` as a connection does: what is not taken comes again.
void feed(RequestParser& parser, std::string_view text, std::size_t size, std::string* left) {
  std::string kept;
  while (!text.empty() || !kept.empty()) {
    const std::string_view piece = text.substr(0, size);
    text.remove_prefix(piece.size());
    kept += piece;
    while (!kept.empty()) {
      const auto before = parser.state();
      const std::size_t taken = parser.feed(kept);
      kept.erase(0, taken);
      if (taken == 0 && parser.state() == before) break;
    }
    if (text.empty()) break;
  }
  if (left != nullptr) *left = kept;
}

TEST(RequestParser, IsTheSameInPiecesOfEverySize) {
  const std::string text =
      "POST /reload/push?x=1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nX-A: 1\r\n"
      "x-a: 2\r\nTrailer: X-Content-Digest\r\n\r\n5;ext=\"v\"\r\nhello\r\n1\r\n \r\n5\r\nworld\r\n"
      "0\r\nX-Content-Digest: xxh3-128=00ff\r\n\r\nGET / ";
  for (std::size_t size = 1; size <= text.size(); ++size) {
    RequestParser parser(1024);
    std::string left;
    feed(parser, text, size, &left);
    ASSERT_EQ(parser.state(), RequestParser::State::kDone) << size;
    EXPECT_EQ(parser.head().method, "POST");
    EXPECT_EQ(parser.head().target, "/reload/push?x=1");
    EXPECT_EQ(parser.head().headers.at("x-a"), "1, 2");
    EXPECT_EQ(parser.take_body(), "hello world");
    EXPECT_EQ(parser.trailers().at("x-content-digest"), "xxh3-128=00ff");
    EXPECT_EQ(left, "GET / ");
  }
}

struct BadRequest {
  const char* text;
  int status;
};

class RefusedRequest : public ::testing::TestWithParam<BadRequest> {};

TEST_P(RefusedRequest, IsRefusedInOnePieceAndByteByByte) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{4096}}) {
    RequestParser parser(256);
    feed(parser, GetParam().text, size, nullptr);
    ASSERT_EQ(parser.state(), RequestParser::State::kFailed) << size;
    EXPECT_EQ(parser.failure().status, GetParam().status) << parser.failure().message;
    EXPECT_FALSE(parser.failure().message.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedRequest,
    ::testing::Values(
        BadRequest{"garbage\r\n\r\n", 400}, BadRequest{"\x16\x03\x01\x02\r\n\r\n", 400},
        BadRequest{"GET / HTTP/1.1\r\n\r\n", 400}, BadRequest{"GET / HTTP/2.0\r\n\r\n", 505},
        BadRequest{"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
        BadRequest{"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400},
        BadRequest{"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1x\r\n\r\n", 400},
        BadRequest{"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400},
        BadRequest{"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
                   400},
        BadRequest{"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n"
                   "Transfer-Encoding: chunked\r\n\r\n", 400},
        BadRequest{"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
                   "Content-Length: 1\r\n\r\n", 400},
        BadRequest{"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
        BadRequest{"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
        BadRequest{"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        BadRequest{"POST / HTTP/1.1\r\nHost: a\r\nExpect: miracles\r\n\r\n", 417},
        BadRequest{"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
        BadRequest{"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                   "ffffffffffffffffff\r\n", 400},
        BadRequest{"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                   "1\r\nabcdef\r\n", 400}));

TEST(RequestParser, AHeaderOverTheLimitIsRefusedHoweverItComes) {
  std::string fields = "GET / HTTP/1.1\r\nHost: a\r\n";
  for (int i = 0; i < 40; ++i) fields += "X-Field: 0123456789\r\n";
  const std::string line = "GET /" + std::string(600, 'a');
  const std::string chunk = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;" +
                            std::string(600, 'a');
  const std::string trailer =
      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: " +
      std::string(600, 'a');
  for (const std::string& text : {fields, line, chunk, trailer}) {
    for (const std::size_t size : {1u, 7u, 100u, 4096u}) {
      RequestParser parser(512);
      feed(parser, text, size, nullptr);
      ASSERT_EQ(parser.state(), RequestParser::State::kFailed) << size << text;
      EXPECT_EQ(parser.failure().status, 431) << parser.failure().message;
    }
  }
}

}  // namespace
}  // namespace holdfast::serve
