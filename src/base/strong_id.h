// StrongId<Tag>: an index that cannot be mistaken for another kind of index.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace holdfast::base {

template <typename Tag, typename Value = std::uint32_t>
struct StrongId {
  Value value{};
  friend constexpr auto operator<=>(const StrongId&, const StrongId&) = default;
  constexpr std::size_t index() const { return static_cast<std::size_t>(value); }
};

}  // namespace holdfast::base

template <typename Tag, typename Value>
struct std::hash<holdfast::base::StrongId<Tag, Value>> {
  std::size_t operator()(const holdfast::base::StrongId<Tag, Value>& id) const noexcept {
    return std::hash<Value>{}(id.value);
  }
};
