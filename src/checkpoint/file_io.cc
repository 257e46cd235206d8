#include "checkpoint/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace holdfast::checkpoint {
namespace {

FileIdentity identity_of(const struct stat& status) {
  constexpr std::int64_t kNanosecondsPerSecond = 1'000'000'000;
  return {static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino),
          static_cast<std::uint64_t>(status.st_size),
          static_cast<std::int64_t>(status.st_mtim.tv_sec) * kNanosecondsPerSecond +
              static_cast<std::int64_t>(status.st_mtim.tv_nsec)};
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.release();
  }
  return *this;
}

int FileDescriptor::release() { return std::exchange(fd_, -1); }

Error os_error(const std::string& path, const char* what, int error_number) {
  const bool absent = error_number == ENOENT || error_number == ENOTDIR;
  return make_error(absent ? ErrorCode::kNotFound : ErrorCode::kIo, "{}: {}: {}", path, what,
                    std::generic_category().message(error_number));
}

Result<OpenedFile> open_regular(const std::string& path) {
  // O_NONBLOCK: opening a named pipe would otherwise wait for its writer.
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return os_error(path, "cannot open", errno);
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) return os_error(path, "cannot stat", errno);
  if (!S_ISREG(status.st_mode)) {
    return make_error(ErrorCode::kInvalidArgument, "{}: {}, expected a regular file", path,
                      S_ISDIR(status.st_mode) ? "a directory" : "a pipe, socket or device");
  }
  return OpenedFile{std::move(fd), identity_of(status)};
}

Result<FileIdentity> identify(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return os_error(path, "cannot stat", errno);
  return identity_of(status);
}

Status read_exactly(int fd, std::uint64_t offset, std::span<std::byte> to,
                    const std::string& path) {
  std::size_t done = 0;
  while (done < to.size()) {
    const ssize_t got = ::pread(fd, to.data() + done, to.size() - done,
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os_error(path, "cannot read", errno);
    if (got == 0) {
      return make_error(ErrorCode::kIo,
                        "{}: the file ends at byte {}, expected {}; it was cut while it was open",
                        path, offset + done, offset + to.size());
    }
    done += static_cast<std::size_t>(got);
  }
  return {};
}

Result<std::string> read_text(const std::string& path, std::size_t max_bytes) {
  HF_ASSIGN(const OpenedFile file, open_regular(path));
  if (file.identity.bytes > max_bytes) {
    return make_error(ErrorCode::kCorrupt, "{}: {} bytes long, the most is {}", path,
                      file.identity.bytes, max_bytes);
  }
  std::string text(static_cast<std::size_t>(file.identity.bytes), '\0');
  HF_TRY(read_exactly(file.fd.get(), 0, std::as_writable_bytes(std::span(text)), path));
  return text;
}

}  // namespace holdfast::checkpoint
