#include "loadgen/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <nlohmann/json.hpp>

#include "loadgen/bench.h"
#include "loadgen/check.h"
#include "loadgen/scripted_server.h"

namespace holdfast::loadgen {
namespace {

using Json = nlohmann::json;
using Seen = ScriptedServer::Seen;
using Writer = ScriptedServer::Writer;

const std::string kStreamHeader =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

std::string chunk(const std::string& text) {
  return fmt::format("{:x}\r\n{}\r\n", text.size(), text);
}
std::string event(const Json& json) { return chunk("data: " + json.dump() + "\n\n"); }
std::string whole(int status, const std::string& body, const std::string& fields = "") {
  return fmt::format("HTTP/1.1 {} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}"
                     "\r\n{}", status, body.size(), fields, body);
}
Json token_event(std::int32_t id) {
  return {{"choices", {{{"index", 0}, {"text", "x"}, {"token_ids", {id}},
                        {"finish_reason", nullptr}}}}};
}
Json end_event(const Json& spans) {
  return {{"choices", {{{"index", 0}, {"text", ""}, {"token_ids", Json::array()},
                        {"finish_reason", "length"}, {"weight_versions", spans}}}}};
}
Json usage_event(std::int64_t tokens) {
  return {{"choices", Json::array()},
          {"usage", {{"prompt_tokens", 4}, {"completion_tokens", tokens}}}};
}
Json one_span(std::int64_t tokens) {
  return Json::array({{{"version", "default"}, {"epoch", 1}, {"start", 0}, {"end", tokens}}});
}

// The tokens 0, 1, 2, ... of a completion, as one text.
std::string completion(std::int64_t tokens) {
  std::string out = kStreamHeader;
  for (std::int32_t id = 0; id < tokens; ++id) out += event(token_event(id));
  out += event(end_event(one_span(tokens))) + event(usage_event(tokens));
  return out + chunk("data: [DONE]\n\n") + "0\r\n\r\n";
}

BenchOptions options_for(const ScriptedServer& server, std::int64_t prompts = 1) {
  BenchOptions out;
  out.base_url = server.url();
  out.model = "tiny";
  out.prompts = prompts;
  out.input_len = 4;
  out.output_len = 3;
  out.ignore_eos = true;
  out.check = true;
  return out;
}

Outcome only_outcome(const BenchOptions& options) {
  const Result<RunResult> result = run(options);
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message());
  if (!result.ok() || result->outcomes.size() != 1) return {};
  return result->outcomes.front();
}

TEST(Run, AStreamIsTheSameWhereverItsBytesAreCut) {
  const std::string text = completion(3);
  std::atomic<std::size_t> cut = 0;
  ScriptedServer server([&](const Seen&, Writer& writer) {
    return writer.write(text.substr(0, cut)) && writer.write(text.substr(cut));
  });
  const BenchOptions options = options_for(server);
  for (cut = 1; cut < text.size(); cut += 7) {
    const Outcome outcome = only_outcome(options);
    ASSERT_TRUE(outcome.completed()) << cut << outcome.error;
    EXPECT_EQ(outcome.ids, (std::vector<std::int32_t>{0, 1, 2}));
    EXPECT_EQ(outcome.token_times_s.size(), 3u);
    EXPECT_EQ(outcome.finish_reason, "length");
    EXPECT_EQ(outcome.usage_completion_tokens, 3);
    EXPECT_EQ(outcome.spans,
              (std::vector<VersionSpan>{{.version = "default", .epoch = 1, .start = 0, .end = 3}}));
  }
}

TEST(Run, AStreamThatIsCutOffFailsAtEveryByte) {
  const std::string text = completion(3);
  std::atomic<std::size_t> cut = 0;
  ScriptedServer server([&](const Seen&, Writer& writer) {
    (void)writer.write(text.substr(0, cut));
    return false;
  });
  const BenchOptions options = options_for(server);
  for (cut = 0; cut < text.size(); cut += 11) {
    const Outcome outcome = only_outcome(options);
    EXPECT_FALSE(outcome.completed()) << cut;
    EXPECT_THAT(outcome.error, testing::HasSubstr("closed the connection")) << cut;
  }
}

TEST(Run, AStreamWithoutItsEndMarkFails) {
  ScriptedServer server([](const Seen&, Writer& writer) {
    return writer.write(kStreamHeader + event(token_event(1)) + "0\r\n\r\n");
  });
  EXPECT_EQ(only_outcome(options_for(server)).error, "the stream ended without [DONE]");
}

TEST(Run, AnErrorInsideAStreamIsTheOutcomesError) {
  ScriptedServer server([](const Seen&, Writer& writer) {
    return writer.write(kStreamHeader + event(token_event(1)) +
                        event({{"error", {{"message", "poisoned: no tokens"}}}}) + "0\r\n\r\n");
  });
  EXPECT_EQ(only_outcome(options_for(server)).error, "in the stream: poisoned: no tokens");
}

TEST(Run, A429IsTriedAgainAfterTheTimeThatItNames) {
  std::atomic<int> refusals = 2;
  ScriptedServer server([&](const Seen&, Writer& writer) {
    if (refusals-- > 0) {
      return writer.write(whole(429, R"({"error":{"message":"full"}})", "Retry-After: 0\r\n"));
    }
    return writer.write(completion(3));
  });
  const Outcome outcome = only_outcome(options_for(server));
  EXPECT_TRUE(outcome.completed()) << outcome.error;
  EXPECT_EQ(outcome.retries, 2);
}

TEST(Run, A429ThatNeverEndsIsAFailureWithItsMessage) {
  ScriptedServer server([](const Seen&, Writer& writer) {
    return writer.write(whole(429, R"({"error":{"message":"full"}})", "Retry-After: 0\r\n"));
  });
  BenchOptions options = options_for(server);
  options.max_retries = 3;
  const Outcome outcome = only_outcome(options);
  EXPECT_EQ(outcome.error, "HTTP 429: full");
  EXPECT_EQ(outcome.retries, 3);
}

TEST(Run, AKeptConnectionThatTheServerClosedIsOpenedAnew) {
  ScriptedServer server([](const Seen& seen, Writer& writer) {
    if (seen.on_connection > 0) return false;  // as a server whose idle time is up
    return writer.write(completion(3));
  });
  BenchOptions options = options_for(server, 3);
  options.max_concurrency = 1;
  const Result<RunResult> result = run(options);
  ASSERT_TRUE(result.ok());
  for (const Outcome& outcome : result->outcomes) EXPECT_TRUE(outcome.completed());
}

TEST(Run, AServerThatSaysNothingIsGivenUp) {
  ScriptedServer server([](const Seen&, Writer& writer) {
    writer.wait_for_close();
    return false;
  });
  BenchOptions options = options_for(server);
  options.timeout_s = 0.05;
  EXPECT_THAT(only_outcome(options).error, testing::HasSubstr("nothing came for 0.05 s"));
}

TEST(Run, AServerThatIsNotThereIsAnOutcomeAndNoHang) {
  std::string url;
  {
    ScriptedServer server([](const Seen&, Writer&) { return false; });
    url = server.url();
  }
  BenchOptions options;
  options.base_url = url;
  options.model = "tiny";
  options.prompts = 100;  // more than are connected at one time
  const Result<RunResult> result = run(options);
  ASSERT_TRUE(result.ok());
  for (const Outcome& outcome : result->outcomes) {
    EXPECT_THAT(outcome.error, testing::HasSubstr("cannot connect"));
  }
}

TEST(Run, MoreRequestsThanConnectAtOneTimeAllEnd) {
  ScriptedServer server([](const Seen&, Writer& writer) { return writer.write(completion(3)); });
  const Result<RunResult> result = run(options_for(server, 500));
  ASSERT_TRUE(result.ok());
  for (const Outcome& outcome : result->outcomes) EXPECT_TRUE(outcome.completed());
}

TEST(Run, NoMoreRequestsAreOpenThanAllowedAndConnectionsAreKept) {
  std::atomic<int> open = 0, most = 0, reused = 0;
  ScriptedServer server([&](const Seen& seen, Writer& writer) {
    const int now = ++open;
    int before = most;
    while (now > before && !most.compare_exchange_weak(before, now)) {}
    reused += seen.on_connection > 0 ? 1 : 0;
    --open;
    return writer.write(completion(3));
  });
  BenchOptions options = options_for(server, 60);
  options.max_concurrency = 3;
  const Result<RunResult> result = run(options);
  ASSERT_TRUE(result.ok());
  EXPECT_LE(most, 3);
  EXPECT_EQ(result->most_streams, 3);
  EXPECT_LE(result->most_connections, 3u);
  EXPECT_GE(reused, 57);
}

TEST(Run, TheModelIsTheFirstThatTheServerNames) {
  std::string asked_for;
  ScriptedServer server([&](const Seen& seen, Writer& writer) {
    if (seen.path == "/v1/models") return writer.write(whole(200, R"({"data":[{"id":"m1"}]})"));
    asked_for = Json::parse(seen.body).at("model");
    return writer.write(completion(3));
  });
  BenchOptions options = options_for(server);
  options.model = "";
  EXPECT_TRUE(only_outcome(options).completed());
  EXPECT_EQ(asked_for, "m1");
}

// A model whose next token depends on the weights and on all tokens before; its weights are
// replaced by POST /update_weights. Token i of a stream waits for reload i / segment, so that every
// stream lies across every commit.
class FakeEngine {
 public:
  explicit FakeEngine(std::int64_t segment) : segment_(segment) {}

