#include "serve/serve_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "serve/log.h"
#include "serve/server.h"
#include "serve/vllm_flags.h"

namespace holdfast::serve {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ServeOptionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string name =
        ::testing::UnitTest::GetInstance()->current_test_info()->name() + std::to_string(getpid());
    path_ = std::filesystem::temp_directory_path() / ("holdfast-options-" + name + ".toml");
  }
  void TearDown() override { std::filesystem::remove(path_); }

  Status read(const std::string& text) {
    std::ofstream(path_) << text;
    return read_config_file(path_, options_);
  }
  std::string read_error(const std::string& text) {
    const Status status = read(text);
    EXPECT_FALSE(status.ok()) << text;
    return status.ok() ? std::string() : status.error().message();
  }
  Status environment(const std::map<std::string, std::string>& variables) {
    return read_environment(
        [&](const char* name) -> const char* {
          const auto found = variables.find(name);
          return found == variables.end() ? nullptr : found->second.c_str();
        },
        options_);
  }
  Status flag(const std::string& name, const std::string& text) {
    return set_serve_option(options_, *find_serve_option(name), text, "--" + name);
  }

  std::string path_;
  ServeOptions options_;
};

TEST_F(ServeOptionsTest, EveryOptionTakesItsOwnDefaultAndHasItsOwnNames) {
  std::set<std::string> names;
  for (const ServeOption& option : serve_options()) {
    SCOPED_TRACE(option.name);
    EXPECT_TRUE(names.insert(option.name).second);
    for (const std::string& alias : option.aliases) EXPECT_TRUE(names.insert(alias).second);
    ServeOptions values;
    const OptionValue before = option.get(values);
    EXPECT_TRUE(set_serve_option(values, option, before, option.name).ok());
    EXPECT_EQ(option.get(values), before);
    EXPECT_FALSE(option.help.empty());
  }
}

TEST_F(ServeOptionsTest, WhatIsPrintedReadsBackTheSame) {
  ASSERT_TRUE(flag("port", "9").ok());
  ASSERT_TRUE(flag("model", "a \"b\"\n").ok());
  ASSERT_TRUE(flag("model-roots", "/a,/b c").ok());
  ASSERT_TRUE(flag("prefix-cache", "false").ok());
  const std::string text = config_text(options_);
  options_ = {};
  const Status status = read(text);
  ASSERT_TRUE(status.ok()) << status.error().message();
  EXPECT_EQ(config_text(options_), text);
  EXPECT_EQ(options_.port, 9);
  EXPECT_EQ(options_.engine.model_directory, "a \"b\"\n");
  EXPECT_THAT(options_.model_roots, ::testing::ElementsAre("/a", "/b c"));
  EXPECT_FALSE(options_.engine.prefix_cache);
}

TEST_F(ServeOptionsTest, SecretsAreNotPrinted) {
  ASSERT_TRUE(flag("api-key", "hush").ok());
  EXPECT_THAT(config_text(options_), AllOf(Not(HasSubstr("hush")),
                                           HasSubstr("api-key is set, and not shown"),
                                           HasSubstr("control-token is not set")));
}

TEST_F(ServeOptionsTest, EachPlaceOverridesTheOneBefore) {
  ASSERT_TRUE(read("port = 1\nmax-num-seqs = 2\nlog_level = \"debug\"\n").ok());
  ASSERT_TRUE(environment({{"HOLDFAST_MAX_NUM_SEQS", "3"}, {"HOLDFAST_LOG_LEVEL", "error"}}).ok());
  ASSERT_TRUE(flag("log-level", "warning").ok());
  EXPECT_EQ(options_.port, 1);
  EXPECT_EQ(options_.engine.max_sequences, 3);
  EXPECT_EQ(options_.log_level, "warning");
  EXPECT_EQ(options_.control_port, 8001);
}

TEST_F(ServeOptionsTest, AFileErrorNamesLineKeyAndValue) {
  EXPECT_THAT(read_error("port = 1\nmax-num-sqs = 2\n"),
              AllOf(HasSubstr(":2: max-num-sqs is no option"), HasSubstr("max-num-seqs")));
  EXPECT_THAT(read_error("port = 70000\n"),
              HasSubstr(":1: port is 70000, expected an integer from 0 to 65535"));
  EXPECT_THAT(read_error("port = \"8000\"\n"), HasSubstr("port is a text, expected an integer"));
  EXPECT_THAT(read_error("port = 1.5\n"), HasSubstr("port is neither"));
  EXPECT_THAT(read_error("[limits]\nmax-body-bytes = 1\n"), HasSubstr("limits is no option"));
  EXPECT_THAT(read_error("model-roots = [1]\n"), HasSubstr("the list holds what is no text"));
  EXPECT_THAT(read_error("log-format = \"xml\"\n"),
              HasSubstr("log-format is \"xml\", expected one of text, json"));
  EXPECT_THAT(read_error("quantize-experts = \"int3\"\n"),
              AllOf(HasSubstr("expected one of mxfp4, "), HasSubstr(", int4, or nothing")));
  const std::string broken = read_error("port = 1\nhost = \n");
  EXPECT_THAT(broken, HasSubstr(path_ + ":2:"));
  EXPECT_EQ(read_config_file(path_ + ".none", options_).error().code(), ErrorCode::kNotFound);
}

TEST_F(ServeOptionsTest, AnEnvironmentErrorNamesTheVariableAndItsValue) {
  EXPECT_THAT(environment({{"HOLDFAST_PORT", "http"}}).error().message(),
              HasSubstr("HOLDFAST_PORT is \"http\", expected an integer from 0 to 65535"));
  EXPECT_THAT(environment({{"HOLDFAST_PREFIX_CACHE", "maybe"}}).error().message(),
              HasSubstr("HOLDFAST_PREFIX_CACHE is \"maybe\", expected true or false"));
}

