#include "reload/reload_fixture.h"

#include <fmt/format.h>

#include "base/assert.h"

namespace holdfast::reload::testing {
namespace {

using storage::SlotClass;
using tensor::DType;
using tensor::Shape;
using tensor::TensorView;

constexpr std::int64_t kHidden = 10;
constexpr std::int64_t kBlockBytes = 7;
constexpr std::int64_t kScaleBytes = 5;
constexpr std::int64_t kSinks = 5;

Status bind_weight(storage::Registry& registry, const std::string& name, const Shape& shape) {
  HF_ASSIGN(const auto slot, registry.define({.name = name,
                                              .slot_class = SlotClass::kWeight,
                                              .dtype = DType::kBF16,
                                              .shape = shape,
                                              .arena = {}}));
  HF_TRY(registry.bind(
      {.name = "model." + name, .dtype = DType::kBF16, .shape = shape, .slot = slot}));
  return {};
}

Result<storage::SlotId> derived(storage::Registry& registry, const std::string& name, DType dtype,
                                const Shape& shape) {
  return registry.define({.name = name,
                          .slot_class = SlotClass::kDerived,
                          .dtype = dtype,
                          .shape = shape,
                          .arena = {}});
}

// bf16 is the upper half of an f32.
Status widen(device::Stream&, std::span<const TensorView> in, std::span<const TensorView> out) {
  for (std::int64_t i = 0; i < in[0].shape.element_count(); ++i) {
    out[0].as<std::uint32_t>()[i] = std::uint32_t{in[0].as<std::uint16_t>()[i]} << 16;
  }
  return {};
}

// blocks [1, 7] and scales [1, 5] side by side, every other byte from the blocks while there are
// two.
Status pack(device::Stream&, std::span<const TensorView> in, std::span<const TensorView> out) {
  std::byte* to = out[0].address;
  for (std::int64_t i = 0; i < kBlockBytes; ++i) {
    *to++ = in[0].address[i];
    if (i < kScaleBytes) *to++ = in[1].address[i];
  }
  return {};
}

struct SumArgs {
  static constexpr int kMax = 8;
  const std::byte* in[kMax] = {};
  std::uint64_t bytes[kMax] = {};
  int count = 0;
  std::uint64_t* out = nullptr;
};

// FNV-1a over the inputs, so that every byte and its place count.
void run_sum(const SumArgs& args, device::WorkerPool&) {
  std::uint64_t sum = 0xcbf29ce484222325ull;
  for (int i = 0; i < args.count; ++i) {
    for (std::uint64_t at = 0; at < args.bytes[i]; ++at) {
      sum = (sum ^ static_cast<std::uint64_t>(args.in[i][at])) * 0x100000001b3ull;
    }
  }
  *args.out = sum;
}

// Row sums through a kernel, so that a launch may fail in the midst of staging.
void run_row_sums(const SumArgs& args, device::WorkerPool&) {
  for (int i = 0; i < args.count; ++i) {
    std::uint32_t sum = 0;
    for (std::uint64_t at = 0; at < args.bytes[i]; ++at) {
      sum = sum * 31 + static_cast<std::uint32_t>(args.in[i][at]);
    }
    reinterpret_cast<std::uint32_t*>(args.out)[i] = sum;
  }
}

Status row_sums(device::Stream& stream, std::span<const TensorView> in,
                std::span<const TensorView> out) {
  SumArgs args;
  for (std::int64_t row = 0; row < in[0].shape[0]; ++row) {
    args.in[args.count] = in[0].row(row).address;
    args.bytes[args.count++] = in[0].row(row).bytes();
  }
  args.out = out[0].as<std::uint64_t>();
  return device::launch_cpu<&run_row_sums>(
      stream, "row_sums", args, {device::reads("in", in[0]), device::writes("out", out[0])});
}

// The sum of the embedding's bits times the first constant's.
Status embed_norm(device::Stream&, std::span<const TensorView> in,
                  std::span<const TensorView> out) {
  std::uint64_t sum = 0;
  for (const std::byte byte : in[0].const_span()) sum = sum * 31 + static_cast<std::uint64_t>(byte);
  *out[0].as<std::uint64_t>() = sum * *in[1].as<std::uint32_t>();
  return {};
}

Status define_constants(storage::Registry& registry, const std::string& prefix,
                        std::int64_t experts) {
  float value = 1.702f;
  for (const char* name : {"swiglu_alpha", "swiglu_beta", "swiglu_limit"}) {
    const std::vector<float> values(static_cast<std::size_t>(experts), value);
    std::vector<std::byte> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    HF_TRY(registry.define_constant({.name = prefix + "." + name,
                                     .slot_class = SlotClass::kConstant,
                                     .dtype = DType::kF32,
                                     .shape = {experts},
                                     .arena = "experts.constants"},
                                    std::move(bytes)));
    value += 2.5f;
  }
  return {};
}

Status define_qkv(storage::Registry& registry, const std::string& prefix) {
  HF_ASSIGN(const auto qkv, registry.define({.name = prefix + ".qkv",
                                             .slot_class = SlotClass::kWeight,
                                             .dtype = DType::kBF16,
                                             .shape = {11, kHidden},
                                             .arena = {}}));
  std::size_t row = 0;
  for (const auto& [name, rows] :
       {std::pair{"q_proj", 5}, std::pair{"k_proj", 3}, std::pair{"v_proj", 3}}) {
    HF_TRY(registry.bind({.name = fmt::format("model.{}.{}.weight", prefix, name),
                          .dtype = DType::kBF16,
                          .shape = {rows, kHidden},
                          .slot = qkv,
                          .offset_bytes = row * kHidden * 2}));
    row += static_cast<std::size_t>(rows);
  }
  return {};
}

// A transient tensor of all experts [experts, width], perhaps published as one for each.
Result<storage::ParameterId> bind_experts(storage::Registry& registry, const std::string& prefix,
                                          const std::string& name, const Shape& shape,
                                          bool parts) {
  storage::ParameterSpec spec{.name = fmt::format("model.{}.experts.{}", prefix, name),
                              .dtype = DType::kU8,
                              .shape = shape,
                              .slot = {},
                              .expert_axis = true};
  for (std::int64_t i = 0; parts && i < shape[0]; ++i) {
    spec.part_names.push_back(fmt::format("model.{}.experts.{}.{}", prefix, i, name));
    spec.part_shape = {shape[1]};
  }
  return registry.bind(std::move(spec));
}

Status define_layer(storage::Registry& registry, const std::string& prefix,
                    const TinyOptions& options) {
  const std::int64_t experts = options.experts;
  HF_TRY(define_qkv(registry, prefix));
  HF_ASSIGN(const auto sinks, derived(registry, prefix + ".sinks", DType::kF32, {kSinks}));
  HF_ASSIGN(const auto sinks_in, registry.bind({.name = "model." + prefix + ".sinks",
                                                .dtype = DType::kBF16,
                                                .shape = {kSinks},
                                                .slot = {}}));
  HF_ASSIGN(const auto packed, derived(registry, prefix + ".experts.packed", DType::kU8,
                                       {experts, kBlockBytes + kScaleBytes}));
  HF_ASSIGN(const auto blocks, bind_experts(registry, prefix, "gate_blocks",
                                            {experts, kBlockBytes}, options.parts));
  HF_ASSIGN(const auto scales, bind_experts(registry, prefix, "gate_scales",
                                            {experts, kScaleBytes}, options.parts));
  HF_ASSIGN(const auto sums, derived(registry, prefix + ".experts.sums", DType::kI32, {experts}));
  // Before what it reads: the registry puts derivations in order.
  HF_TRY(registry.derive({.name = prefix + ".sums",
                          .inputs = {packed},
                          .outputs = {sums},
                          .slice_count = 1,
                          .function = row_sums}));
  HF_TRY(registry.derive({.name = prefix + ".sinks.widen",
                          .inputs = {sinks_in},
                          .outputs = {sinks},
                          .slice_count = 1,
                          .function = widen}));
  HF_TRY(registry.derive({.name = prefix + ".pack",
                          .inputs = {blocks, scales},
                          .outputs = {packed},
                          .slice_count = experts,
                          .function = pack}));
  return define_constants(registry, prefix + ".experts", experts);
}

bool is_scales(const storage::ParameterSpec& parameter) {
  return parameter.name.ends_with("_scales");
}

// The slots that the graph of capture_sum reads.
std::vector<storage::SlotId> summed_slots(const storage::Registry& registry) {
  std::vector<storage::SlotId> ids;
  for (const char* name : {"embed", "layers.1.qkv", "layers.1.sinks", "layers.1.experts.packed",
                           "layers.1.experts.sums", "layers.1.experts.swiglu_alpha",
                           "layers.1.experts.swiglu_limit"}) {
    ids.push_back(registry.find_slot(name).value());
  }
  return ids;
}

SumArgs sum_args(const storage::Registry& registry) {
  SumArgs args;
  for (const auto id : summed_slots(registry)) {
    args.in[args.count] = registry.view(id).address;
    args.bytes[args.count++] = registry.view(id).bytes();
  }
  args.out = registry.view(registry.find_slot("scratch.sum").value()).as<std::uint64_t>();
  return args;
}

}  // namespace

Status define_tiny(storage::Registry& registry, const TinyOptions& options) {
  HF_TRY(bind_weight(registry, "embed", {13, kHidden}));
  if (options.alias) {
    HF_TRY(registry.bind_alias("lm_head.weight", registry.find_parameter("model.embed").value()));
  }
  if (options.big_rows > 0) HF_TRY(bind_weight(registry, "big", {options.big_rows, 64}));
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    HF_TRY(define_layer(registry, fmt::format("layers.{}", layer), options));
  }
  HF_ASSIGN(const auto norm, derived(registry, "embed.norm", DType::kI64, {1}));
  HF_TRY(registry.derive({.name = "embed.norm",
                          .inputs = {registry.find_parameter("model.embed").value(),
                                     registry.find_slot("layers.0.experts.swiglu_alpha").value()},
                          .outputs = {norm},
                          .slice_count = 1,
                          .function = embed_norm}));
  HF_TRY(registry.define({.name = "scratch.sum",
                          .slot_class = SlotClass::kScratch,
                          .dtype = DType::kI64,
                          .shape = {1},
                          .arena = {}}));
  return {};
}