  bool operator()(const Seen& seen, Writer& writer) {
    if (seen.path == "/update_weights") return update(seen, writer);
    return generate(Json::parse(seen.body), writer);
  }
  void forget_keys() { wrong_after_commit_ = true; }
  std::vector<std::string> loaded() {
    const std::lock_guard lock(mutex_);
    return loaded_;
  }
  std::string refuse;  // the reload of this label
  std::string token;

 private:
  bool update(const Seen& seen, Writer& writer) {
    const Json body = Json::parse(seen.body);
    const std::string version = body.at("weight_version");
    if (version == refuse) return writer.write(whole(409, R"({"error":{"message":"no such"}})"));
    if (!token.empty() && seen.header.find("Bearer " + token) == std::string::npos) {
      return writer.write(whole(401, R"({"error":{"message":"token"}})"));
    }
    const std::lock_guard lock(mutex_);
    loaded_.push_back(std::string(body.at("weight_dir")));
    version_ = version;
    ++epoch_;
    changed_.notify_all();
    return writer.write(whole(200, R"({"status":"ok"})"));
  }
  std::int32_t next_token(const std::vector<std::int32_t>& tokens, std::size_t since_commit) {
    std::uint64_t hash = std::hash<std::string>()(loaded_.empty() ? "" : loaded_.back());
    for (const std::int32_t id : tokens) hash = hash * 31 + static_cast<std::uint64_t>(id);
    if (wrong_after_commit_ && epoch_ == 3) hash += since_commit;
    return static_cast<std::int32_t>(hash % 997);
  }
  bool generate(const Json& body, Writer& writer) {
    std::vector<std::int32_t> tokens = body.at("prompt");
    const std::int64_t count = body.at("max_tokens");
    if (!writer.write(kStreamHeader)) return false;
    Json spans = Json::array();
    for (std::int64_t i = 0; i < count; ++i) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return epoch_ >= 1 + static_cast<std::uint64_t>(i / segment_); });
      tokens.push_back(next_token(tokens, static_cast<std::size_t>(i)));
      if (spans.empty() || spans.back()["epoch"] != epoch_) {
        spans.push_back({{"version", version_}, {"epoch", epoch_}, {"start", i}, {"end", i}});
      }
      spans.back()["end"] = i + 1;
      lock.unlock();
      if (!writer.write(event(token_event(tokens.back())))) return false;
    }
    return writer.write(event(end_event(spans)) + event(usage_event(count)) +
                        chunk("data: [DONE]\n\n") + "0\r\n\r\n");
  }

  const std::int64_t segment_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string version_ = "default";
  std::uint64_t epoch_ = 0;
  std::vector<std::string> loaded_;
  std::atomic<bool> wrong_after_commit_ = false;
};

