#include "reload/source.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

namespace holdfast::reload {
namespace {

namespace fs = std::filesystem;

// A copy of a real checkpoint that a test may damage.
class CheckpointSourceTest : public ::testing::Test {
 protected:
  CheckpointSourceTest()
      : directory_(fs::path(::testing::TempDir()) /
                   ("holdfast-source-" + std::to_string(::getpid()))) {
    fs::remove_all(directory_);
    fs::copy(fs::path(HF_SOURCE_DIR) / "models" / "gptoss-tiny-A", directory_,
             fs::copy_options::recursive);
    checkpoint_ = checkpoint::Checkpoint::open(directory_.string()).value();
    source_ = make_checkpoint_source(checkpoint_);
  }
  ~CheckpointSourceTest() override { fs::remove_all(directory_); }

  fs::path directory_;
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
  std::unique_ptr<Source> source_;
};

TEST_F(CheckpointSourceTest, ReadsEveryTensorOfEveryShardInPieces) {
  EXPECT_EQ(source_->config(), checkpoint_->config());
  ASSERT_EQ(source_->tensors().size(), checkpoint_->tensors().size());
  for (std::size_t i = 0; i < source_->tensors().size(); ++i) {
    const checkpoint::LocatedTensor& located = checkpoint_->tensors()[i];
    EXPECT_EQ(source_->tensors()[i].name, located.entry->name);
    EXPECT_EQ(source_->tensors()[i].dtype, located.entry->dtype);
    EXPECT_EQ(source_->tensors()[i].shape, located.entry->shape);
    const auto whole = located.file->data(*located.entry);
    std::vector<std::byte> read(whole.size());
    for (std::size_t at = 0; at < read.size(); at += 1000) {
      const auto piece = std::span(read).subspan(at, std::min<std::size_t>(1000, read.size() - at));
      ASSERT_TRUE(source_->read(i, at, piece).ok());
    }
    EXPECT_TRUE(std::equal(read.begin(), read.end(), whole.begin())) << located.entry->name;
  }
  EXPECT_TRUE(source_->finish().ok());
}

TEST_F(CheckpointSourceTest, NoticesAShardThatWasTruncatedOrReplaced) {
  const fs::path shard = checkpoint_->files().back()->path();
  const fs::path kept = shard.string() + ".kept";
  fs::copy_file(shard, kept);
  fs::resize_file(shard, fs::file_size(shard) - 1);
  EXPECT_FALSE(source_->finish().ok());
  const std::size_t last = source_->tensors().size() - 1;
  const auto bytes =
      tensor::byte_size(source_->tensors()[last].dtype, source_->tensors()[last].shape);
  std::vector<std::byte> to(*bytes);
  const Status status = source_->read(last, 0, to);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kIo);
  // The same bytes under the same name are another file all the same.
  fs::rename(kept, shard);
  EXPECT_FALSE(source_->finish().ok());
}

}  // namespace
}  // namespace holdfast::reload
