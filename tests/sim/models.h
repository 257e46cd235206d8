// Random small models as real checkpoint directories: one config, and versions of weights that
// differ by their seed. Test code; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.h"
#include "holdfast/result.h"

namespace holdfast::sim {

// What config.json says.
struct ModelShape {
  std::int64_t layers = 1;
  std::int64_t hidden = 8;
  std::int64_t intermediate = 8;
  std::int64_t query_heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 2;
  std::int64_t vocab = 8;
  std::int64_t experts = 1;
  std::int64_t experts_per_token = 1;
  std::int64_t window = 4;
  std::int64_t positions = 32;
  double swiglu_limit = 7.0;
  double rope_theta = 10000.0;
  bool mxfp4 = false;
  bool yarn = false;
  std::vector<bool> sliding;  // by layer
  std::vector<std::int32_t> eos_ids;

  std::string to_string() const;
};
// Sizes that divide nothing nicely, within what the formats allow.
ModelShape draw_shape(base::Rng& rng);
std::string config_json(const ModelShape& shape);
// In the published order.
std::vector<std::string> tensor_names(const ModelShape& shape);

// A part of a model that a partial reload replaces, and the version that it comes from.
struct WeightsPart {
  std::int64_t layer = -1;   // with no expert: all of that layer
  std::int64_t expert = -1;  // of that layer
  std::string tensor = {};   // with no layer: one tensor by name
  std::uint64_t seed = 0;

  bool holds(const std::string& name) const;
};

struct WeightsSpec {
  std::uint64_t seed = 0;  // of each tensor by itself, whatever else there is
  int shards = 1;  // above 1: with an index
  bool other_constants = false;  // another swiglu_limit and rope_theta
  // The all_zero-th tensor (modulo their count) is all zero.
  bool has_zero_tensor = false;
  std::uint64_t all_zero = 0;
  std::vector<WeightsPart> parts = {};  // later ones over earlier ones
};
// Creates `directory` with config and weights. Errors: kIo.
Status write_checkpoint(const ModelShape& shape, const WeightsSpec& weights,
                        const std::string& directory);

// As the option digests_file wants it: the digest of every tensor. Errors: kIo.
Status write_digests(const ModelShape& shape, const WeightsSpec& weights, const std::string& path);

// A directory of its own, in memory where /dev/shm is there; goes away with all that is in it.
class TempDirectory {
 public:
  TempDirectory();
  ~TempDirectory();
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// The names and bytes of all files in a directory, as one number.
std::string digest_of_directory(const std::string& directory);

}  // namespace holdfast::sim