BenchOptions reload_options(const ScriptedServer& server) {
  BenchOptions options = options_for(server, 6);
  options.output_len = 20;
  options.reload_dirs = {"/models/A", "/models/B"};
  options.reloads = 3;
  options.in_flight = "recompute";
  options.verify_spans = 4;
  return options;
}

TEST(Run, ReloadsHappenInTheMiddleOfEveryStreamAndEverySpanIsMadeAgain) {
  FakeEngine engine(5);
  engine.token = "secret";
  ScriptedServer server(std::ref(engine));
  BenchOptions options = reload_options(server);
  options.control_token = "secret";
  const Result<RunResult> result = run(options);
  ASSERT_TRUE(result.ok()) << result.error().message();
  EXPECT_EQ(result->versions,
            (std::vector<std::string>{"bench-0", "bench-1", "bench-2", "bench-3"}));
  EXPECT_THAT(engine.loaded(),
              testing::ElementsAre("/models/A", "/models/B", "/models/A", "/models/B", "/models/A",
                                   "/models/B"));
  EXPECT_EQ(result->spans.size(), 4u * 4u);
  for (const Outcome& outcome : result->outcomes) EXPECT_EQ(outcome.spans.size(), 4u);
  for (const Check& check : check_run(options, *result)) {
    EXPECT_TRUE(check.passed()) << check.name << ": " << check.first_failure;
  }
}