std::vector<FakeTensor> draw_tensors(const storage::Registry& registry, std::uint64_t seed) {
  std::vector<FakeTensor> tensors;
  base::Rng rng(seed);
  for (const storage::ParameterSpec& parameter : registry.parameters()) {
    FakeTensor tensor;
    tensor.spec = {.name = parameter.name, .dtype = parameter.dtype, .shape = parameter.shape};
    tensor.bytes.resize(tensor::byte_size(parameter.dtype, parameter.shape).value());
    for (std::size_t i = 0; i < tensor.bytes.size(); ++i) {
      std::uint64_t byte = rng.next_below(256);
      // Clears a bit of the exponent: finite, and no e8m0 NaN.
      if (parameter.dtype == DType::kBF16 && i % 2 == 1) byte &= 0xBF;
      if (is_scales(parameter)) byte &= 0x7F;
      tensor.bytes[i] = static_cast<std::byte>(byte);
    }
    if (parameter.part_names.empty()) tensors.push_back(std::move(tensor));
    for (std::size_t row = 0; row < parameter.part_names.size(); ++row) {
      const std::size_t bytes = tensor.bytes.size() / parameter.part_names.size();
      const auto part = std::span(tensor.bytes).subspan(row * bytes, bytes);
      tensors.push_back({.spec = {.name = parameter.part_names[row],
                                  .dtype = parameter.dtype,
                                  .shape = parameter.part_shape},
                         .bytes = {part.begin(), part.end()}});
    }
  }
  return tensors;
}

