// StopMatcher: looks for a request's stop strings in its text while it comes, a byte at a time
// (Knuth, Morris, Pratt 1977), so that what is found does not depend on where tokens end. Owned by
// one request; engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/result.h"

namespace holdfast::api {

inline constexpr std::size_t kMaxStopStrings = 16;
inline constexpr std::size_t kMaxStopStringBytes = 1024;

// Errors: kInvalidArgument naming the stop string and the limit: empty, not UTF-8, too long, too
// many.
Status check_stop_strings(const std::vector<std::string>& stop);

class StopMatcher {
 public:
  // `stop` as check_stop_strings allows; none: nothing matches.
  explicit StopMatcher(const std::vector<std::string>& stop);

  // Takes the next byte. The index of the stop string that ends with it; of several the longest,
  // then the first.
  std::optional<std::size_t> push(char byte);
  const std::string& stop(std::size_t index) const { return strings_[index].text; }
  // How many of the bytes pushed last a stop string may still begin with.
  std::size_t held_bytes() const { return held_bytes_; }
  // As if nothing had been pushed.
  void reset();

 private:
  struct String {
    std::string text = {};
    // The length of the longest proper prefix of the first i + 1 bytes that is their suffix, too.
    std::vector<std::uint16_t> border = {};
    std::size_t matched = 0;  // bytes of text that the last bytes pushed are equal to
  };
  std::vector<String> strings_;
  std::size_t held_bytes_ = 0;
};

}  // namespace holdfast::api
