// Slot: one fixed range in an arena. Its address never changes while the registry is sealed; its
// bytes may. Parameter: a model name bound to (part of) a slot, or to staging alone. Values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/digest.h"
#include "base/strong_id.h"
#include "device/device.h"
#include "tensor/tensor_view.h"

namespace holdfast::storage {

using SlotId = base::StrongId<struct SlotIdTag>;
using ParameterId = base::StrongId<struct ParameterIdTag>;
// Says which weights: 0 before the first load, +1 per commit.
using Epoch = base::StrongId<struct EpochTag, std::uint64_t>;

enum class SlotClass : std::uint8_t {
  kWeight,    // loaded
  kDerived,   // computed from weights: packed, swizzled, dequantised, summed
  kConstant,  // computed from the config: SwiGLU alpha, beta, limit, rope tables
  kState,     // KV pages
  kInput,     // token ids, positions, block tables
  kScratch,   // workspaces
  kSync,      // locks, counters
};
std::string_view slot_class_name(SlotClass slot_class);  // "weight", "derived", ...
// Weight, derived and constant slots: replaced by a commit, read-only otherwise.
bool is_versioned(SlotClass slot_class);

struct SlotSpec {
  std::string name = {};  // unique: "layers.3.experts.swiglu_alpha"
  SlotClass slot_class = SlotClass::kWeight;
  tensor::DType dtype = tensor::DType::kF32;
  tensor::Shape shape = {};
  // The arena that holds it; empty means "weights" for versioned classes and "working" for the
  // rest. Versioned and other slots may not share an arena.
  std::string arena = {};
  std::size_t alignment = 64;
  // A table of addresses that kernels follow: each of its words is null or lies in a slot. Says so
  // and the contents are read by captures and censuses, too (storage/address_tables.h). Of 8-byte
  // words, and of a class that no commit replaces: whoever owns the engine fills it after seal.
  bool address_table = false;
};

struct Slot {
  SlotSpec spec = {};
  SlotId id = {};
  device::AddressRange range = {};  // fixed by seal
  // Of the last commit; for unversioned slots epoch 0 and no digest.
  Epoch epoch = {};
  std::optional<base::Digest> digest = {};
};

// The layout tag of a dense row-major tensor as publishers store it.
inline constexpr std::string_view kCheckpointLayout = "checkpoint";

// A checkpoint tensor that the model needs. Resident: its bytes land in `slot` at `offset_bytes`
// unchanged. Transient (no slot): it lives in staging only and feeds derivations.
struct ParameterSpec {
  std::string name = {};  // "model.layers.3.self_attn.q_proj.weight"
  tensor::DType dtype = tensor::DType::kBF16;
  tensor::Shape shape = {};
  std::optional<SlotId> slot = {};
  std::size_t offset_bytes = 0;
  // Where in the model: -1 means outside of the layers. Registry::bind reads it from the name
  // ("...layers.N...") when it is left at -1.
  std::int64_t layer = -1;
  bool expert_axis = false;  // the first dimension is the expert
  // Of bf16 ones: sources may have it as f16 or f32, too, and it is rounded once as it comes.
  bool any_float = false;
  // How the bytes are laid out; a source with another tag is refused.
  std::string layout = std::string(kCheckpointLayout);
  // The published tensors that are one row of it each, in order, where no file has the whole: an
  // expert's own "...experts.7.gate_proj.weight". As many as the first dimension, or none. `name`
  // stays a name for all rows together.
  std::vector<std::string> part_names = {};
  tensor::Shape part_shape = {};  // of each of them; the elements of a row
};
// What a published name stands for: a parameter, or one row of it.
struct PublishedTensor {
  ParameterId parameter = {};
  std::optional<std::int64_t> row = {};
};
// N of "...layers.N." or "layers.N" in a name; -1 when there is none.
std::int64_t layer_of_name(std::string_view name);

// A second published name of a parameter (tied embeddings): both are legal, the storage is one.
struct ParameterAlias {
  std::string name = {};
  ParameterId parameter = {};
};

using DeriveInput = std::variant<ParameterId, SlotId>;
// Computes outputs from inputs on `stream`; all views lie in staging (or in a source's mapping) and
// inputs must not be written. Called once per slice, in any order.
using DeriveFunction =
    std::function<Status(device::Stream& stream, std::span<const tensor::TensorView> inputs,
                         std::span<const tensor::TensorView> outputs)>;

// Where a packing that only moves units of bytes has them: in one slice of the output, what a plain
// row-major packing would have as unit i stands as unit place(i). For whoever misapplies it on
// purpose (reload/faults.h); no function, no claim.
struct UnitOrder {
  std::int64_t unit_bytes = 1;
  std::function<std::int64_t(std::int64_t)> place = {};
};

// How derived slots are computed from parameters and other slots.
struct Derivation {
  std::string name = {};  // "layers.3.experts.gate_up.pack"
  std::vector<DeriveInput> inputs = {};
  std::vector<SlotId> outputs = {};
  // Above 1: transient parameter inputs and all outputs have this first dimension, and the function
  // sees one row of it at a time (rank kept, first dimension 1), so that staging holds one expert
  // and not a layer. Slot inputs are passed whole.
  std::int64_t slice_count = 1;
  DeriveFunction function = {};
  UnitOrder order = {};  // of its one output
  std::uint64_t host_bytes = 0;  // what the function holds besides its views, where that is much
};

}  // namespace holdfast::storage
