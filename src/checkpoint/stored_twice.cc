#include "checkpoint/stored_twice.h"

#include <fmt/format.h>

#include <span>

#include "checkpoint/observed_format.h"

namespace holdfast::checkpoint {
namespace {

// How a family of publishers names a layer's plain values, its codes, and what goes with codes.
struct Naming {
  std::string_view plain;
  std::span<const std::string_view> codes;
  std::span<const std::string_view> others;
};
constexpr std::string_view kCodes[] = {".qweight", ".weight_packed"};
constexpr std::string_view kOthers[] = {
    ".qzeros",         ".scales",         ".g_idx",           ".weight_scale",
    ".weight_shape",   ".weight_g_idx",   ".weight_scale_2",  ".weight_zero_point",
    ".input_scale",    ".input_global_scale", ".weight_global_scale"};
// gpt-oss, Hugging Face's and OpenAI's own.
constexpr std::string_view kBlocks[] = {"_blocks"};
constexpr std::string_view kScales[] = {"_scales"};
constexpr std::string_view kOwnBlocks[] = {".blocks"};
constexpr std::string_view kOwnScales[] = {".scales"};
constexpr Naming kNamings[] = {{".weight", kCodes, kOthers},
                               {"", kBlocks, kScales},
                               {"", kOwnBlocks, kOwnScales}};

std::optional<std::string> layer_of(std::string_view name, const Naming& naming) {
  const auto without = [&](std::string_view end) -> std::optional<std::string> {
    if (!name.ends_with(end)) return std::nullopt;
    return std::string(name.substr(0, name.size() - end.size()));
  };
  for (const auto& ends : {naming.codes, naming.others}) {
    for (const std::string_view end : ends) {
      if (auto layer = without(end)) return layer;
    }
  }
  return without(naming.plain);
}

}  // namespace

std::optional<StoredTwice> find_stored_twice(std::string_view name, const FindDtype& find) {
  for (const Naming& naming : kNamings) {
    const auto layer = layer_of(name, naming);
    if (!layer) continue;
    const std::string plain = *layer + std::string(naming.plain);
    const auto dtype = find(plain);
    if (!dtype || !is_plain_float(*dtype)) continue;
    for (const std::string_view end : naming.codes) {
      std::string codes = *layer + std::string(end);
      if (find(codes)) return StoredTwice{*layer, plain, std::move(codes)};
    }
  }
  return std::nullopt;
}

std::string to_text(const StoredTwice& twice) {
  return fmt::format("layer {} is stored twice, once plain ({}) and once quantised ({}); keep one "
                     "of them",
                     twice.layer, twice.plain, twice.codes);
}

}  // namespace holdfast::checkpoint
