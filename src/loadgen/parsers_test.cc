#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/rng.h"
#include "loadgen/http_response.h"
#include "loadgen/sse.h"
#include "loadgen/statistics.h"

namespace holdfast::loadgen {
namespace {

TEST(Statistics, PercentilesAreLinearBetweenNeighbours) {
  const std::vector<double> values = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(percentile(values, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(values, 50), 2.5);
  EXPECT_DOUBLE_EQ(percentile(values, 90), 3.7);
  EXPECT_DOUBLE_EQ(percentile(values, 100), 4);
  EXPECT_DOUBLE_EQ(percentile({}, 50), 0);
  EXPECT_DOUBLE_EQ(percentile(std::vector<double>{7}, 99), 7);
}

TEST(Statistics, ASummaryDoesNotNeedSortedValues) {
  const std::vector<double> percents = {50, 99.9};
  const Summary summary = summarise({4, 1, 3, 2}, percents);
  EXPECT_DOUBLE_EQ(summary.mean, 2.5);
  EXPECT_DOUBLE_EQ(summary.median, 2.5);
  EXPECT_DOUBLE_EQ(summary.deviation, std::sqrt(1.25));
  EXPECT_DOUBLE_EQ(summary.least, 1);
  EXPECT_DOUBLE_EQ(summary.most, 4);
  ASSERT_EQ(summary.percentiles.size(), 2u);
  EXPECT_NEAR(summary.percentiles[1], 3.997, 1e-9);
}

TEST(Statistics, ASummaryOfNothingIsZero) {
  const std::vector<double> percents = {90};
  const Summary summary = summarise({}, percents);
  EXPECT_EQ(summary.count, 0u);
  EXPECT_EQ(summary.percentiles, std::vector<double>{0});
}

TEST(Statistics, PercentileNamesHaveNoSpareZeros) {
  EXPECT_EQ(percentile_name(99), "p99");
  EXPECT_EQ(percentile_name(99.9), "p99.9");
}

// All events of `text`, given in pieces that end at `cuts`.
std::vector<std::string> events_of(std::string_view text, const std::vector<std::size_t>& cuts) {
  SseParser parser;
  std::vector<std::string> out;
  const auto take = [&](std::string_view data) { out.emplace_back(data); };
  std::size_t from = 0;
  for (const std::size_t cut : cuts) {
    EXPECT_TRUE(parser.push(text.substr(from, cut - from), take).ok());
    from = cut;
  }
  EXPECT_TRUE(parser.push(text.substr(from), take).ok());
  return out;
}

TEST(Sse, EventsAreTheSameWhereverTheBytesAreCut) {
  const std::string text =
      "\xEF\xBB\xBF: a comment\ndata: {\"a\": 1}\n\nevent: x\nid: 7\ndata:two\r\ndata: lines\r\n"
      "\r\ndata\n\ndata:  space\r\rdata: [DONE]\n\ndata: never ended";
  const std::vector<std::string> expected = {"{\"a\": 1}", "two\nlines", "", " space", "[DONE]"};
  EXPECT_EQ(events_of(text, {}), expected);
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(events_of(text, {cut}), expected) << cut;
  }
  std::vector<std::size_t> every(text.size());
  for (std::size_t i = 0; i < every.size(); ++i) every[i] = i;
  EXPECT_EQ(events_of(text, every), expected);
}

TEST(Sse, EmptyLinesAloneAreNoEvents) {
  EXPECT_TRUE(events_of("\n\n\r\n\n: only comments\n\nretry: 5\n\n", {}).empty());
}

TEST(Sse, SaysWhetherAnEventIsUnfinished) {
  SseParser parser;
  const auto ignore = [](std::string_view) {};
  EXPECT_FALSE(parser.in_event());
  ASSERT_TRUE(parser.push("data: x\n", ignore).ok());
  EXPECT_TRUE(parser.in_event());
  ASSERT_TRUE(parser.push("\n", ignore).ok());
  EXPECT_FALSE(parser.in_event());
}

TEST(Sse, AnEventWithoutEndIsRefusedAtTheLimit) {
  SseParser parser;
  const std::string part = "data: " + std::string(std::size_t{1} << 20, 'x') + "\n";
  Status status;
  std::size_t pushed = 0;
  while (status.ok() && pushed < 2 * kMaxEventBytes) {
    status = parser.push(part, [](std::string_view) {});
    pushed += part.size();
  }
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kResourceExhausted);
}

struct Read {
  std::string body;
  std::size_t used = 0;
  Status status = {};
};

// Feeds `text` in pieces that end at `cuts`, up to where the response is complete.
Read read(ResponseParser& parser, std::string_view text, const std::vector<std::size_t>& cuts) {
  Read out;
  std::vector<std::size_t> ends = cuts;
  ends.push_back(text.size());
  for (const std::size_t end : ends) {
    while (out.used < end && !parser.complete()) {
      const Result<std::size_t> used =
          parser.push(text.substr(out.used, end - out.used),
                      [&](std::string_view part) { out.body += part; });
      if (!used.ok()) {
        out.status = used.error();
        return out;
      }
      out.used += *used;
    }
  }
  return out;
}

constexpr std::string_view kChunked =
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    "Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nX-Late: 1\r\n\r\n";

TEST(HttpResponse, AChunkedBodyIsTheSameWhereverItIsCut) {
  for (std::size_t cut = 0; cut <= kChunked.size(); ++cut) {
    ResponseParser parser;
    const Read got = read(parser, kChunked, {cut});
    ASSERT_TRUE(got.status.ok()) << cut << got.status.error().message();
    EXPECT_TRUE(parser.complete()) << cut;
    EXPECT_EQ(got.body, "hello world") << cut;
    EXPECT_EQ(parser.status(), 200);
    EXPECT_EQ(parser.header("content-type"), "text/event-stream");
    EXPECT_TRUE(parser.keeps_connection());
  }
}

TEST(HttpResponse, BytesAfterTheBodyAreLeftForTheNextResponse) {
  ResponseParser parser;
  const std::string text = "HTTP/1.1 429 No\r\nContent-Length: 2\r\nRetry-After: 3\r\n\r\nabX";
  const Read got = read(parser, text, {});
  EXPECT_EQ(got.used, text.size() - 1);
  EXPECT_EQ(got.body, "ab");
  EXPECT_EQ(parser.header("retry-after"), "3");
}

TEST(HttpResponse, WithoutALengthTheBodyEndsWithTheConnection) {
  ResponseParser parser;
  const Read got = read(parser, "HTTP/1.0 200 OK\r\n\r\nall of it", {});
  EXPECT_EQ(got.body, "all of it");
  EXPECT_FALSE(parser.complete());
  EXPECT_TRUE(parser.end_of_connection().ok());
  EXPECT_TRUE(parser.complete());
  EXPECT_FALSE(parser.keeps_connection());
}

TEST(HttpResponse, AConnectionThatEndsEarlyIsAnError) {
  for (const std::string_view text : {std::string_view(), kChunked.substr(0, kChunked.size() - 1),
                                      kChunked.substr(0, 30)}) {
    ResponseParser parser;
    (void)read(parser, text, {});
    const Status status = parser.end_of_connection();
    ASSERT_FALSE(status.ok()) << text;
    EXPECT_EQ(status.error().code(), ErrorCode::kIo);
  }
}

TEST(HttpResponse, CloseAndBodilessStatusesAreUnderstood) {
  ResponseParser closing;
  (void)read(closing, "HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n", {});
  EXPECT_TRUE(closing.complete());
  EXPECT_FALSE(closing.keeps_connection());
  ResponseParser bodiless;
  (void)read(bodiless, "HTTP/1.1 204 No Content\r\n\r\n", {});
  EXPECT_TRUE(bodiless.complete());
}

TEST(HttpResponse, WhatIsNoResponseIsRefused) {
  for (const std::string& text : std::vector<std::string>{
           "SSH-2.0-OpenSSH\r\n\r\n", "HTTP/1.1 abc OK\r\n\r\n", "HTTP/1.1 200\r\nno colon\r\n\r\n",
           "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
           "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
           "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
           "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
           "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
           "HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'x')}) {
    ResponseParser parser;
    EXPECT_FALSE(read(parser, text, {}).status.ok()) << text.substr(0, 80);
  }
}

TEST(HttpResponse, RandomBytesNeverStallTheReader) {
  base::Rng rng(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text(kChunked);
    for (int change = 0; change < 3; ++change) {
      text[rng.next_below(text.size())] = static_cast<char>(rng.next_below(256));
    }
    ResponseParser parser;
    const Read got = read(parser, text, {rng.next_below(text.size())});
    EXPECT_TRUE(parser.complete() || !got.status.ok() || got.used == text.size());
  }
}

}  // namespace
}  // namespace holdfast::loadgen
