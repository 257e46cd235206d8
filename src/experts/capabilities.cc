#include "experts/capabilities.h"

#include <fmt/format.h>

#include <array>

namespace holdfast::experts {
namespace {

using config::ActivationScheme;
using config::ExpertScheme;
using device::DeviceKind;

constexpr int kActivationSchemeCount = 6;

constexpr unsigned bit(ActivationScheme scheme) { return 1u << static_cast<unsigned>(scheme); }
constexpr unsigned kNone = bit(ActivationScheme::kNone);
constexpr unsigned kMx = bit(ActivationScheme::kMxfp8);
constexpr unsigned kStatic = bit(ActivationScheme::kFp8Static);
constexpr unsigned kToken = bit(ActivationScheme::kFp8Token);
constexpr unsigned kGroup = bit(ActivationScheme::kFp8TokenGroup);
constexpr unsigned kFp4 = bit(ActivationScheme::kNvfp4);
constexpr unsigned kEvery = kNone | kMx | kStatic | kToken | kGroup | kFp4;

struct Entry {
  ExpertsBackendKind backend;
  DeviceKind device;
  ExpertScheme scheme;
  unsigned activations;
  Support support;
};

using B = ExpertsBackendKind;
using S = ExpertScheme;
constexpr DeviceKind kCpu = DeviceKind::kCpu;
constexpr DeviceKind kCuda = DeviceKind::kCuda;
constexpr Support kNative = Support::kNative;
constexpr Support kWider = Support::kDequantised;

constexpr Entry kEntries[] = {
    {B::kReference, kCpu, S::kBF16, kEvery, kNative},
    {B::kReference, kCpu, S::kF16, kEvery, kNative},
    {B::kReference, kCpu, S::kF32, kEvery, kNative},
    {B::kReference, kCpu, S::kMxfp4, kEvery, kWider},
    {B::kReference, kCpu, S::kMxfp8, kEvery, kWider},
    {B::kReference, kCpu, S::kFp8Tensor, kEvery, kWider},
    {B::kReference, kCpu, S::kFp8Channel, kEvery, kWider},
    {B::kReference, kCpu, S::kFp8Block, kEvery, kWider},
    {B::kReference, kCpu, S::kNvfp4, kEvery, kWider},
    {B::kReference, kCpu, S::kInt4, kEvery, kWider},

    {B::kHoldfast, kCpu, S::kBF16, kEvery, kNative},
    {B::kHoldfast, kCpu, S::kF16, kEvery, kNative},
    {B::kHoldfast, kCpu, S::kF32, kEvery, kNative},
    {B::kHoldfast, kCpu, S::kMxfp4, kEvery, kWider},
    {B::kHoldfast, kCpu, S::kMxfp8, kEvery, kWider},
    {B::kHoldfast, kCpu, S::kFp8Tensor, kEvery, kWider},
    {B::kHoldfast, kCpu, S::kFp8Channel, kEvery, kWider},
    {B::kHoldfast, kCpu, S::kFp8Block, kEvery, kWider},
    {B::kHoldfast, kCpu, S::kNvfp4, kEvery, kWider},
    {B::kHoldfast, kCpu, S::kInt4, kEvery, kWider},
    {B::kHoldfast, kCuda, S::kBF16, kEvery, kNative},
    {B::kHoldfast, kCuda, S::kF16, kEvery, kWider},
    {B::kHoldfast, kCuda, S::kF32, kEvery, kWider},
    {B::kHoldfast, kCuda, S::kMxfp4, kEvery, kWider},
    {B::kHoldfast, kCuda, S::kMxfp8, kEvery, kWider},
    {B::kHoldfast, kCuda, S::kFp8Tensor, kEvery, kWider},
    {B::kHoldfast, kCuda, S::kFp8Channel, kEvery, kWider},
    {B::kHoldfast, kCuda, S::kFp8Block, kEvery, kWider},
    {B::kHoldfast, kCuda, S::kNvfp4, kEvery, kWider},
    {B::kHoldfast, kCuda, S::kInt4, kEvery, kWider},

    {B::kCutlass, kCpu, S::kBF16, kNone, kNative},
    {B::kCutlass, kCpu, S::kF16, kNone, kNative},
    {B::kCutlass, kCpu, S::kMxfp4, kNone | kMx, kWider},
    {B::kCutlass, kCpu, S::kFp8Tensor, kStatic, kWider},
    {B::kCutlass, kCpu, S::kFp8Block, kGroup, kWider},
    {B::kCutlass, kCpu, S::kNvfp4, kFp4, kWider},
    {B::kCutlass, kCuda, S::kMxfp4, kNone, kWider},

    {B::kTrtllm, kCpu, S::kBF16, kNone, kNative},
    {B::kTrtllm, kCpu, S::kMxfp4, kNone | kMx, kWider},
    {B::kTrtllm, kCpu, S::kFp8Tensor, kStatic, kWider},
    {B::kTrtllm, kCpu, S::kNvfp4, kFp4, kWider},

    {B::kMarlin, kCpu, S::kMxfp4, kNone, kWider},
    {B::kMarlin, kCpu, S::kMxfp8, kNone, kWider},
    {B::kMarlin, kCpu, S::kFp8Tensor, kNone, kWider},
    {B::kMarlin, kCpu, S::kFp8Channel, kNone, kWider},
    {B::kMarlin, kCpu, S::kFp8Block, kNone, kWider},
    {B::kMarlin, kCpu, S::kNvfp4, kNone, kWider},
    {B::kMarlin, kCpu, S::kInt4, kNone, kWider},

    {B::kMachete, kCpu, S::kInt4, kNone, kWider},

    {B::kUnquantised, kCpu, S::kBF16, kNone, kNative},
    {B::kUnquantised, kCpu, S::kF16, kNone, kNative},
    {B::kUnquantised, kCpu, S::kF32, kNone, kNative},
};

// What a checkpoint can publish, and what EngineOptions::expert_activations makes of it: that takes
// any weights without input scales of their own.
bool exists(ExpertScheme weights, ActivationScheme activations) {
  switch (activations) {
    case ActivationScheme::kNvfp4: return weights == S::kNvfp4;
    case ActivationScheme::kFp8Static:
      return weights == S::kMxfp4 || weights == S::kMxfp8 || weights == S::kFp8Tensor ||
             weights == S::kFp8Channel || weights == S::kFp8Block;
    default: return true;
  }
}

std::string_view device_name(DeviceKind device) { return device == kCuda ? "cuda" : "cpu"; }

// Hopper's tensor cores know neither shared scales nor 4-bit floats (docs/formats.md).
std::string how_it_runs_on_cuda(ExpertScheme scheme) {
  switch (scheme) {
    case S::kBF16: return "bf16 on the tensor cores";
    case S::kF16:
    case S::kF32: return "in two bf16 parts for the tensor cores";
    case S::kFp8Block:
    case S::kInt4: return "decoded to bf16 for the tensor cores, sums scaled in f32";
    default: return "decoded to bf16 for the tensor cores";
  }
}

std::string how_it_runs(const Entry& entry) {
  if (entry.device == kCuda) return how_it_runs_on_cuda(entry.scheme);
  const bool simd = entry.backend == B::kHoldfast;
  if (entry.support == Support::kNative) {
    return simd ? "packed, SIMD on all cores" : "at most widened to f32";
  }
  return simd ? "packed, decoded to f32, SIMD on all cores" : "decoded to f32";
}

// Why no entry fits: the first thing that is wanting.
std::string why_not(const BackendOnDevice& where, const config::ExpertFormat& format) {
  bool on_device = false;
  bool other_device = false;
  unsigned activations = 0;
  for (const Entry& entry : kEntries) {
    if (entry.backend != where.backend) continue;
    on_device |= entry.device == where.device;
    if (entry.scheme != format.scheme) continue;
    if (entry.device == where.device) activations |= entry.activations;
    other_device |= entry.device != where.device;
  }
  if (!on_device || (other_device && activations == 0)) {
    return fmt::format("kernels for the {} only", where.device == kCuda ? "cpu" : "cuda");
  }
  if (activations == 0) return "no such weights";
  std::string known;
  for (int i = 0; i < kActivationSchemeCount; ++i) {
    const auto scheme = static_cast<ActivationScheme>(i);
    if ((activations & bit(scheme)) == 0) continue;
    known += (known.empty() ? "" : ", ") + std::string(config::activation_scheme_name(scheme));
  }
  return fmt::format("with activations {} only", known);
}

bool fits(const Entry& entry, const BackendOnDevice& where, const config::ExpertFormat& format) {
  return entry.backend == where.backend && entry.device == where.device &&
         entry.scheme == format.scheme && (entry.activations & bit(format.activations)) != 0;
}

}  // namespace

std::string_view support_name(Support support) {
  switch (support) {
    case Support::kNative: return "native";
    case Support::kDequantised: return "dequantised";
    case Support::kRefused: return "refused";
  }
  return "unknown";
}

Capability capability_of(const BackendOnDevice& where, const config::ExpertFormat& format) {
  for (const Entry& entry : kEntries) {
    if (fits(entry, where, format)) return {entry.support, how_it_runs(entry)};
  }
  return {Support::kRefused, why_not(where, format)};
}

std::vector<SchemePair> all_scheme_pairs() {
  std::vector<SchemePair> pairs;
  for (int scheme = 0; scheme < config::kExpertSchemeCount; ++scheme) {
    for (int inputs = 0; inputs < kActivationSchemeCount; ++inputs) {
      const SchemePair pair{static_cast<ExpertScheme>(scheme),
                            static_cast<ActivationScheme>(inputs)};
      if (exists(pair.weights, pair.activations)) pairs.push_back(pair);
    }
  }
  return pairs;
}

std::string experts_matrix() {
  std::vector<BackendOnDevice> columns;
  for (int i = 0; i < kExpertsBackendCount; ++i) {
    columns.push_back({static_cast<ExpertsBackendKind>(i), kCpu});
  }
  columns.push_back({B::kHoldfast, kCuda});
  columns.push_back({B::kCutlass, kCuda});
  std::string text = "| weights x activations |";
  std::string rule = "| --- |";
  for (const BackendOnDevice& column : columns) {
    text += fmt::format(" {}, {} |", experts_backend_name(column.backend),
                        device_name(column.device));
    rule += " --- |";
  }
  text += "\n" + rule + "\n";
  for (const SchemePair& pair : all_scheme_pairs()) {
    text += fmt::format("| {} x {} |", config::expert_scheme_name(pair.weights),
                        config::activation_scheme_name(pair.activations));
    for (const BackendOnDevice& column : columns) {
      const Capability capability =
          capability_of(column, {.scheme = pair.weights, .activations = pair.activations});
      text += capability.support == Support::kRefused
                  ? fmt::format(" refused: {} |", capability.reason)
                  : fmt::format(" {} |", support_name(capability.support));
    }
    text += "\n";
  }
  return text;
}

}  // namespace holdfast::experts