Engine::Engine(const TinyOptions& options) {
  device = std::make_unique<device::SimDevice>(device::make_cpu_device());
  define_tiny(registry, options).value();
  registry.seal(*device).value();
  stream = device->create_stream(1).value();
}

Status Engine::prepare(Source& from, CommitStrategy strategy, TransactionOptions options) {
  HF_ASSIGN(ReloadPlan plan, make_plan(registry, model_config, from, strategy));
  options.clock = &clock;
  HF_ASSIGN(transaction, Transaction::begin(registry, std::move(plan), options));
  HF_TRY(transaction->stage(from, *stream));
  return transaction->prepare();
}

Status Engine::reload(Source& from, CommitStrategy strategy, TransactionOptions options) {
  HF_TRY(prepare(from, strategy, options));
  HF_TRY(transaction->commit());
  return transaction->verify();
}

std::vector<std::vector<std::byte>> content(const storage::Registry& registry) {
  std::vector<std::vector<std::byte>> arenas;
  for (const device::Arena* arena : registry.versioned_arenas()) {
    const device::Memory memory = arena->memory();
    arenas.emplace_back(memory.address, memory.address + memory.bytes);
  }
  return arenas;
}

Snapshot snapshot(const Engine& engine) {
  Snapshot taken;
  taken.arenas = content(engine.registry);
  for (const storage::Slot& slot : engine.registry.slots()) {
    taken.addresses.push_back(slot.range.begin);
    taken.slot_epochs.push_back(slot.epoch.value);
    taken.digests.push_back(slot.digest);
  }
  for (const device::Arena* arena : engine.registry.versioned_arenas()) {
    taken.protections.push_back(arena->protection());
  }
  taken.epoch = engine.registry.epoch().value;
  taken.live_bytes = engine.device->usage().live_bytes;
  return taken;
}

Result<std::unique_ptr<device::Graph>> capture_sum(Engine& engine) {
  const storage::Registry& registry = engine.registry;
  return device::capture(*engine.stream, registry, "sum", [&]() -> Status {
    std::vector<device::Operand> operands;
    for (const auto id : summed_slots(registry)) {
      operands.push_back(device::reads("in", registry.view(id)));
    }
    operands.push_back(
        device::writes("out", registry.view(registry.find_slot("scratch.sum").value())));
    const SumArgs args = sum_args(registry);
    return static_cast<device::CpuStream&>(*engine.stream)
        .launch({.name = "sum",
                 .run =
                     [](const void* raw, device::WorkerPool& pool) {
                       run_sum(*static_cast<const SumArgs*>(raw), pool);
                     },
                 .args = &args,
                 .arg_bytes = sizeof(args),
                 .operands = operands});
  });
}

std::uint64_t replay_sum(Engine& engine, device::Graph& graph) {
  graph.launch(*engine.stream).value();
  const auto id = engine.registry.find_slot("scratch.sum").value();
  return *engine.registry.view(id).as<std::uint64_t>();
}

std::uint64_t expected_sum(const storage::Registry& registry) {
  SumArgs args = sum_args(registry);
  std::uint64_t sum = 0;
  args.out = &sum;
  device::WorkerPool workers(1);
  run_sum(args, workers);
  return sum;
}

}  // namespace holdfast::reload::testing
