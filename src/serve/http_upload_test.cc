// Uploads over real sockets on loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "serve/http.h"
#include "serve/http_client_test.h"

namespace holdfast::serve {
namespace {

using ::testing::HasSubstr;

// What all uploads of a test have been given.
struct Record {
  std::mutex mutex;
  std::condition_variable changed;
  std::string bytes, trailer;
  int finished = 0, gone = 0, destroyed = 0, calls = 0;
  bool block = false;         // in data()
  std::size_t stop_at = 0;    // data() is false from this many bytes on; 0: never
  std::size_t refuse_at = 0;  // answers there, and goes on reading
  std::atomic<int> inside{0};

  template <typename Predicate>
  bool wait(Predicate predicate) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::minutes(1), predicate);
  }
};

class RecordingUpload final : public Upload {
 public:
  RecordingUpload(Record& record, ResponderPtr responder)
      : record_(record), responder_(std::move(responder)) {}
  ~RecordingUpload() override {
    const std::lock_guard lock(record_.mutex);
    ++record_.destroyed;
    record_.changed.notify_all();
  }

  bool data(std::span<const std::byte> bytes) override {
    EXPECT_EQ(record_.inside.fetch_add(1), 0) << "two calls at once";
    std::unique_lock lock(record_.mutex);
    record_.bytes.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    ++record_.calls;
    record_.changed.notify_all();
    record_.changed.wait(lock, [&] { return !record_.block; });
    record_.inside.fetch_sub(1);
    if (record_.refuse_at > 0 && record_.bytes.size() >= record_.refuse_at) {
      responder_->reply(409, "text/plain", "refused");
    }
    if (record_.stop_at == 0 || record_.bytes.size() < record_.stop_at) return true;
    responder_->reply(409, "text/plain", "stopped");
    return false;
  }
  void finish(const std::map<std::string, std::string>& trailers) override {
    std::size_t count = 0;
    {
      const std::lock_guard lock(record_.mutex);
      const auto found = trailers.find("x-content-digest");
      if (found != trailers.end()) record_.trailer = found->second;
      ++record_.finished;
      record_.changed.notify_all();
      count = record_.bytes.size();
    }
    responder_->reply(200, "text/plain", std::to_string(count));
  }
  void gone() override {
    const std::lock_guard lock(record_.mutex);
    ++record_.gone;
    record_.changed.notify_all();
  }

 private:
  Record& record_;
  ResponderPtr responder_;
};

class HttpUploadTest : public ::testing::Test {
 protected:
  void start(HttpLimits limits = {}) {
    router_.add_upload("POST", "/push", [this](const HttpRequest&, ResponderPtr responder) {
      return std::make_unique<RecordingUpload>(record_, std::move(responder));
    });
    router_.add_upload("POST", "/never", [](const HttpRequest&, const ResponderPtr& responder) {
      reply_error(*responder, 409, "nothing is open");
      return std::unique_ptr<Upload>();
    });
    router_.add("POST", "/both", [](const HttpRequest& request, const ResponderPtr& responder) {
      responder->reply(200, "text/plain", "json " + request.body);
    });
    router_.add_upload("POST", "/both", [this](const HttpRequest&, ResponderPtr responder) {
      return std::make_unique<RecordingUpload>(record_, std::move(responder));
    });
    HttpServer::Options options;
    options.limits = limits;
    HttpListener listener;
    listener.name = "control";
    listener.router = &router_;
    auto server = HttpServer::start({listener}, std::move(options));
    ASSERT_TRUE(server.ok()) << server.error().message();
    server_ = std::move(server).value();
    port_ = server_->port("control");
  }
  static std::string head(std::size_t length, const std::string& path = "/push",
                          const std::string& fields = "") {
    return "POST " + path + " HTTP/1.1\r\nHost: a\r\n" + fields +
           "Content-Length: " + std::to_string(length) + "\r\n\r\n";
  }