TEST_F(ServeOptionsTest, VllmsNamesAndWordsAreTaken) {
  EXPECT_EQ(find_serve_option("max_model_len")->name, "max-model-len");
  EXPECT_EQ(find_serve_option("enable-prefix-caching")->name, "prefix-cache");
  EXPECT_EQ(find_serve_option("nonsense"), nullptr);
  ASSERT_TRUE(flag("logprobs-mode", "processed_logprobs").ok());
  EXPECT_EQ(options_.logprobs_mode, "processed");
  ASSERT_TRUE(flag("max-logprobs", "-1").ok());
  EXPECT_TRUE(check_weight_transfer_config(R"({"backend": "disk"})").ok());
  EXPECT_THAT(check_weight_transfer_config(R"({"backend": "nccl"})").error().message(),
              AllOf(HasSubstr("nccl"), HasSubstr("disk and http"), HasSubstr("/update_weights")));
  for (const char* wrong : {"", "disk", "[]", "{}", R"({"backend": 1})"}) {
    EXPECT_EQ(check_weight_transfer_config(wrong).error().code(), ErrorCode::kInvalidArgument);
  }
}

TEST_F(ServeOptionsTest, AFlagOfVllmsIsTakenWhereItChangesNothingAndElseSaysWhatToDo) {
  const auto check = [](std::string_view name, const std::string& value) {
    for (const VllmFlag& flag : vllm_flags()) {
      if (flag.name == name) return check_vllm_flag(flag, value);
    }
    return Status(Error(ErrorCode::kNotFound, std::string(name)));
  };
  EXPECT_TRUE(check("--tensor-parallel-size", "1").ok());
  EXPECT_TRUE(check("--enable-chunked-prefill", "").ok());
  EXPECT_EQ(check("--tensor-parallel-size", "2").error().message(),
            "--tensor-parallel-size is \"2\", and can be 1: a model runs on one device here: start "
            "one server for each and balance before them");
  EXPECT_THAT(check("--gpu-memory-utilization", "0.9").error().message(), HasSubstr("--kv-tokens"));
  EXPECT_THAT(check("--enforce-eager", "").error().message(), HasSubstr("leave it out"));
  for (const VllmFlag& flag : vllm_flags()) {
    EXPECT_EQ(find_serve_option(flag.name.substr(2)), nullptr) << flag.name;
    EXPECT_NE(flag.always_so, !flag.instead.empty()) << flag.name;
  }
}

TEST_F(ServeOptionsTest, ATokenThatNoHeaderCanCarryIsRefusedAndNotShown) {
  options_.engine.model_directory = "model";
  for (const char* token : {" ", "\t", "   ", "a b", "secret\n", "\x7F"}) {
    for (const auto field : {&ServeOptions::control_token, &ServeOptions::api_key}) {
      ServeOptions options = options_;
      options.*field = token;
      const Status checked = check_serve_options(options);
      ASSERT_FALSE(checked.ok()) << token;
      EXPECT_THAT(checked.error().message(), HasSubstr("visible characters"));
      EXPECT_THAT(checked.error().message(), ::testing::Not(HasSubstr("secret")));
    }
  }
}

TEST_F(ServeOptionsTest, ATextWithAZeroByteIsRefused) {
  EXPECT_THAT(read_error("model = \"a\\u0000b\"\n"), HasSubstr("model holds a zero byte"));
  EXPECT_THAT(read_error("model-roots = [\"a\", \"b\\u0000\"]\n"), HasSubstr("zero byte"));
}

TEST_F(ServeOptionsTest, AControlListenerThatOthersReachNeedsAToken) {
  options_.engine.model_directory = "model";
  EXPECT_TRUE(check_serve_options(options_).ok());
  options_.control_host = "0.0.0.0";
  EXPECT_THAT(check_serve_options(options_).error().message(),
              AllOf(HasSubstr("control-host is 0.0.0.0"), HasSubstr("control-token")));
  options_.control_token = "token";
  EXPECT_TRUE(check_serve_options(options_).ok());
  options_.control_port = options_.port;
  EXPECT_THAT(check_serve_options(options_).error().message(), HasSubstr("one address"));
  options_.host = options_.control_host;
  EXPECT_TRUE(check_serve_options(options_).ok());
  options_.model_roots = {"/nowhere/at/all"};
  EXPECT_THAT(check_serve_options(options_).error().message(), HasSubstr("/nowhere/at/all"));
  options_ = {};
  EXPECT_THAT(check_serve_options(options_).error().message(), HasSubstr("no model is named"));
}

TEST(Log, ALineIsOneLineWhateverIsInIt) {
  const Log::Fields fields = {{"path", "/v1"}, {"why", "a \"b\"\nc"}, {"empty", ""}};
  EXPECT_EQ(log_line(false, LogLevel::kInfo, "request", fields, 1'000),
            "1970-01-01T00:00:01.000Z info    request path=/v1 why=\"a \\\"b\\\"\\u000ac\" "
            "empty=\"\"");
  EXPECT_EQ(log_line(true, LogLevel::kError, "failed", fields, 1'001),
            "{\"time\":\"1970-01-01T00:00:01.001Z\",\"level\":\"error\",\"event\":\"failed\","
            "\"path\":\"/v1\",\"why\":\"a \\\"b\\\"\\u000ac\",\"empty\":\"\"}");
}

}  // namespace
}  // namespace holdfast::serve
