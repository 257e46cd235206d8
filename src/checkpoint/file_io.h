// Small, checked file access: what the reader and the writer need of the operating system.
// Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "holdfast/result.h"

namespace holdfast::checkpoint {

// Owns a file descriptor.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  int get() const { return fd_; }
  int release();

 private:
  int fd_;
};

// What tells one version of a file from another.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;
  std::int64_t mtime_ns = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

struct OpenedFile {
  FileDescriptor fd;
  FileIdentity identity;
};

// Opens a regular file for reading; never blocks on a pipe or a device. Follows symbolic links.
// Errors: kNotFound, kIo, kInvalidArgument (not a regular file).
Result<OpenedFile> open_regular(const std::string& path);

// Follows symbolic links. Errors: kNotFound, kIo.
Result<FileIdentity> identify(const std::string& path);

// Fills `to` from byte `offset`. Errors: kIo, also when the file ends early.
Status read_exactly(int fd, std::uint64_t offset, std::span<std::byte> to, const std::string& path);

// Errors: as open_regular; kCorrupt when longer than `max_bytes`.
Result<std::string> read_text(const std::string& path, std::size_t max_bytes);

// "PATH: cannot open: No such file or directory", kNotFound for ENOENT and ENOTDIR, else kIo.
Error os_error(const std::string& path, const char* what, int error_number);

}  // namespace holdfast::checkpoint
