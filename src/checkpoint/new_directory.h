// NewDirectory: a directory that is being filled, and is empty or gone again unless it was kept.
// Owned by whoever fills it; one thread, but files may be written on any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/file_io.h"
#include "holdfast/result.h"

namespace holdfast::checkpoint {

class NewDirectory {
 public:
  // Creates the directory; its parent must exist. One that exists must be empty. Errors: kNotFound,
  // kInvalidArgument (not empty, naming what is in it; a file in its place), kIo.
  static Result<NewDirectory> create(const std::string& path);
  // Removes the files that it has created, and the directory if it has created that.
  ~NewDirectory();
  NewDirectory(NewDirectory&& other) noexcept;
  NewDirectory& operator=(NewDirectory&&) = delete;

  const std::string& path() const { return path_; }
  std::string path_of(std::string_view name) const;
  // A new file of `bytes` bytes whose space is reserved where the file system can do that.
  // Errors: kResourceExhausted (disk full, over a limit), kIo.
  Result<FileDescriptor> create_file(const std::string& name, std::uint64_t bytes);
  // Errors: as create_file.
  Status write_text(const std::string& name, std::string_view text);
  // From here on the files stay.
  void keep() { kept_ = true; }

 private:
  explicit NewDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
  std::vector<std::string> files_;
  bool made_ = false, kept_ = false;
};

// All of `bytes` at `offset`. Errors: kResourceExhausted (disk full, over a limit), kIo.
Status write_exactly(int fd, std::uint64_t offset, std::span<const std::byte> bytes,
                     const std::string& path);

}  // namespace holdfast::checkpoint
