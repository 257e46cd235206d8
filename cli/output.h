// Output: where results go (stdout, or a file that appears whole or not at all), and what is said
// on stderr: errors, and progress on a terminal only. One thread.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "holdfast/result.h"

namespace holdfast::cli {

// An Error with a formatted message: name the object and both values.
template <typename... Args>
Error format_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// Makes fds 0, 1 and 2 valid, so that no file of ours becomes one of them: a closed stdout stays
// unwritable. Makes a closed pipe, and a file that grows over the process's limit, an error of
// write instead of a signal. Call first in main.
void prepare_standard_streams();

// Whether stdin, stdout, stderr are terminals.
bool stdin_is_terminal();
bool stdout_is_terminal();
bool stderr_is_terminal();

class Output {
 public:
  // `path` empty or "-": stdout. A regular file is written beside `path` and renamed by finish();
  // anything else that exists (a device, a pipe) is written to directly. Errors: kIo.
  static Result<std::unique_ptr<Output>> open(const std::string& path);
  // Drops a file that was not finished.
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // Errors: kCancelled when stdout is a pipe that its reader closed; kIo otherwise.
  Status write(std::string_view text);
  Status flush();
  // Flushes; a file takes its name. Nothing may be written afterwards.
  Status finish();

 private:
  Output() = default;
  std::string name_;  // for messages
  std::string path_, temporary_;
  int fd_ = -1;
  bool owns_fd_ = false;
  std::string buffer_;
};

// Writes `text` to `path` whole or not at all ("-" is stdout).
Status write_file(const std::string& path, std::string_view text);

// One line on stderr that each call overwrites. Silent when not a terminal or `quiet`.
class ProgressLine {
 public:
  explicit ProgressLine(bool quiet);
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void show(std::string_view text);
  void clear();

 private:
  bool enabled_;
  bool shown_ = false;
};

// "holdfast: MESSAGE" on stderr.
void say(std::string_view message);
// Says what failed and gives the exit code for it. Worth no word (kCancelled): a pipe closed by its
// reader, Ctrl-C.
int report_failure(const Error& error);
int report_usage(std::string_view message);

// "3.2 MB", "13.0 GB" (powers of 1000).
std::string readable_bytes(std::uint64_t bytes);

}  // namespace holdfast::cli
