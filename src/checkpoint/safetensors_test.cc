#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "checkpoint/test_files.h"

namespace holdfast::checkpoint {
namespace {

using ::testing::HasSubstr;
using tensor::DType;

Result<SafetensorsHeader> parse(const std::string& bytes) {
  return parse_safetensors_header(std::as_bytes(std::span(bytes)), bytes.size(), "shard 3");
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

// Pads to 8 bytes, as writers do, so that only the intended defect is there.
std::string padded(std::string header) {
  while (header.size() % 8 != 0) header += ' ';
  return header;
}

TEST(SafetensorsHeader, ReadsTensorsInFileOrderWithMetadata) {
  const auto header = parse(raw_safetensors(
      padded(R"({"b":)" + entry("BF16", "[2,3]", "[4,16]") + R"(,"__metadata__":{"format":"pt"},)" +
             R"("a":)" + entry("F32", "[]", "[0,4]") + R"(,"zero":)" +
             entry("I64", "[0,7]", "[4,4]") + "}"),
      16));
  ASSERT_TRUE(header.ok()) << header.error().message();
  ASSERT_EQ(header->tensors.size(), 3u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[0].shape, tensor::Shape());
  EXPECT_EQ(header->tensors[1].name, "zero");
  EXPECT_EQ(header->tensors[2].name, "b");
  EXPECT_EQ(header->tensors[2].dtype, DType::kBF16);
  EXPECT_EQ(header->tensors[2].shape, (tensor::Shape{2, 3}));
  EXPECT_EQ(header->metadata.at("format"), "pt");
  EXPECT_EQ(header->data_begin % 8, 0u);
}

TEST(SafetensorsHeader, AnEmptyHeaderIsAFileWithoutTensors) {
  const auto header = parse(raw_safetensors("{}      ", 0));
  ASSERT_TRUE(header.ok());
  EXPECT_TRUE(header->tensors.empty());
}

struct BadHeader {
  std::string what;
  std::string bytes;
  std::string says;
  ErrorCode code = ErrorCode::kCorrupt;
};

std::string with_length(std::uint64_t length) {
  std::string bytes = raw_safetensors("{}      ", 0);
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes;
}

std::string one(const std::string& fields, std::size_t data_bytes) {
  return raw_safetensors(padded(R"({"a.weight":)" + fields + "}"), data_bytes);
}

std::string two(const std::string& a, const std::string& b, std::size_t data_bytes) {
  return raw_safetensors(padded(R"({"a":)" + a + R"(,"b":)" + b + "}"), data_bytes);
}

std::vector<BadHeader> bad_frames() {
  const std::string deep = std::string(10000, '[') + std::string(10000, ']');
  return {
      {"empty file", "", "shard 3: 0 bytes long, expected a header length of 8"},
      {"seven bytes", "1234567", "7 bytes long"},
      {"header longer than the file", with_length(9), "header length is 9 bytes, the file has 8"},
      {"header length 2^63", with_length(1ull << 63), "header length is 9223372036854775808 bytes"},
      {"header length 2^64-1", with_length(~0ull), "header length is 18446744073709551615 bytes"},
      {"no JSON", raw_safetensors("hello   ", 0), "shard 3: header: not valid JSON"},
      {"empty header", raw_safetensors("", 0), "not valid JSON"},
      {"array", raw_safetensors("[]      ", 0), "the top is [], expected a JSON object"},
      {"invalid UTF-8", raw_safetensors("{\"\xC0\":0} ", 0), "not valid JSON"},
      {"10,000 deep", raw_safetensors("{\"a\":" + deep + "}", 0), "nested deeper than 16 levels"},
      {"duplicate tensor",
       raw_safetensors(padded(R"({"a":)" + entry("U8", "[1]", "[0,1]") + R"(,"a":)" +
                              entry("U8", "[1]", "[1,2]") + "}"), 2),
       "shard 3: header: key \"a\" stands twice"},
      {"duplicate field",
       one(R"({"dtype":"U8","dtype":"F32","shape":[1],"data_offsets":[0,1]})", 1),
       "tensor a.weight: key \"dtype\" stands twice"},
      {"metadata of numbers", raw_safetensors(padded(R"({"__metadata__":{"a":1}})"), 0),
       "__metadata__: a value is 1, expected a string"},
      {"empty name", raw_safetensors(padded(R"({"":{}})"), 0), "name has 0 bytes"},
      {"long name", raw_safetensors(padded("{\"" + std::string(513, 'x') + "\":{}}"), 0),
       "name has 513 bytes, accepted are 1 to 512"},
      {"control character", raw_safetensors(padded(R"({"a\u001b[2J":{}})"), 0),
       "control character 0x1b"},
  };
}

std::vector<BadHeader> bad_tensors() {
  return {
      {"no object", one("7", 0), "shard 3: tensor a.weight is 7, expected an object"},
      {"no dtype", one(R"({"shape":[1],"data_offsets":[0,1]})", 1), "a.weight: dtype is missing"},
      {"unknown dtype", one(entry("F64", "[1]", "[0,8]"), 8),
       "tensor a.weight: dtype is \"F64\"; this engine knows F32, F16, BF16",
       ErrorCode::kUnsupported},
      {"dtype a number", one(R"({"dtype":1,"shape":[1],"data_offsets":[0,1]})", 1), "dtype is 1"},
      {"no shape", one(R"({"dtype":"U8","data_offsets":[0,1]})", 1), "shape is missing"},
      {"shape a number", one(entry("U8", "1", "[0,1]"), 1), "shape is 1, expected an array"},
      {"negative dimension", one(entry("U8", "[-1]", "[0,1]"), 1), "negative dimension -1"},
      {"fractional dimension", one(entry("U8", "[1.5]", "[0,1]"), 1), "shape has 1.5"},
      {"dimension 2^63", one(entry("U8", "[9223372036854775808]", "[0,1]"), 1), "shape has 92233"},
      {"rank 7", one(entry("U8", "[1,1,1,1,1,1,1]", "[0,1]"), 1), "rank 7, the most is 6"},
      {"product overflow", one(entry("U8", "[4294967296,4294967296]", "[0,1]"), 1),
       "product of shape [4294967296, 4294967296] overflows"},
      {"byte overflow", one(entry("I64", "[4611686018427387904]", "[0,8]"), 8), "overflows"},
      {"no offsets", one(R"({"dtype":"U8","shape":[1]})", 1), "data_offsets is missing"},
      {"one offset", one(entry("U8", "[1]", "[0]"), 1),
       "data_offsets is [0], expected [begin, end]"},
      {"three offsets", one(entry("U8", "[1]", "[0,1,2]"), 1), "data_offsets is [0,1,2]"},
      {"negative offset", one(entry("U8", "[1]", "[-1,0]"), 1), "data_offsets is [-1,0]"},
      {"reversed", one(entry("U8", "[1]", "[1,0]"), 1),
       "begins at byte 1 and ends before it, at 0"},
      {"out of the file", one(entry("U8", "[9]", "[0,9]"), 8),
       "shard 3: tensor a.weight: ends at byte 9 of the data, the file has 8"},
      {"end 2^64-1", one(entry("U8", "[9]", "[0,18446744073709551615]"), 8), "the file has 8"},
      {"too many bytes", one(entry("BF16", "[2,2]", "[0,9]"), 9),
       "bf16 of shape [2, 2] takes 8 bytes, its range has 9"},
      {"too few bytes", one(entry("F32", "[2]", "[0,4]"), 4), "takes 8 bytes, its range has 4"},
      {"odd count of nibbles", one(entry("F4", "[3]", "[0,2]"), 2), "3 elements do not fill whole"},
      {"unaligned", two(entry("U8", "[2]", "[0,2]"), entry("F32", "[1]", "[2,6]"), 6),
       "not a multiple of the 4 bytes of f32"},
      {"unaligned header", raw_safetensors(R"({"a":)" + entry("F32", "[1]", "[0,4]") + "}", 4),
       "not a multiple of the 4 bytes of f32"},
      {"overlap", two(entry("U8", "[4]", "[0,4]"), entry("U8", "[4]", "[3,7]"), 7),
       "tensor b begins at byte 3 and overlaps tensor a, which ends at 4"},
      {"same range", two(entry("U8", "[4]", "[0,4]"), entry("U8", "[4]", "[0,4]"), 4), "overlaps"},
      {"hole", two(entry("U8", "[4]", "[0,4]"), entry("U8", "[1]", "[5,6]"), 6),
       "tensor b begins at byte 5, the data before it ends at 4"},
      {"bytes behind", one(entry("U8", "[4]", "[0,4]"), 5),
       "the tensors end at byte 4 of the data, the file has 5"},
      {"data without tensors", raw_safetensors("{}      ", 1), "end at byte 0 of the data"},
  };
}

TEST(SafetensorsHeader, EveryDefectIsOneErrorThatNamesFileTensorAndValues) {
  auto cases = bad_frames();
  for (BadHeader& bad : bad_tensors()) cases.push_back(std::move(bad));
  for (const BadHeader& bad : cases) {
    const auto header = parse(bad.bytes);
    ASSERT_FALSE(header.ok()) << bad.what;
    EXPECT_EQ(header.error().code(), bad.code) << bad.what << ": " << header.error().message();
    EXPECT_THAT(header.error().message(), HasSubstr(bad.says)) << bad.what;
    EXPECT_THAT(header.error().message(), HasSubstr("shard 3: ")) << bad.what;
    EXPECT_LT(header.error().message().size(), 900u) << bad.what;
  }
}

TEST(SafetensorsHeader, AFileThatMissesOneByteIsRefusedAtEveryLength) {
  const std::string whole = one(entry("BF16", "[4]", "[0,8]"), 8);
  ASSERT_TRUE(parse(whole).ok());
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_FALSE(parse(whole.substr(0, bytes)).ok()) << bytes;
  }
}

TEST(SafetensorsFile, RoundTripsWhatTheWriterWrote) {
  const TempDir dir;
  const std::string path = dir.path("round.safetensors");
  const std::string floats(24, 'x'), bytes(5, 'y');
  const std::vector<TensorToWrite> tensors = {
      {"first \"quoted\\\"", DType::kF32, {2, 3}, std::as_bytes(std::span(floats))},
      {"empty", DType::kI64, {0}, {}},
      {"second", DType::kU8, {5}, std::as_bytes(std::span(bytes))}};
  ASSERT_TRUE(write_safetensors(path, tensors, {{"format", "pt"}, {"line", "a\nb"}}).ok());
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_EQ((*file)->header().metadata.at("line"), "a\nb");
  ASSERT_EQ((*file)->header().tensors.size(), 3u);
  for (const TensorToWrite& written : tensors) {
    const TensorEntry* found = (*file)->find(written.name);
    ASSERT_NE(found, nullptr) << written.name;
    EXPECT_EQ(found->dtype, written.dtype);
    EXPECT_EQ(found->shape, written.shape);
    EXPECT_TRUE(std::ranges::equal((*file)->data(*found), written.data));
    std::vector<std::byte> copy(written.data.size());
    ASSERT_TRUE((*file)->read(*found, 0, copy).ok());
    EXPECT_TRUE(std::ranges::equal(copy, written.data));
  }
  EXPECT_EQ((*file)->find("third"), nullptr);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
  EXPECT_TRUE((*file)->check_unchanged().ok());
}

TEST(SafetensorsFile, ReadsAPartOfATensorAndRefusesMore) {
  const TempDir dir;
  const std::string path = dir.path("part.safetensors");
  const std::string bytes = "abcdef";
  const TensorToWrite tensor{"t", DType::kU8, {6}, std::as_bytes(std::span(bytes))};
  ASSERT_TRUE(write_safetensors(path, {&tensor, 1}).ok());
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok());
  const TensorEntry& entry_of_t = *(*file)->find("t");
  std::vector<std::byte> part(3);
  ASSERT_TRUE((*file)->read(entry_of_t, 2, part).ok());
  EXPECT_EQ(part[0], std::byte{'c'});
  const auto beyond = (*file)->read(entry_of_t, 4, part);
  ASSERT_FALSE(beyond.ok());
  EXPECT_EQ(beyond.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(beyond.error().message(), HasSubstr("tensor t has 6 bytes, asked for 3 from byte 4"));
  EXPECT_FALSE((*file)->read(entry_of_t, ~0ull, part).ok());
}

TEST(SafetensorsFile, ACutBehindTheMappingIsAnErrorAndNoFault) {
  const TempDir dir;
  const std::string path = dir.path("cut.safetensors");
  const std::string bytes(100000, 'z');
  const TensorToWrite tensor{"t", DType::kU8, {100000}, std::as_bytes(std::span(bytes))};
  ASSERT_TRUE(write_safetensors(path, {&tensor, 1}).ok());
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(path, 50000);
  std::vector<std::byte> copy(bytes.size());
  const auto status = (*file)->read(*(*file)->find("t"), 0, copy);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kIo);
  EXPECT_THAT(status.error().message(), HasSubstr("the file ends at byte 50000"));
  const auto unchanged = (*file)->check_unchanged();
  ASSERT_FALSE(unchanged.ok());
  EXPECT_THAT(unchanged.error().message(), HasSubstr("now inode"));
  std::filesystem::remove(path);
  EXPECT_EQ((*file)->check_unchanged().error().code(), ErrorCode::kIo);
}

TEST(SafetensorsFile, OpensOnlyRegularFilesAndFollowsLinks) {
  const TempDir dir;
  const auto code_of = [](const std::string& path) {
    const auto file = SafetensorsFile::open(path);
    return file.ok() ? "opened" : file.error().to_string();
  };
  EXPECT_THAT(code_of(dir.path("absent")), HasSubstr("not_found: "));
  EXPECT_THAT(code_of(dir.path()), HasSubstr("a directory, expected a regular file"));
  ASSERT_EQ(::mkfifo(dir.path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(code_of(dir.path("pipe")), HasSubstr("expected a regular file"));
  write_file(dir.path("empty"), "");
  EXPECT_THAT(code_of(dir.path("empty")), HasSubstr("empty: 0 bytes long"));
  write_file(dir.path("blob"), one(entry("U8", "[1]", "[0,1]"), 1));
  std::filesystem::create_symlink(dir.path("blob"), dir.path("link"));
  EXPECT_EQ(code_of(dir.path("link")), "opened");
  std::filesystem::create_symlink(dir.path("gone"), dir.path("dangling"));
  EXPECT_THAT(code_of(dir.path("dangling")), HasSubstr("not_found: "));
}

TEST(SafetensorsWriter, RefusesWhatItCouldNotReadBackAndLeavesNoFile) {
  const TempDir dir;
  const std::string path = dir.path("bad.safetensors");
  const std::string bytes(8, 'b');
  const auto data = std::as_bytes(std::span(bytes));
  const auto error_of = [&](const std::vector<TensorToWrite>& tensors) {
    const auto status = write_safetensors(path, tensors);
    return status.ok() ? std::string("written") : status.error().to_string();
  };
  EXPECT_THAT(error_of({{"t", DType::kU8, {9}, data}}), HasSubstr("takes 9 bytes, 8 are given"));
  EXPECT_THAT(error_of({{"t", DType::kU8, {8}, data}, {"t", DType::kU8, {8}, data}}),
              HasSubstr("given twice"));
  EXPECT_THAT(error_of({{"", DType::kU8, {8}, data}}), HasSubstr("expected 1 to 512 bytes"));
  EXPECT_THAT(error_of({{"\xFF", DType::kU8, {8}, data}}), HasSubstr("UTF-8"));
  EXPECT_THAT(error_of({{"__metadata__", DType::kU8, {8}, data}}), HasSubstr("__metadata__"));
  EXPECT_THAT(error_of({{"a", DType::kU8, {1}, data.first(1)}, {"b", DType::kF32, {2}, data}}),
              HasSubstr("not a multiple of the 4 bytes"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  const auto nowhere = write_safetensors(dir.path("no/such/file"), {});
  ASSERT_FALSE(nowhere.ok());
  EXPECT_THAT(nowhere.error().message(), HasSubstr("cannot create"));
}

TEST(SafetensorsWriter, ReplacesAFileWhole) {
  const TempDir dir;
  const std::string path = dir.path("file.safetensors");
  const std::string bytes(8, 'b');
  const TensorToWrite tensor{"t", DType::kU8, {8}, std::as_bytes(std::span(bytes))};
  write_file(path, "what was there before");
  ASSERT_TRUE(write_safetensors(path, {&tensor, 1}).ok());
  EXPECT_TRUE(SafetensorsFile::open(path).ok());
  EXPECT_EQ(std::filesystem::status(path).permissions() & std::filesystem::perms::all,
            static_cast<std::filesystem::perms>(0644));
}

}  // namespace
}  // namespace holdfast::checkpoint
