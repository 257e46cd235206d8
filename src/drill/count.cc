#include "drill/count.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace holdfast::drill {
namespace {

bool same_place(const CensusEntry& a, const CensusEntry& b) {
  return a.address == b.address && a.bytes == b.bytes;
}

// Names of both counts, each once, in order.
std::set<std::string> all_names(const Count& a, const Count& b) {
  std::set<std::string> names;
  for (const auto& [name, slot] : a.slots) names.insert(name);
  for (const auto& [name, slot] : b.slots) names.insert(name);
  return names;
}

// Calls `differs` with the two entries of each name, null where a count lacks it.
template <typename Differs>
Names names_where(const Count& a, const Count& b, const Differs& differs) {
  Names result;
  for (const std::string& name : all_names(a, b)) {
    const auto in_a = a.slots.find(name);
    const auto in_b = b.slots.find(name);
    const CensusEntry* first = in_a == a.slots.end() ? nullptr : &in_a->second;
    const CensusEntry* second = in_b == b.slots.end() ? nullptr : &in_b->second;
    if (differs(first, second)) result.push_back(name);
  }
  return result;
}

bool holds_any(const Names& names, const std::set<std::string>* wanted) {
  if (wanted == nullptr) return !names.empty();
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return wanted->contains(name); });
}

std::uint64_t size_of_overlap(const std::set<std::string>& homes,
                              const std::set<std::string>* wanted) {
  if (wanted == nullptr) return homes.size();
  return static_cast<std::uint64_t>(
      std::count_if(homes.begin(), homes.end(),
                    [&](const std::string& name) { return wanted->contains(name); }));
}

}  // namespace

std::uint64_t Count::versioned_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [name, slot] : slots) bytes += slot.digest.empty() ? 0 : slot.bytes;
  return bytes;
}

Result<Count> reduce(const CensusReport& census) {
  Count count;
  count.epoch = census.epoch;
  count.homeless = census.homeless;
  count.rehomed = census.rehomed;
  for (const CensusEntry& slot : census.slots) count.slots.emplace(slot.name, slot);
  const auto json = nlohmann::json::parse(census.json, nullptr, false);
  if (!json.is_object() || !json.contains("addresses") || !json["addresses"].is_array()) {
    return Error(ErrorCode::kCorrupt, "the census's JSON has no array `addresses`");
  }
  for (const auto& address : json["addresses"]) {
    const auto home = address.is_object() ? address.find("home") : address.end();
    if (home != address.end() && home->is_string()) count.homes.insert(home->get<std::string>());
  }
  return count;
}

Names moved(const Count& before, const Count& after) {
  return names_where(before, after, [](const CensusEntry* a, const CensusEntry* b) {
    return a == nullptr || b == nullptr || !same_place(*a, *b);
  });
}

Names changed(const Count& before, const Count& after) {
  return names_where(before, after, [](const CensusEntry* a, const CensusEntry* b) {
    if (a == nullptr || b == nullptr) return true;
    const bool versioned = !a->digest.empty() || !b->digest.empty();
    return versioned && (a->digest != b->digest || !same_place(*a, *b));
  });
}

Names different_values(const Count& a, const Count& b) {
  return names_where(a, b, [](const CensusEntry* first, const CensusEntry* second) {
    if (first == nullptr || second == nullptr) return true;
    return first->digest != second->digest;
  });
}

Names stale_epochs(const Count& count) {
  Names names;
  for (const auto& [name, slot] : count.slots) {
    if (!slot.digest.empty() && slot.epoch != count.epoch) names.push_back(name);
  }
  return names;
}

DrillCount figures(const Counts& counts, const std::set<std::string>* names) {
  std::set<std::string> moved_names;
  for (const Count* later : {&counts.identity, &counts.after_reload, &counts.after_pressure}) {
    for (const std::string& name : moved(counts.first, *later)) moved_names.insert(name);
  }
  DrillCount result;
  for (const auto& [name, slot] : counts.first.slots) {
    if (names != nullptr && !names->contains(name)) continue;
    ++result.total;
    if (!moved_names.contains(name)) continue;
    ++result.moved;
    result.moved_keys.push_back(name);
  }
  result.stable = result.total - result.moved;
  result.values_preserved = !holds_any(changed(counts.first, counts.identity), names);
  // What a graph reads lies at the captured address: a slot that moved since is not intact.
  result.values_intact_post_pressure =
      result.moved == 0 && !holds_any(changed(counts.after_reload, counts.after_pressure), names);
  result.registered_at_first_load = size_of_overlap(counts.first.homes, names);
  result.registered_after_reload = result.registered_at_first_load;
  for (const Count* later : {&counts.identity, &counts.after_reload, &counts.after_pressure}) {
    result.registered_after_reload =
        std::min(result.registered_after_reload, size_of_overlap(later->homes, names));
  }
  return result;
}

std::string listed(std::string_view what, const Names& names) {
  std::string text = fmt::format("{} ({}):", what, names.size());
  std::size_t shown = 0;
  while (shown < names.size() && shown < kShownNames && text.size() < kShownBytes) {
    text += fmt::format("{}{}", shown == 0 ? " " : ", ", names[shown]);
    ++shown;
  }
  if (shown < names.size()) text += fmt::format(", and {} more", names.size() - shown);
  return text;
}

}  // namespace holdfast::drill
