#include "serve/safetensors_stream.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace holdfast::serve {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

std::vector<std::byte> file(const std::string& header, const std::string& data) {
  std::string text(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) {
    text[i] = static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
  }
  return bytes_of(text + header + data);
}

// What a stream gave out: tensor -> its bytes, in order.
struct Seen {
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> bytes;
  Status error;

  SafetensorsStream stream() {
    return SafetensorsStream(
        {.on_header =
             [this](const std::vector<TensorInfo>& all) -> Status {
               tensors = all;
               return {};
             },
         .on_bytes = [this](const TensorInfo& tensor, std::uint64_t offset,
                            std::span<const std::byte> part) -> Status {
           std::string& to = bytes[tensor.name];
           EXPECT_EQ(offset, to.size());
           to.append(reinterpret_cast<const char*>(part.data()), part.size());
           return {};
         }});
  }
};

// Feeds in pieces of `piece` bytes (0: all at once), then finishes.
Status feed(Seen& seen, const std::vector<std::byte>& all, std::size_t piece) {
  SafetensorsStream stream = seen.stream();
  const std::size_t step = piece == 0 ? std::max<std::size_t>(all.size(), 1) : piece;
  for (std::size_t at = 0; at < all.size(); at += step) {
    HF_TRY(stream.feed(std::span(all).subspan(at, std::min(step, all.size() - at))));
  }
  return stream.finish();
}

const std::string kHeader =
    R"({"__metadata__":{"format":"pt"},)"
    R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},)"
    R"("a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]},)"
    R"("none":{"dtype":"U8","shape":[0],"data_offsets":[12,12]},)"
    R"("c":{"dtype":"U8","shape":[3],"data_offsets":[12,15]}})";

TEST(SafetensorsStream, AnyPiecesGiveTheSameTensors) {
  const std::vector<std::byte> all = file(kHeader, "AAAABBBBbbbbCcC");
  for (std::size_t piece = 0; piece <= all.size(); ++piece) {
    Seen seen;
    const Status fed = feed(seen, all, piece);
    ASSERT_TRUE(fed.ok()) << piece << ": " << fed.error().to_string();
    ASSERT_EQ(seen.tensors.size(), 4u);
    EXPECT_EQ(seen.tensors[0].name, "a");
    EXPECT_EQ(seen.tensors[0].shape, (std::vector<std::int64_t>{2, 1}));
    EXPECT_EQ(seen.bytes["a"], "AAAA");
    EXPECT_EQ(seen.bytes["b"], "BBBBbbbb");
    EXPECT_EQ(seen.bytes["c"], "CcC");
  }
}

TEST(SafetensorsStream, EveryCutIsNoticed) {
  const std::vector<std::byte> all = file(kHeader, "AAAABBBBbbbbCcC");
  for (std::size_t cut = 0; cut < all.size(); ++cut) {
    Seen seen;
    const Status fed = feed(seen, {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(cut)}, 5);
    ASSERT_FALSE(fed.ok()) << cut;
    EXPECT_EQ(fed.error().code(), ErrorCode::kCorrupt);
  }
}

TEST(SafetensorsStream, WhatBreaksTheFormatIsNamed) {
  const auto tensor = [](const std::string& fields) {
    return file(R"({"t":{)" + fields + "}}", "12345678");
  };
  const struct {
    std::vector<std::byte> file;
    const char* says;
  } cases[] = {
      {file(kHeader, "AAAABBBBbbbbCcC!"), "follow the last tensor"},
      {file("", ""), "0 bytes long"},
      {file("[1,2]", ""), "expected an object"},
      {file("{nonsense}", ""), "safetensors header"},
      {tensor(R"("dtype":"F99","shape":[1],"data_offsets":[0,8])"), "F99"},
      {tensor(R"("shape":[1],"data_offsets":[0,8])"), "dtype is missing"},
      {tensor(R"("dtype":"U8","shape":[8])"), "data_offsets is missing"},
      {tensor(R"("dtype":"U8","shape":[8],"data_offsets":[0])"), "[begin, end]"},
      {tensor(R"("dtype":"U8","shape":[8],"data_offsets":[8,0])"), "[begin, end]"},
      {tensor(R"("dtype":"U8","shape":[7],"data_offsets":[0,8])"), "7 bytes"},
      {tensor(R"("dtype":"U8","shape":[-8],"data_offsets":[0,8])"), "-8"},
      {tensor(R"("dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,8])"),
       "dimension"},
      {tensor(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,8],"data_offsets":[0,8])"), "shape is"},
      {tensor(R"("dtype":"U8","shape":[7],"data_offsets":[1,8])"), "begins at byte 1"},
      {file(R"({"t":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
            R"("u":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
            "12345678"),
       "begins at byte 4"},
  };
  for (const auto& each : cases) {
    Seen seen;
    const Status fed = feed(seen, each.file, 0);
    ASSERT_FALSE(fed.ok()) << each.says;
    EXPECT_NE(fed.error().message().find(each.says), std::string::npos)
        << fed.error().message() << " should say " << each.says;
  }
}

TEST(SafetensorsStream, AHugeHeaderIsRefusedByItsLengthAlone) {
  Seen seen;
  SafetensorsStream stream = seen.stream();
  const std::vector<std::byte> length(8, std::byte{0x7F});
  EXPECT_FALSE(stream.feed(length).ok());
}

}  // namespace
}  // namespace holdfast::serve
