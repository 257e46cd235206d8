#include "cli/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cli/command_line.h"
#include "cli/interrupt.h"

namespace holdfast::cli {
namespace {

constexpr std::size_t kBufferBytes = 64 << 10;

Error system_error(std::string_view what) {
  const int code = errno;
  if (code == EPIPE) return format_error(ErrorCode::kCancelled, "{}: closed by its reader", what);
  return format_error(ErrorCode::kIo, "{}: {}", what, std::strerror(code));
}

Status write_all(int fd, std::string_view text, const std::string& name) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return system_error(name);
    }
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

// The file that `path` names behind all links, so that a rename replaces it and not the link.
std::string resolve_links(const std::string& path) {
  char* real = ::realpath(path.c_str(), nullptr);
  if (real == nullptr) return path;
  std::string result(real);
  std::free(real);
  return result;
}

}  // namespace

void prepare_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free descriptor is `fd`. Stdout opened for reading makes every write fail.
    const int opened = ::open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY);
    if (opened != fd) std::_Exit(kExitFailed);
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

bool stdin_is_terminal() { return ::isatty(STDIN_FILENO) == 1; }
bool stdout_is_terminal() { return ::isatty(STDOUT_FILENO) == 1; }
bool stderr_is_terminal() { return ::isatty(STDERR_FILENO) == 1; }

Result<std::unique_ptr<Output>> Output::open(const std::string& path) {
  std::unique_ptr<Output> output(new Output);
  if (path.empty() || path == "-") {
    output->name_ = "stdout";
    output->fd_ = STDOUT_FILENO;
    return output;
  }
  output->name_ = path;
  output->owns_fd_ = true;
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    output->fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (output->fd_ < 0) return system_error(path);
    return output;
  }
  output->path_ = resolve_links(path);
  output->temporary_ = fmt::format("{}.{}.tmp", output->path_, ::getpid());
  output->fd_ =
      ::open(output->temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (output->fd_ < 0) {
    const Error error = system_error(path);
    output->temporary_.clear();
    return error;
  }
  return output;
}

Output::~Output() {
  if (owns_fd_ && fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status Output::write(std::string_view text) {
  buffer_.append(text);
  return buffer_.size() >= kBufferBytes ? flush() : Status{};
}

Status Output::flush() {
  Status status = write_all(fd_, buffer_, name_);
  buffer_.clear();
  return status;
}

Status Output::finish() {
  HF_TRY(flush());
  if (!owns_fd_) return {};
  if (!temporary_.empty() && ::fsync(fd_) != 0) return system_error(name_);
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) return system_error(name_);
  if (temporary_.empty()) return {};
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return system_error(name_);
  temporary_.clear();
  return {};
}

Status write_file(const std::string& path, std::string_view text) {
  HF_ASSIGN(const std::unique_ptr<Output> output, Output::open(path));
  HF_TRY(output->write(text));
  return output->finish();
}

ProgressLine::ProgressLine(bool quiet) : enabled_(!quiet && stderr_is_terminal()) {}

void ProgressLine::show(std::string_view text) {
  if (!enabled_) return;
  fmt::print(stderr, "\r\x1b[K{}", text);
  std::fflush(stderr);
  shown_ = true;
}

void ProgressLine::clear() {
  if (!shown_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  shown_ = false;
}

void say(std::string_view message) { fmt::print(stderr, "holdfast: {}\n", message); }

int report_failure(const Error& error) {
  if (error.code() == ErrorCode::kCancelled) {
    return interrupted() ? kExitInterrupted : kExitClosedPipe;
  }
  say(error.message());
  return kExitFailed;
}

int report_usage(std::string_view message) {
  say(message);
  return kExitUsage;
}

std::string readable_bytes(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 999.95 && unit + 1 < std::size(kUnits)) {
    value /= 1000.0;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace holdfast::cli