  Record record_;
  Router router_;
  std::uint16_t port_ = 0;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpUploadTest, AChunkedBodyComesInOrderWithItsTrailers) {
  start();
  RawClient client(port_);
  client.send("POST /push HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  std::string expected;
  for (int i = 0; i < 100; ++i) {
    const std::string part = std::to_string(i) + std::string(1000, 'x');
    expected += part;
    char size[16];
    std::snprintf(size, sizeof size, "%zx\r\n", part.size());
    client.send(size + part + "\r\n");
  }
  client.send("0\r\nX-Content-Digest: xxh3-128=1\r\n\r\n");
  EXPECT_EQ(client.answer().body, std::to_string(expected.size()));
  EXPECT_TRUE(record_.bytes == expected);
  EXPECT_EQ(record_.trailer, "xxh3-128=1");
  EXPECT_EQ(record_.gone, 0);
  client.send(head(3) + "abc");  // the connection goes on
  EXPECT_EQ(client.answer().status, 200);
  EXPECT_EQ(record_.finished, 2);
}

TEST_F(HttpUploadTest, ABodyThatIsLargerThanAnyBufferIsReadNoFasterThanItIsTaken) {
  start();
  record_.block = true;
  RawClient client(port_);
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  client.send(head(kBytes));
  const std::string part(std::size_t{1} << 20, 'x');
  std::size_t sent = client.send_what_fits(part);
  ASSERT_TRUE(record_.wait([&] { return record_.calls == 1; }));
  // While the upload blocks, what can be sent is bounded: ours and the systems' buffers.
  for (std::size_t more = 1; more > 0 && sent < kBytes; sent += more) {
    more = client.send_what_fits(part);
  }
  EXPECT_LT(sent, kBytes);
  {
    const std::lock_guard lock(record_.mutex);
    record_.block = false;
    record_.changed.notify_all();
  }
  client.send(std::string(kBytes - sent, 'x'));
  EXPECT_EQ(client.answer().body, std::to_string(kBytes));
}

TEST_F(HttpUploadTest, AnUploadMayStopInTheMiddleAndItsAnswerArrives) {
  start();
  record_.stop_at = 1000;
  RawClient client(port_);
  client.send(head(std::size_t{4} << 20));
  client.send(std::string(2000, 'x'));
  const Answer answer = client.answer();
  EXPECT_EQ(answer.status, 409);
  EXPECT_EQ(answer.body, "stopped");
  EXPECT_TRUE(answer.has("connection: close"));
  EXPECT_TRUE(record_.wait([&] { return record_.destroyed == 1; }));
  EXPECT_EQ(record_.gone, 0);
  EXPECT_EQ(record_.finished, 0);
}

TEST_F(HttpUploadTest, AnAnswerBeforeTheEndOfTheBodyEndsTheConnection) {
  start();
  record_.refuse_at = 1;
  RawClient client(port_);
  client.send(head(1000) + "x");
  EXPECT_EQ(client.answer().status, 409);
  EXPECT_TRUE(client.closed());
  EXPECT_TRUE(record_.wait([&] { return record_.destroyed == 1; }));
  EXPECT_EQ(record_.gone, 1);
}

TEST_F(HttpUploadTest, ARefusedUploadIsNotReadAtAll) {
  start();
  RawClient client(port_);
  client.send(head(std::size_t{1} << 40, "/never", "Expect: 100-continue\r\n"));
  const Answer answer = client.answer();
  EXPECT_EQ(answer.status, 409);
  EXPECT_THAT(answer.body, HasSubstr("nothing is open"));
  EXPECT_TRUE(client.closed());
}

TEST_F(HttpUploadTest, APathWithBothTakesJsonWholeAndOtherBodiesAsTheyCome) {
  start();
  RawClient client(port_);
  client.send(head(2, "/both", "Content-Type: application/json\r\n") + "{}");
  EXPECT_EQ(client.answer().body, "json {}");
  client.send(head(0, "/both"));
  EXPECT_EQ(client.answer().body, "json ");
  client.send(head(2, "/both") + "{}");
  EXPECT_EQ(client.answer().body, "json {}");
  client.send(head(2, "/both", "Content-Type: application/octet-stream\r\n") + "{}");
  EXPECT_EQ(client.answer().body, "2");
}

TEST_F(HttpUploadTest, AClientThatIsKilledAtAnyByteIsNoticedAndNothingIsFinished) {
  start();
  const std::string request =
      "POST /push HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
      "6\r\n world\r\n0\r\nX-Content-Digest: a\r\n\r\n";
  const std::size_t header = request.find("\r\n\r\n") + 4;
  int expected = 0;
  for (std::size_t cut = 0; cut < request.size(); ++cut) {
    RawClient client(port_);
    client.send(request.substr(0, cut));
    if (cut % 2 == 0) {
      client.half_close();  // the server sees what came before
    } else {
      client.close();
    }
    if (cut >= header) ++expected;
    ASSERT_TRUE(record_.wait([&] { return record_.destroyed == expected; })) << cut;
    ASSERT_EQ(record_.finished, 0) << cut;
    ASSERT_EQ(record_.gone, expected) << cut;
  }
}

TEST_F(HttpUploadTest, WhatIsNotHttpInTheMiddleOfABodyIsRefused) {
  start();
  RawClient client(port_);
  client.send("POST /push HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
              "not a size\r\n");
  EXPECT_EQ(client.answer().status, 400);
  EXPECT_TRUE(record_.wait([&] { return record_.gone == 1 && record_.destroyed == 1; }));
}

TEST_F(HttpUploadTest, ASlowClientIsCutAndASlowUploadIsNot) {
  HttpLimits limits;
  limits.body_timeout_ms = 200;
  start(limits);
  RawClient slow(port_);
  slow.send(head(10) + "x");
  EXPECT_EQ(slow.answer().status, 408);
  EXPECT_TRUE(record_.wait([&] { return record_.gone == 1; }));
  // The client has sent everything that the server reads; it is the upload that keeps it waiting.
  record_.block = true;
  constexpr std::size_t kBytes = kMaxUploadAhead * 8;
  RawClient client(port_);
  std::thread sender([&] {
    client.send(head(kBytes));
    client.send(std::string(kBytes, 'x'));
  });
  ASSERT_TRUE(record_.wait([&] { return record_.calls > 1; }));
  RawClient other(port_);  // its time passes meanwhile
  other.send("POST /none HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n");
  EXPECT_EQ(other.answer().status, 404);
  RawClient timed(port_);
  timed.send("POST /both HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(timed.answer().status, 408);
  {
    const std::lock_guard lock(record_.mutex);
    record_.block = false;
    record_.changed.notify_all();
  }
  sender.join();
  EXPECT_EQ(client.answer().status, 200);
}

TEST_F(HttpUploadTest, EndingTheServerEndsItsUploads) {
  start();
  RawClient client(port_);
  client.send(head(1000) + "some");
  ASSERT_TRUE(record_.wait([&] { return record_.calls == 1; }));
  server_.reset();
  EXPECT_EQ(record_.gone, 1);
  EXPECT_EQ(record_.destroyed, 1);
}

}  // namespace
}  // namespace holdfast::serve
