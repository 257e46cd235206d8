// The server over real sockets on loopback.
#include "serve/http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "serve/http_client_test.h"

namespace holdfast::serve {
namespace {

using ::testing::HasSubstr;

// Something that happens on another thread, waited for up to a minute.
class Signal {
 public:
  void set() {
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  bool wait(int count = 1) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(1), [&] { return count_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

class HttpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    router_.add("GET", "/hello", [](const HttpRequest& request, const ResponderPtr& responder) {
      responder->reply(200, "text/plain", "hello " + request.query_value("name", "you"));
    }, Access::kOpen);
    router_.add("POST", "/echo", [](const HttpRequest& request, const ResponderPtr& responder) {
      responder->reply(200, "text/plain", request.body, {{"X-Path", request.path}});
    });
    router_.add("GET", "/item/{id}", [](const HttpRequest& request, const ResponderPtr& responder) {
      responder->reply(200, "text/plain", request.parameter + " " + request.id);
    });
    router_.add("GET", "/pending", [this](HttpRequest, ResponderPtr responder) {
      responder->on_gone([this] { gone_.set(); });
      const std::lock_guard lock(mutex_);
      pending_.push_back(std::move(responder));
      arrived_.set();
    });
    router_.add("GET", "/events", [this](HttpRequest, ResponderPtr responder) {
      responder->on_gone([this] { gone_.set(); });
      responder->begin_stream("text/event-stream");
      responder->write("data: 0\n\n");
      const std::lock_guard lock(mutex_);
      pending_.push_back(std::move(responder));
      arrived_.set();
    });
    router_.add("GET", "/dropped", [](HttpRequest, const ResponderPtr&) {});
    router_.add("GET", "/cut", [](HttpRequest, const ResponderPtr& responder) {
      responder->begin_stream("text/plain");
      responder->write("half");
    });
  }

  void start(HttpLimits limits = {}, std::string api_key = "", int io_threads = 2) {
    HttpServer::Options options;
    options.limits = limits;
    options.io_threads = io_threads;
    options.on_answer = [this](const HttpAnswer& answer) {
      const std::lock_guard lock(mutex_);
      answers_.push_back(answer.method + " " + answer.route + " " +
                         std::to_string(answer.status) + (answer.whole ? "" : " cut"));
    };
    HttpListener listener;
    listener.name = "public";
    listener.api_key = std::move(api_key);
    listener.router = &router_;
    auto server = HttpServer::start({listener}, std::move(options));
    ASSERT_TRUE(server.ok()) << server.error().message();
    server_ = std::move(server).value();
  }
  std::uint16_t port() const { return server_->port("public"); }
  ResponderPtr take_pending() {
    arrived_.wait(++taken_);
    const std::lock_guard lock(mutex_);
    ResponderPtr responder = std::move(pending_.back());
    pending_.pop_back();
    return responder;
  }
  // Sends one request on a connection of its own.
  Answer ask(const std::string& request) {
    RawClient client(port());
    client.send(request);
    return client.answer();
  }
  static std::string get(const std::string& target, const std::string& fields = "") {
    return "GET " + target + " HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n";
  }
  static std::string post(const std::string& body) {
    return "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
  }

  Router router_;
  std::mutex mutex_;
  std::vector<ResponderPtr> pending_;
  std::vector<std::string> answers_;
  Signal arrived_, gone_;
  int taken_ = 0;
  std::unique_ptr<HttpServer> server_;  // first to go
};

TEST_F(HttpTest, AnswersARequestAndKeepsTheConnection) {
  start();
  RawClient client(port());
  for (int i = 0; i < 3; ++i) {
    client.send(get("/hello?name=w%C3%A4rld", "X-Request-Id: r-1\r\n"));
    const Answer answer = client.answer();
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "hello w\xc3\xa4rld");
    EXPECT_TRUE(answer.has("x-request-id: r-1\r\n"));
    EXPECT_TRUE(answer.has("content-type: text/plain\r\n"));
    EXPECT_FALSE(answer.has("connection: close"));
  }
}

TEST_F(HttpTest, ARequestInPiecesOfEverySizeIsTheSame) {
  start();
  const std::string request = post("0123456789");
  RawClient client(port());
  for (std::size_t size = 1; size < request.size(); size += 3) {
    for (std::size_t at = 0; at < request.size(); at += size) {
      ASSERT_TRUE(client.send(request.substr(at, size)));
    }
    EXPECT_EQ(client.answer().body, "0123456789") << size;
  }
}

TEST_F(HttpTest, PipelinedRequestsAreAnsweredInOrder) {
  start();
  std::string requests;
  for (int i = 0; i < 50; ++i) requests += get("/item/" + std::to_string(i));
  RawClient client(port());
  client.send(requests + post("last"));
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(client.answer().body.substr(0, std::to_string(i).size()), std::to_string(i));
  }
  EXPECT_EQ(client.answer().body, "last");
}

TEST_F(HttpTest, APipelineThatGrowsTooLongEndsWithTheAnswerThatIsPending) {
  start();
  RawClient client(port());
  client.send(get("/pending"));
  const ResponderPtr responder = take_pending();
  // More than the systems' buffers hold, so that the server must have read most of it.
  client.send(post(std::string(std::size_t{32} << 20, 'x')));
  responder->reply(200, "text/plain", "ok");
  EXPECT_EQ(client.answer().body, "ok");
  EXPECT_TRUE(client.closed());
}

TEST_F(HttpTest, ATrailingSlashAGetWithABodyAndAnEmptyLineBeforeARequestAreTolerated) {
  start();
  RawClient client(port());
  client.send("\r\nGET /hello/ HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_EQ(client.answer().body, "hello you");
  client.send(get("http://a/hello"));
  EXPECT_EQ(client.answer().body, "hello you");
}

TEST_F(HttpTest, Http10ClosesUnlessAskedToStay) {
  start();
  RawClient client(port());
  client.send("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_TRUE(client.answer().has("connection: keep-alive"));
  client.send("GET /hello HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(client.answer().has("connection: close"));
  EXPECT_TRUE(client.closed());
}

TEST_F(HttpTest, AnUnknownPathIs404AndAnotherMethodIs405InOpenAisForm) {
  start();
  RawClient client(port());
  client.send(get("/nothing"));
  Answer answer = client.answer();
  EXPECT_EQ(answer.status, 404);
  EXPECT_THAT(answer.body, HasSubstr("\"code\":404"));
  EXPECT_THAT(answer.body, HasSubstr("there is no /nothing on the public listener"));
  client.send("DELETE /echo HTTP/1.1\r\nHost: a\r\n\r\n");  // the same connection goes on
  answer = client.answer();
  EXPECT_EQ(answer.status, 405);
  EXPECT_TRUE(answer.has("allow: post"));
  EXPECT_THAT(answer.body, HasSubstr("/echo takes POST, not DELETE"));
  client.send(get("/hello?a=%"));
  EXPECT_EQ(client.answer().status, 400);
}

TEST_F(HttpTest, HeadHasTheLengthAndNoBody) {
  start();
  RawClient client(port());
  client.send("HEAD /hello HTTP/1.1\r\nHost: a\r\n\r\n" + get("/hello"));
  const Answer head = client.answer(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_TRUE(head.has("content-length: 9\r\n"));
  EXPECT_EQ(client.answer().body, "hello you");
  client.send("HEAD /events HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(client.answer(true).has("text/event-stream"));
}

TEST_F(HttpTest, AKeyIsAskedForExceptOnOpenRoutes) {
  start({}, "secret");
  EXPECT_EQ(ask(get("/hello")).status, 200);
  const Answer refused = ask(get("/item/1"));
  EXPECT_EQ(refused.status, 401);
  EXPECT_TRUE(refused.has("www-authenticate: bearer"));
  EXPECT_THAT(refused.body, HasSubstr("authentication_error"));
  EXPECT_EQ(ask(get("/item/1", "Authorization: Bearer wrong\r\n")).status, 401);
  EXPECT_EQ(ask(get("/item/1", "Authorization: Bearer secret\r\n")).status, 200);
}

TEST_F(HttpTest, ARequestIdThatCannotStandInALogIsReplaced) {
  start();
  const Answer answer = ask(get("/item/1", "X-Request-Id: a b\"c\r\n"));
  EXPECT_THAT(answer.body, ::testing::MatchesRegex("1 [0-9a-f]+"));
  EXPECT_EQ(answer.body.size(), 34u);
}

TEST_F(HttpTest, ExpectContinueIsAnsweredBeforeTheBody) {
  start();
  RawClient client(port());
  const std::string fields = " HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n"
                             "Expect: 100-continue\r\n\r\n";
  client.send("POST /echo" + fields);
  EXPECT_EQ(client.answer(true).status, 100);
  client.send("body");
  EXPECT_EQ(client.answer().body, "body");
  client.send("POST /none" + fields);
  EXPECT_EQ(client.answer().status, 404);
}

TEST_F(HttpTest, AChunkedBodyIsPutTogether) {
  start();
  EXPECT_EQ(ask("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: 1\r\n\r\n").body, "abcde");
}

// --- limits

TEST_F(HttpTest, WhatIsOverALimitIsRefusedByNumberAndTheConnectionCloses) {
  HttpLimits limits;
  limits.max_header_bytes = 512;
  limits.max_body_bytes = 1000;
  start(limits);
  const std::string large(2000, 'x');
  const std::pair<std::string, int> cases[] = {
      {get("/hello", "X-A: " + large + "\r\n"), 431},
      {get("/" + large), 431},
      {post(large), 413},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + large, 413},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551615\r\n\r\n", 413},
      {"GET / SMTP\r\n\r\n", 505},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
      {"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
  };
  for (const auto& [request, status] : cases) {
    RawClient client(port());
    client.send(request);
    const Answer answer = client.answer();
    EXPECT_EQ(answer.status, status) << request.substr(0, 100);
    EXPECT_TRUE(answer.has("connection: close"));
    EXPECT_THAT(answer.body, HasSubstr("\"code\":" + std::to_string(status)));
    EXPECT_TRUE(client.closed());
  }
  EXPECT_EQ(ask(post(std::string(1000, 'x'))).status, 200);
}

TEST_F(HttpTest, BodiesThatAreComingShareALimit) {
  HttpLimits limits;
  limits.max_buffered_bytes = 1500;
  start(limits);
  RawClient first(port());
  const std::string request = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n"
                              "Expect: 100-continue\r\n\r\n";
  first.send(request);
  EXPECT_EQ(first.answer(true).status, 100);
  first.send(std::string(1000, 'x'));
  // Once the server has read what the first has sent, another thousand are too many.
  while (ask(post(std::string(1000, 'x'))).status == 200) {
  }
  first.send("x");
  EXPECT_EQ(first.answer().status, 200);
  EXPECT_EQ(ask(post(std::string(1000, 'x'))).status, 200);
}

TEST_F(HttpTest, ASlowHeaderASlowBodyAndAnIdleConnectionEnd) {
  HttpLimits limits;
  limits.header_timeout_ms = limits.body_timeout_ms = limits.idle_timeout_ms = 50;
  start(limits);
  RawClient silent(port()), header(port()), body(port()), idle(port());
  header.send("GET /hello HTTP/1.1\r\nHo");
  body.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
  idle.send(get("/hello"));
  EXPECT_EQ(header.answer().status, 408);
  EXPECT_TRUE(header.closed());
  EXPECT_EQ(body.answer().status, 408);
  EXPECT_TRUE(body.closed());
  EXPECT_EQ(idle.answer().status, 200);
  EXPECT_TRUE(idle.closed());
  EXPECT_TRUE(silent.closed());
  EXPECT_EQ(silent.buffer(), "");
}

TEST_F(HttpTest, BytesNowAndThenDoNotHoldAConnection) {
  HttpLimits limits;
  limits.header_timeout_ms = 100;
  start(limits);
  RawClient client(port());
  client.send("GET /hello HTTP/1.1\r\n");
  while (client.send("X: y\r\n")) {  // until the server has closed
  }
  SUCCEED();
}

TEST_F(HttpTest, OneConnectionTooManyIsToldSoAndOthersGoOn) {
  HttpLimits limits;
  limits.max_connections = 2;
  start(limits);
  RawClient first(port()), second(port());
  first.send(get("/hello"));
  second.send(get("/hello"));
  EXPECT_EQ(first.answer().status, 200);
  EXPECT_EQ(second.answer().status, 200);
  RawClient third(port());
  const Answer refused = third.answer();
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.has("retry-after: 1"));
  EXPECT_TRUE(third.closed());
  first.send(get("/hello"));
  EXPECT_EQ(first.answer().status, 200);
}

// --- answers that take their time

TEST_F(HttpTest, AStreamComesAsItIsWritten) {
  start();
  RawClient client(port());
  client.send(get("/events"));
  EXPECT_TRUE(client.receive_until("data: 0\n\n\r\n").has_value());
  const ResponderPtr responder = take_pending();
  EXPECT_TRUE(responder->write("data: 1\n\n"));
  EXPECT_TRUE(client.receive_until("data: 1\n\n\r\n").has_value());
  EXPECT_TRUE(responder->write(""));
  responder->end();
  EXPECT_FALSE(responder->write("late"));
  EXPECT_TRUE(client.receive_until("0\r\n\r\n").has_value());
  client.send(get("/hello"));  // the connection goes on
  EXPECT_EQ(client.answer().body, "hello you");
}

TEST_F(HttpTest, AStreamToHttp10EndsWithTheConnection) {
  start();
  RawClient client(port());
  client.send("GET /events HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const ResponderPtr responder = take_pending();
  responder->write("data: 1\n\n");
  responder->end();
  EXPECT_TRUE(client.closed());
  EXPECT_THAT(client.buffer(), HasSubstr("Connection: close"));
  EXPECT_THAT(client.buffer(), ::testing::EndsWith("\r\n\r\ndata: 0\n\ndata: 1\n\n"));
}

TEST_F(HttpTest, AClientThatGoesAwayIsNoticedWhileItsAnswerIsPending) {
  start();
  for (const char* path : {"/pending", "/events"}) {
    for (const int how : {0, 1, 2}) {
      SCOPED_TRACE(std::string(path) + " " + std::to_string(how));
      RawClient client(port());
      client.send(get(path));
      const ResponderPtr responder = take_pending();
      if (how == 0) client.close();
      if (how == 1) client.reset();
      if (how == 2) client.half_close();
      ASSERT_TRUE(gone_.wait(taken_));
      responder->reply(200, "text/plain", "too late");
      EXPECT_FALSE(responder->write("too late"));
      bool called = false;
      responder->on_gone([&] { called = true; });
      EXPECT_TRUE(called);
    }
  }
}

TEST_F(HttpTest, AClientThatNeverReadsItsStreamIsCut) {
  HttpLimits limits;
  limits.max_unsent_bytes = 64u << 10;
  start(limits);
  RawClient client(port(), 4096);
  client.send(get("/events"));
  const ResponderPtr responder = take_pending();
  const std::string event = "data: " + std::string(4000, 'x') + "\n\n";
  while (responder->write(event)) {  // the system's buffers first, then ours
  }
  EXPECT_TRUE(gone_.wait());
  EXPECT_FALSE(responder->write(event));
}

TEST_F(HttpTest, AClientThatStopsReadingALongAnswerIsCutInTime) {
  HttpLimits limits;
  limits.write_timeout_ms = 50;
  start(limits);
  RawClient client(port(), 4096);
  client.send(get("/pending"));
  const ResponderPtr responder = take_pending();
  responder->reply(200, "text/plain", std::string(std::size_t{64} << 20, 'x'));
  RawClient other(port());
  other.send(get("/hello"));
  EXPECT_EQ(other.answer().status, 200);
  while (server_->connections() > 1) std::this_thread::yield();
}

TEST_F(HttpTest, AClientThatReadsALongAnswerByDropsIsCutInTime) {
  HttpLimits limits;
  limits.reply_timeout_ms = 100;
  start(limits);
  RawClient client(port(), 4096);
  client.send(get("/pending"));
  const ResponderPtr responder = take_pending();
  responder->reply(200, "text/plain", std::string(std::size_t{64} << 20, 'x'));
  // It always reads, and so slowly that it would take an hour: only the whole has a limit.
  std::size_t read = 0;
  while (client.receive_some(64)) read += 64;
  EXPECT_LT(read, std::size_t{64} << 20);
  while (server_->connections() > 0) std::this_thread::yield();
}

TEST_F(HttpTest, AHandlerThatDropsItsResponderAnswers500OrCutsTheStream) {
  start();
  EXPECT_EQ(ask(get("/dropped")).status, 500);
  RawClient client(port());
  client.send(get("/cut"));
  const Answer answer = client.answer();
  EXPECT_THAT(answer.body, ::testing::EndsWith("(cut)"));
}

TEST_F(HttpTest, AnAnswerOfManyMegabytesComesWhole) {
  start();
  std::string body(std::size_t{20} << 20, ' ');
  for (std::size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>('a' + i % 26);
  EXPECT_TRUE(ask(post(body)).body == body);
}

// --- many, and the end

TEST_F(HttpTest, AThousandConnectionsAreServedAtOnce) {
  start();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 1000; ++i) {
    clients.push_back(std::make_unique<RawClient>(port()));
    ASSERT_TRUE(clients.back()->connected());
    clients.back()->send(get("/events"));
  }
  ASSERT_TRUE(arrived_.wait(1000));
  EXPECT_EQ(server_->connections(), 1000u);
  std::vector<ResponderPtr> responders;
  {
    const std::lock_guard lock(mutex_);
    responders.swap(pending_);
  }
  for (const ResponderPtr& responder : responders) {
    responder->write("data: 1\n\n");
    responder->end();
  }
  for (const auto& client : clients) {
    EXPECT_EQ(client->answer().body, "data: 0\n\ndata: 1\n\n");
  }
}

TEST_F(HttpTest, ManyThreadsWriteToTheirStreamsWhileClientsComeAndGo) {
  start();
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([this, i] {
      for (int j = 0; j < 20; ++j) {
        RawClient client(port());
        client.send(get("/events"));
        if ((i + j) % 3 == 0) continue;
        client.receive();
      }
    });
  }
  std::atomic<bool> done = false;
  std::thread writer([&] {
    while (!done) {
      std::vector<ResponderPtr> responders;
      {
        const std::lock_guard lock(mutex_);
        responders.swap(pending_);
      }
      for (const ResponderPtr& responder : responders) {
        for (int k = 0; k < 10; ++k) responder->write("data: x\n\n");
        responder->end();
      }
    }
  });
  for (std::thread& client : clients) client.join();
  done = true;
  writer.join();
}

TEST_F(HttpTest, StoppingToAcceptLetsPendingAnswersEndAndClosesIdleConnections) {
  start();
  RawClient idle(port()), busy(port());
  idle.send(get("/hello"));
  EXPECT_EQ(idle.answer().status, 200);
  busy.send(get("/events"));
  const ResponderPtr responder = take_pending();
  server_->stop_accepting();
  EXPECT_TRUE(idle.closed());
  RawClient late(port());
  EXPECT_FALSE(late.connected() && late.send(get("/hello")) && late.answer().status == 200);
  responder->write("data: 1\n\n");
  responder->end();
  EXPECT_EQ(busy.answer().body, "data: 0\n\ndata: 1\n\n");
  EXPECT_TRUE(busy.closed());
}

TEST_F(HttpTest, WhileItDrainsNewConnectionsAreAnsweredAndClosedAndOnlyOldRequestsArePending) {
  start();
  RawClient busy(port()), idle(port());
  idle.send(get("/hello"));
  EXPECT_EQ(idle.answer().status, 200);
  busy.send(get("/events"));
  const ResponderPtr responder = take_pending();
  // The first answer was on its way before its request had ended.
  while (server_->pending() != 1u) std::this_thread::yield();
  server_->begin_drain();
  for (int i = 0; i < 3; ++i) {
    RawClient late(port());
    late.send(get("/hello"));
    const Answer answer = late.answer();
    EXPECT_EQ(answer.status, 200);
    EXPECT_TRUE(answer.has("connection: close"));
  }
  RawClient waiting(port());
  waiting.send(get("/pending"));
  const ResponderPtr second = take_pending();  // one that came too late to be waited for
  EXPECT_EQ(server_->pending(), 1u);
  responder->end();
  EXPECT_EQ(busy.answer().body, "data: 0\n\n");
  while (server_->pending() > 0) std::this_thread::yield();
  second->reply(200, "text/plain", "late");
  EXPECT_EQ(waiting.answer().body, "late");
}

TEST_F(HttpTest, EndingTheServerCutsWhatIsPendingAndTellsItsHandlers) {
  start();
  RawClient client(port());
  client.send(get("/pending"));
  const ResponderPtr responder = take_pending();
  server_.reset();
  EXPECT_TRUE(gone_.wait());
  EXPECT_TRUE(client.closed());
  responder->reply(200, "text/plain", "nobody");
  EXPECT_EQ(answers_.back(), "GET /pending 0 cut");
}

TEST_F(HttpTest, APortInUseIsNamed) {
  start();
  HttpListener listener;
  listener.name = "control";
  listener.port = port();
  listener.router = &router_;
  const auto second = HttpServer::start({listener}, {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), ErrorCode::kIo);
  EXPECT_THAT(second.error().message(),
              HasSubstr("127.0.0.1:" + std::to_string(port()) + " for the control listener"));
}

}  // namespace
}  // namespace holdfast::serve
