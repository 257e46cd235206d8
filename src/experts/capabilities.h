// Which experts backend runs which scheme with which activations on which device, and how: data,
// and the one function that reads it. What `inspect` prints and what choose_experts_backend refuses
// come from here. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/expert_format.h"
#include "experts/experts.h"

namespace holdfast::experts {

enum class Support : std::uint8_t {
  kNative,       // values are multiplied as the checkpoint stores them, at most widened to f32
  kDequantised,  // codes become a wider float first, in registers
  kRefused,
};
// "native", "dequantised", "refused"
std::string_view support_name(Support support);

struct Capability {
  Support support = Support::kRefused;
  std::string reason;  // how it runs, or why not
};
struct BackendOnDevice {
  ExpertsBackendKind backend = ExpertsBackendKind::kHoldfast;
  device::DeviceKind device = device::DeviceKind::kCpu;
};
Capability capability_of(const BackendOnDevice& where, const config::ExpertFormat& format);

// A scheme of weights with one of activations that some backend runs.
struct SchemePair {
  config::ExpertScheme weights = config::ExpertScheme::kBF16;
  config::ActivationScheme activations = config::ActivationScheme::kNone;
};
std::vector<SchemePair> all_scheme_pairs();

// The whole table, in Markdown: a row for each pair, a column for each backend on each device that
// runs anything. Ends with a newline.
std::string experts_matrix();

}  // namespace holdfast::experts
