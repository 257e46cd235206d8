#include "checkpoint/new_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace holdfast::checkpoint {
namespace {

// EFBIG is the process's own limit (ulimit -f), or the file system's.
Error write_error(const std::string& path, const char* what, int error_number) {
  const Error error = os_error(path, what, error_number);
  const bool full = error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
  return full ? Error(ErrorCode::kResourceExhausted, error.message()) : error;
}

Status check_empty(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return os_error(path, "cannot open", errno);
  if (!S_ISDIR(status.st_mode)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: not a directory; give the name of a new one", path);
  }
  std::error_code failed;
  const std::filesystem::directory_iterator first(path, failed);
  if (failed) return os_error(path, "cannot list", failed.value());
  if (first == std::filesystem::directory_iterator()) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "{}: the directory is not empty, it holds {}; give the name of a new one, or "
                    "remove what is in it",
                    path, first->path().filename().string());
}

}  // namespace

Result<NewDirectory> NewDirectory::create(const std::string& path) {
  if (path.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "the name of a directory to create is empty");
  }
  NewDirectory directory(path);
  if (::mkdir(path.c_str(), 0777) == 0) {
    directory.made_ = true;
    return directory;
  }
  if (errno != EEXIST) return os_error(path, "cannot create the directory", errno);
  HF_TRY(check_empty(path));
  return directory;
}

NewDirectory::NewDirectory(NewDirectory&& other) noexcept
    : path_(std::move(other.path_)),
      files_(std::exchange(other.files_, {})),
      made_(std::exchange(other.made_, false)),
      kept_(other.kept_) {}

NewDirectory::~NewDirectory() {
  if (kept_) return;
  for (const std::string& file : files_) ::unlink(file.c_str());
  if (made_) ::rmdir(path_.c_str());
}

std::string NewDirectory::path_of(std::string_view name) const {
  return fmt::format("{}{}{}", path_, path_.back() == '/' ? "" : "/", name);
}

Result<FileDescriptor> NewDirectory::create_file(const std::string& name, std::uint64_t bytes) {
  const std::string path = path_of(name);
  FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (fd.get() < 0) return write_error(path, "cannot create", errno);
  files_.push_back(path);
  if (bytes == 0) return fd;
  const auto size = static_cast<off_t>(bytes);
  if (::fallocate(fd.get(), 0, 0, size) == 0) return fd;
  const bool cannot = errno == EOPNOTSUPP || errno == ENOSYS;
  if (!cannot || ::ftruncate(fd.get(), size) != 0) {
    return write_error(path, "cannot reserve its space", errno);
  }
  return fd;
}

Status NewDirectory::write_text(const std::string& name, std::string_view text) {
  HF_ASSIGN(const FileDescriptor fd, create_file(name, 0));
  return write_exactly(fd.get(), 0, std::as_bytes(std::span(text.data(), text.size())),
                       path_of(name));
}

Status write_exactly(int fd, std::uint64_t offset, std::span<const std::byte> bytes,
                     const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return write_error(path, "cannot write", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
  return {};
}

}  // namespace holdfast::checkpoint
