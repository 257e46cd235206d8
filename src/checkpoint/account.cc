#include "checkpoint/account.h"

#include <fmt/ranges.h>

#include <filesystem>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/assert.h"
#include "base/error.h"
#include "checkpoint/observed_format.h"
#include "checkpoint/stored_twice.h"

namespace holdfast::checkpoint {
namespace {

constexpr std::size_t kNearest = 3;
// Suggestions cost a pass over all known names each; the first few unknown tensors tell enough.
constexpr std::size_t kMaxSuggested = 16;

std::string file_name(const SafetensorsFile& file) {
  return std::filesystem::path(file.path()).filename().string();
}

std::string count_more(std::size_t count) {
  return count > 1 ? fmt::format(" (and {} more)", count - 1) : std::string();
}

void compare(const ExpectedTensor& expected, const LocatedTensor& located, Account& account) {
  const TensorEntry& entry = *located.entry;
  std::string differs;
  if (entry.dtype != expected.dtype && !(expected.any_float && is_plain_float(entry.dtype))) {
    differs = fmt::format("dtype {}, expected {}", tensor::dtype_name(entry.dtype),
                          expected.any_float ? "bf16, f16 or f32"
                                             : tensor::dtype_name(expected.dtype));
  }
  if (entry.shape != expected.shape) {
    differs += fmt::format("{}shape {}, expected {}", differs.empty() ? "" : "; ",
                           entry.shape.to_string(), expected.shape.to_string());
  }
  if (differs.empty()) return;
  account.mismatched.push_back(
      fmt::format("{} in {}: {}", entry.name, file_name(*located.file), differs));
}

}  // namespace

Account take_account(const std::vector<ExpectedTensor>& expected,
                     const std::vector<LocatedTensor>& located) {
  std::unordered_map<std::string_view, const LocatedTensor*> by_name;
  for (const LocatedTensor& tensor : located) by_name.emplace(tensor.entry->name, &tensor);
  Account account;
  std::unordered_set<std::string_view> known;
  std::vector<std::string> known_names;
  for (const ExpectedTensor& tensor : expected) {
    known.insert(tensor.name);
    known_names.push_back(tensor.name);
    const auto found = by_name.find(tensor.name);
    if (found == by_name.end()) {
      if (!tensor.may_lack) account.missing.push_back(tensor);
    } else {
      compare(tensor, *found->second, account);
    }
  }
  const auto find_dtype = [&](const std::string& name) -> std::optional<tensor::DType> {
    const auto found = by_name.find(name);
    if (found == by_name.end()) return std::nullopt;
    return found->second->entry->dtype;
  };
  for (const LocatedTensor& tensor : located) {
    if (known.contains(tensor.entry->name)) continue;
    Account::Unknown unknown{tensor.entry->name, file_name(*tensor.file), {}, {}};
    const auto twice = find_stored_twice(unknown.name, find_dtype);
    if (twice.has_value()) {
      unknown.stored_twice = to_text(*twice);
    } else if (account.unknown.size() < kMaxSuggested) {
      unknown.nearest = nearest_names(unknown.name, known_names, kNearest);
    }
    account.unknown.push_back(std::move(unknown));
  }
  return account;
}

Error describe_defects(const Account& account, const std::string& directory) {
  HF_ASSERT(!account.complete(), "a complete account has no defects");
  std::vector<std::string> parts;
  if (!account.mismatched.empty()) {
    parts.push_back(fmt::format("tensor {}{}", account.mismatched.front(),
                                count_more(account.mismatched.size())));
  }
  if (!account.unknown.empty()) {
    const Account::Unknown& first = account.unknown.front();
    const std::string more = count_more(account.unknown.size());
    if (first.stored_twice.empty()) {
      parts.push_back(fmt::format("tensor {} in {} is unknown, the nearest known names are {}{}",
                                  first.name, first.file, fmt::join(first.nearest, ", "), more));
    } else {
      parts.push_back(fmt::format("tensor {} in {}: {}{}", first.name, first.file,
                                  first.stored_twice, more));
    }
  }
  if (!account.missing.empty()) {
    const ExpectedTensor& first = account.missing.front();
    parts.push_back(fmt::format("tensor {} ({} {}) is missing{}", first.name,
                                tensor::dtype_name(first.dtype), first.shape.to_string(),
                                count_more(account.missing.size())));
  }
  return make_error(ErrorCode::kMismatch, "{}: {}; `holdfast inspect` lists all", directory,
                    fmt::join(parts, "; "));
}

}  // namespace holdfast::checkpoint
