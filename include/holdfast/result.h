// Result<T>: the value of an operation that can fail, or the Error that says why.
// Operating errors (files, requests, devices) travel in a Result; programmer errors are assertions.
// Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace holdfast {

enum class ErrorCode : std::uint8_t {
  kInvalidArgument,     // a flag, a request or a call is wrong
  kNotFound,            // a named thing does not exist
  kCorrupt,             // a file or a stream breaks its format
  kMismatch,            // two well-formed things do not fit each other (shape, dtype, name, config)
  kUnsupported,         // well-formed, and not something this build can do
  kResourceExhausted,   // a named limit or the memory is used up
  kFailedPrecondition,  // the object is in the wrong state for this call
  kIo,                  // the operating system refused
  kDevice,              // a device call failed
  kCancelled,           // asked to stop
  kDeadlineExceeded,    // too late
  kPoisoned,            // the weights are not to be trusted until a complete reload succeeds
};

// "invalid_argument", "not_found", ...: stable names for logs, JSON and tests.
std::string_view error_code_name(ErrorCode code);

class [[nodiscard]] Error {
 public:
  Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // "context: message": for a caller that knows the file or object in whose course this happened.
  Error with_context(std::string_view context) const {
    return Error(code_, std::string(context) + ": " + message_);
  }
  // "corrupt: shard 3: ..."
  std::string to_string() const;

 private:
  ErrorCode code_;
  std::string message_;
};

namespace detail {
[[noreturn]] void result_access_failed(const Error& error);
}

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // Asserts ok().
  T& value() & { check(); return std::get<0>(state_); }
  const T& value() const& { check(); return std::get<0>(state_); }
  // By value, so that a loop over the value of a temporary is over something that lives.
  T value() && { check(); return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // Only when !ok().
  const Error& error() const { return std::get<1>(state_); }

 private:
  void check() const {
    if (!ok()) detail::result_access_failed(std::get<1>(state_));
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  void value() const {
    if (!ok()) detail::result_access_failed(*error_);
  }
  // Only when !ok().
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace holdfast

#define HF_RESULT_CONCAT_INNER(a, b) a##b
#define HF_RESULT_CONCAT(a, b) HF_RESULT_CONCAT_INNER(a, b)

// Returns the error to the caller when `expr` (a Result) has failed.
#define HF_TRY(expr)                                           \
  do {                                                         \
    if (auto hf_status = (expr); !hf_status.ok()) return hf_status.error(); \
  } while (false)

// HF_ASSIGN(auto x, expr): x becomes the value of `expr`, or its error is returned to the caller.
#define HF_ASSIGN(declaration, expr) \
  HF_ASSIGN_INNER(HF_RESULT_CONCAT(hf_result_, __COUNTER__), declaration, expr)
#define HF_ASSIGN_INNER(name, declaration, expr) \
  auto name = (expr);                            \
  if (!name.ok()) return name.error();           \
  declaration = std::move(name).value()
