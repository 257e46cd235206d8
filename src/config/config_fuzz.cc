// Fuzz target: config.json and generation_config.json, parted by the first zero byte.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/assert.h"
#include "config/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace holdfast;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t cut = text.find('\0');
  const auto generation = cut == std::string_view::npos ? std::string_view() : text.substr(cut + 1);
  const auto config = config::parse_model_config(text.substr(0, cut), generation);
  if (config.ok()) {
    HF_ASSERT(static_cast<std::int64_t>(config->layer_kinds.size()) == config->layer_count,
              "an accepted config has one kind per layer");
    HF_ASSERT(config::check_replaceable(*config, *config).ok(), "a config replaces itself");
  } else {
    HF_ASSERT(!config.error().message().empty(), "an error says why");
  }
  return 0;
}