TEST(Run, ATokenOfOtherWeightsThanItsSpanSaysIsFound) {
  FakeEngine engine(5);
  engine.forget_keys();
  ScriptedServer server(std::ref(engine));
  const BenchOptions options = reload_options(server);
  const Result<RunResult> result = run(options);
  ASSERT_TRUE(result.ok());
  const Check last = check_run(options, *result).back();
  EXPECT_FALSE(last.passed());
  EXPECT_THAT(last.first_failure, testing::HasSubstr("of version bench-2 is"));
}

TEST(Run, AReloadThatIsRefusedIsReportedAndFailsTheCheck) {
  FakeEngine engine(1000);
  engine.refuse = "bench-2";
  ScriptedServer server(std::ref(engine));
  BenchOptions options = reload_options(server);
  options.verify_spans = 0;
  const Result<BenchReport> report = run_bench(options);
  ASSERT_TRUE(report.ok()) << report.error().message();
  EXPECT_FALSE(report->passed);
  EXPECT_THAT(report->table, testing::HasSubstr("HTTP 409: no such"));
  const Json json = Json::parse(report->json);
  EXPECT_EQ(json["holdfast"]["reloads"].size(), 3u);
  EXPECT_EQ(json["completed"], 6);
}

TEST(Run, TheReportHasVllmsKeysAndAPageWithoutOutsideAssets) {
  ScriptedServer server([](const Seen&, Writer& writer) { return writer.write(completion(3)); });
  BenchOptions options = options_for(server, 5);
  options.percentiles = {50, 99.9};
  const Result<BenchReport> report = run_bench(options);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->passed) << report->table;
  const Json json = Json::parse(report->json);
  for (const char* key :
       {"mean_ttft_ms", "median_tpot_ms", "p99.9_itl_ms", "std_e2el_ms", "output_throughput",
        "request_throughput", "total_token_throughput", "duration", "num_prompts"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["completed"], 5);
  EXPECT_EQ(json["total_output_tokens"], 15);
  EXPECT_EQ(json["request_rate"], "inf");
  EXPECT_THAT(report->html, testing::HasSubstr("<svg"));
  EXPECT_THAT(report->html, testing::Not(testing::HasSubstr("src=")));
  EXPECT_THAT(report->html, testing::Not(testing::HasSubstr("nan")));
}

TEST(Run, WrongOptionsAreNamed) {
  const auto message = [](auto change) {
    BenchOptions options;
    change(options);
    const Result<RunResult> result = run(options);
    return result.ok() ? std::string("ok") : result.error().message();
  };
  using testing::HasSubstr;
  EXPECT_THAT(message([](BenchOptions& o) { o.prompts = 0; }), HasSubstr("--num-prompts is 0"));
  EXPECT_THAT(message([](BenchOptions& o) { o.base_url = "https://x"; }), HasSubstr("https"));
  EXPECT_THAT(message([](BenchOptions& o) { o.base_url = "http://a b"; }), HasSubstr("a b"));
  EXPECT_THAT(message([](BenchOptions& o) { o.endpoint = "/v1/chat/completions"; }),
              HasSubstr("--endpoint"));
  EXPECT_THAT(message([](BenchOptions& o) { o.reloads = 2; }), HasSubstr("--reload-dir"));
  EXPECT_THAT(message([](BenchOptions& o) { o.verify_spans = 2; }), HasSubstr("--verify-spans"));
  EXPECT_THAT(message([](BenchOptions& o) { o.range_ratio = 1; }), HasSubstr("--random-range"));
}

}  // namespace
}  // namespace holdfast::loadgen
