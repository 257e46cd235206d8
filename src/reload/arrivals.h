// Arrivals: what is learned from a parameter's bytes while they pass: whether they are sane, all
// zero, and what the publisher's digest promised. One staging thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "holdfast/result.h"
#include "reload/plan.h"
#include "storage/registry.h"

namespace holdfast::reload {

// Bytes that stored ones were cast from.
struct CastFrom {
  tensor::DType dtype = tensor::DType::kF32;
  std::span<const std::byte> bytes = {};
};
// "tensor NAME DTYPE SHAPE: element N is VALUE; WHAT IT MUST BE" when `bytes`, which begin `offset`
// bytes into the parameter and hold whole elements, hold a value that arithmetic cannot use. Of
// cast ones the source's dtype and value.
Status check_sane(const storage::ParameterSpec& spec, std::uint64_t offset,
                  std::span<const std::byte> bytes, const std::optional<CastFrom>& from = {});
// That error for element `index` of the parameter, whose bytes these are.
Error insane_value(const storage::ParameterSpec& spec, std::uint64_t index,
                   std::span<const std::byte> element);
// Errors: kCorrupt naming tensor and both digests when they differ.
Status compare_digests(const std::string& tensor, base::Digest found, base::Digest expected);
bool all_zero(std::span<const std::byte> bytes);

class Arrivals {
 public:
  // Notes which resident parameters are zero in the live slots. `plan` must outlive this.
  Arrivals(const storage::Registry& registry, const ReloadPlan& plan);

  // Bytes of the source, before a cast. Those of a tensor with an expected digest count once, in
  // order: a repetition (the tensor feeds two derivations) is ignored.
  void note_source(storage::ParameterId id, std::uint64_t offset, std::span<const std::byte> bytes);
  // Bytes as they are stored.
  void note_value(storage::ParameterId id, std::span<const std::byte> bytes);
  // The same for whoever has looked already.
  void note_zero(storage::ParameterId id, bool zero);

  // Errors: kCorrupt naming tensor and both digests.
  Status check_expected() const;
  // Parameters that came whole, all zero. Resident ones only where the live bytes were not.
  std::vector<storage::ParameterId> suspicious_zeros() const;

 private:
  // One expert's tensor with a digest of its own.
  struct Part {
    std::uint64_t end = 0;  // in the parameter, as the source has its bytes
    std::uint64_t hashed = 0;
    std::string name = {};
    base::Digest expected = {};
    base::DigestStream digest = {};
  };
  struct Progress {
    bool came = false;
    bool nonzero = false;
    bool was_nonzero = false;
    std::uint64_t hashed = 0;
    std::optional<base::DigestStream> digest = {};
    std::map<std::uint64_t, Part> parts = {};  // by where they begin
  };
  static std::map<std::uint64_t, Part> promised_parts(const storage::ParameterSpec& spec,
                                                      const ParameterFeed& feed);
  bool was_zero(const storage::ParameterSpec& spec) const;
  const storage::Registry& registry_;
  const ReloadPlan& plan_;
  std::vector<Progress> progress_;  // by parameter
};

}  // namespace holdfast::reload
