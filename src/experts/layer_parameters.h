// What the backends derive alike from one layer's published tensors: the chain of scales (weight
// scale, input scale, alpha), and the order of inputs under act-order. Each is a derived slot, so a
// reload computes it anew. The thread that defines; derivations run on the reload's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/expert_tensors.h"
#include "experts/experts.h"
#include "experts/quantized_inputs.h"
#include "holdfast/result.h"
#include "storage/registry.h"
#include "tensor/int4_codecs.h"

namespace holdfast::experts {

// The transient parameters of a layer, each bound once, however many derivations read it.
class LayerParameters {
 public:
  LayerParameters(storage::Registry& registry, const ExpertsSpec& spec)
      : registry_(registry), spec_(spec), made_(registry, spec) {}

  storage::Registry& registry() { return registry_; }
  const ExpertsSpec& spec() const { return spec_; }
  // Of a tensor that is made on arrival, what stands for it among the inputs of `derive`.
  Result<storage::ParameterId> bind(const config::ExpertTensor& tensor);
  // Null when the layer has no such tensor.
  const config::ExpertTensor* find(config::Projection projection, config::TensorRole role) const;
  Result<const config::ExpertTensor*> need(config::Projection projection,
                                           config::TensorRole role) const;
  // A derived slot `<slot_prefix>.<name>` with its derivation, one expert at a time: `shape` begins
  // with the experts, `inputs` are transient.
  struct Derived {
    std::string name;
    tensor::DType dtype = tensor::DType::kF32;
    tensor::Shape shape = {};
    std::vector<storage::DeriveInput> inputs = {};
    std::int64_t slice_count = 1;
    storage::DeriveFunction function = {};
    std::string arena = {};
    storage::UnitOrder order = {};
  };
  Result<storage::SlotId> derive(Derived derived);

 private:
  storage::Registry& registry_;
  const ExpertsSpec& spec_;
  QuantizedInputs made_;
  std::map<std::string, storage::ParameterId> bound_;
};

// The arena of the chain of scales: every f32 [E] that is derived.
inline constexpr const char* kScalesArena = "experts.scales";

// The matrices of one product: {kGateUp}, {kGate, kUp} or {kDown}.
struct Product {
  std::string name;  // "gate_up", "down"
  std::vector<config::Projection> projections;
  std::int64_t columns = 0;
};
Product gate_up_product(const ExpertsSpec& spec);
Product down_product(const ExpertsSpec& spec);

// `<product>.input_scale` f32 [E]: the multiplier of the product's inputs, the largest of its
// projections' (a product has one input). None without static activations. Computing it errors with
// kCorrupt for a scale that is not finite and positive.
Result<std::optional<storage::SlotId>> define_input_scale(LayerParameters& layer,
                                                          const Product& product);
// `<projection>.weight_scale` f32 [E]: FP8 per tensor's scale, NVFP4's global multiplier (whatever
// the publisher's convention). None in other schemes. Errors when computed: as above.
Result<std::optional<storage::SlotId>> define_weight_scale(LayerParameters& layer,
                                                           config::Projection projection);
// `<projection>.alpha` f32 [E] = weight_scale * input_scale, derived from derived slots; what there
// is when there is only one of the two.
struct ScaleChain {
  std::optional<storage::SlotId> weight_scale, input_scale, alpha;
};
Result<ScaleChain> define_scale_chain(LayerParameters& layer, config::Projection projection,
                                      std::optional<storage::SlotId> input_scale);

// Where packed column j of an act-order matrix comes from: the columns by group, each group's in
// their own order. Errors: kCorrupt for a group out of range or of another size than size.group;
// kMismatch when a format without act-order has groups that are not consecutive.
Result<std::vector<std::int32_t>> int4_order(const tensor::Int4Size& size, bool act_order,
                                             std::span<const std::int32_t> group_index);
// The same for one expert's product, whose projections share their inputs: `indices` are the group
// indices of all of them, i32 [columns] each. Errors also: kUnsupported naming the product and the
// first input when they differ. Every backend goes by this.
Result<std::vector<std::int32_t>> product_order(const Product& product,
                                                const config::ExpertFormat& format,
                                                std::span<const tensor::TensorView> indices);
// `<product>.<slot_name>` i32 [E, columns]: that order; none without act-order. Errors when
// computed: as product_order.
Result<std::optional<storage::SlotId>> define_order(LayerParameters& layer, const Product& product,
                                                    const std::string& slot_name);
// `<projection>.group_index` i32 [E, columns]: as published, for kernels that go by it; none where
// the format has none. Errors when computed: as product_order.
Result<std::optional<storage::SlotId>> define_group_index(LayerParameters& layer,
                                                          const Product& product,
                                                          config::Projection projection);

tensor::Int4Packing int4_packing(const config::ExpertFormat& format);

}  // namespace holdfast::experts
