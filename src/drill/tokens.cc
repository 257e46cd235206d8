#include "drill/tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace holdfast::drill {
namespace {

template <typename Differs>
std::string first_difference(const std::vector<Tokens>& earlier, const std::vector<Tokens>& later,
                             const Differs& describe) {
  if (earlier.size() != later.size()) {
    return fmt::format("{} prompts, {} before", later.size(), earlier.size());
  }
  for (std::size_t prompt = 0; prompt < earlier.size(); ++prompt) {
    const Tokens& a = earlier[prompt];
    const Tokens& b = later[prompt];
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      const std::string difference = describe(a[i], b[i]);
      if (difference.empty()) continue;
      return fmt::format("prompt {}, token {}: {}", prompt, i, difference);
    }
    if (a.size() != b.size()) {
      return fmt::format("prompt {}: {} tokens, {} before", prompt, b.size(), a.size());
    }
  }
  return {};
}

}  // namespace

std::string token_difference(const std::vector<Tokens>& earlier,
                             const std::vector<Tokens>& later) {
  return first_difference(earlier, later, [](const Token& a, const Token& b) {
    return a.id == b.id ? std::string{} : fmt::format("{}, {} before", b.id, a.id);
  });
}

std::string logprob_difference(const std::vector<Tokens>& earlier,
                               const std::vector<Tokens>& later) {
  return first_difference(earlier, later, [](const Token& a, const Token& b) {
    // Bits, so that NaN equals itself and -0 does not equal 0.
    const bool same = std::bit_cast<std::uint32_t>(a.logprob) ==
                      std::bit_cast<std::uint32_t>(b.logprob);
    return same ? std::string{} : fmt::format("log probability {}, {} before", b.logprob,
                                              a.logprob);
  });
}

std::string epoch_difference(const std::vector<Tokens>& run, std::uint64_t epoch) {
  for (std::size_t prompt = 0; prompt < run.size(); ++prompt) {
    for (std::size_t i = 0; i < run[prompt].size(); ++i) {
      if (run[prompt][i].epoch == epoch) continue;
      return fmt::format("prompt {}, token {}: epoch {}, the engine is at {}", prompt, i,
                         run[prompt][i].epoch, epoch);
    }
  }
  return {};
}

}  // namespace holdfast::drill
