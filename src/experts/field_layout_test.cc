// The field's layouts are bijections, what is packed through them can be unpacked, their padding is
// zero, and their locks are zero after every launch.
#include "experts/field_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "experts/capabilities.h"
#include "experts/test_layer.h"

namespace holdfast::experts {
namespace {

using config::ActivationScheme;
using config::ExpertDialect;
using config::ExpertScheme;
using testing::DType;
using testing::Tensors;
using testing::TestLayer;

constexpr FieldOrder kOrders[] = {FieldOrder::kRowMajor, FieldOrder::kEpilogueTile,
                                  FieldOrder::kMarlinTile, FieldOrder::kMacheteBlock,
                                  FieldOrder::kWarpTile};

TEST(FieldLayout, EveryUnitHasAPlaceOfItsOwn) {
  for (const FieldOrder order : kOrders) {
    for (const auto& [rows, units] : {std::pair{128, 16}, {256, 48}, {384, 128}}) {
      const FieldLayout layout{order, rows, units};
      std::vector<int> taken(static_cast<std::size_t>(rows * units), 0);
      for (int r = 0; r < rows; ++r) {
        for (int u = 0; u < units; ++u) ++taken.at(static_cast<std::size_t>(layout.place(r, u)));
      }
      EXPECT_TRUE(std::ranges::all_of(taken, [](int count) { return count == 1; }))
          << static_cast<int>(order);
    }
  }
}

TEST(FieldLayout, ARowsUnitsComeAgainAtOneDistanceEveryPeriod) {
  for (const FieldOrder order : kOrders) {
    const FieldLayout layout{order, 256, 48};
    for (int r = 0; r < 256; ++r) {
      for (int u = 0; u + FieldLayout::kPeriod < 48; ++u) {
        ASSERT_EQ(layout.place(r, u + FieldLayout::kPeriod),
                  layout.place(r, u) + layout.period_step());
      }
      bool together = true;
      for (int u = 0; u < 48; ++u) together &= layout.place(r, u) == layout.place(r, 0) + u;
      ASSERT_EQ(layout.keeps_rows_together(), together);
    }
  }
}

TEST(FieldLayout, UnitsOfARunStandOneAfterAnother) {
  for (const FieldOrder order : kOrders) {
    const FieldLayout layout{order, 256, 48};
    const auto run = static_cast<int>(layout.run());
    ASSERT_EQ(48 % run, 0);
    for (int u = 0; u < 48; ++u) {
      EXPECT_EQ(layout.place(77, u), layout.place(77, u / run * run) + u % run)
          << static_cast<int>(order);
    }
  }
}

// What the CUDA kernel reads: a lane's 16 bytes are 32 columns of one row, a warp's 512 follow.
TEST(FieldLayout, AWarpTileIsEightRowsOfFourScales) {
  const FieldLayout layout{FieldOrder::kWarpTile, 256, 48};
  for (int lane = 0; lane < 32; ++lane) {
    const std::int64_t first = layout.place(24 + lane / 4, 16 + lane % 4 * 4);
    EXPECT_EQ(first, ((3 * 3 + 1) * 32 + lane) * 4);
  }
}

TEST(FieldLayout, EveryColumnHasANibbleOfItsOwn) {
  for (const FieldOrder order : kOrders) {
    std::set<int> places;
    for (int column = 0; column < 8; ++column) places.insert(nibble_place(order, column));
    EXPECT_EQ(places, (std::set<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  }
}

TEST(FieldLayout, EveryScaleHasAPlaceOfItsOwn) {
  for (const auto order : {FieldScaleOrder::kRowMajor, FieldScaleOrder::kFold64x4,
                           FieldScaleOrder::kSwizzle128x4, FieldScaleOrder::kMarlin}) {
    const FieldScaleLayout layout{order, 384, 12};
    std::vector<int> taken(384 * 12, 0);
    for (int r = 0; r < 384; ++r) {
      for (int g = 0; g < 12; ++g) ++taken.at(static_cast<std::size_t>(layout.place(r, g)));
    }
    EXPECT_TRUE(std::ranges::all_of(taken, [](int count) { return count == 1; }))
        << static_cast<int>(order);
    const auto run = static_cast<int>(layout.run());
    for (int g = 0; g < 12; ++g) {
      EXPECT_EQ(layout.place(77, g), layout.place(77, g / run * run) + g % run)
          << static_cast<int>(order);
    }
  }
}

// Every code that came, counted, is there once; all else is zero: no padding, no second copy.
TEST(FieldPacking, EveryNibbleOfTheSourceAppearsOnceAndThePaddingIsZero) {
  const config::ExpertFormat mxfp4{.scheme = ExpertScheme::kMxfp4};
  const ExpertsShape shape{2, 1, 160, 96, 1};
  for (const auto kind : {ExpertsBackendKind::kCutlass, ExpertsBackendKind::kTrtllm,
                          ExpertsBackendKind::kMarlin}) {
    TestLayer layer(kind, mxfp4, shape);
    const Tensors tensors = testing::make_tensors(mxfp4, shape, 1);
    layer.load(tensors);
    for (const auto& [slot_name, tensor_name] :
         {std::pair{"gate_up.weight", "gate_up_proj_blocks"},
          {"down.weight", "down_proj_blocks"}}) {
      std::vector<std::int64_t> came(16, 0), stands(16, 0);
      const auto source = tensors.at(tensor_name).as<std::uint8_t>();
      const auto id = layer.registry().find_slot(std::string("layers.0.experts.") + slot_name);
      const auto view = layer.registry().view(id.value());
      for (const std::uint8_t byte : source) ++came[byte & 15], ++came[byte >> 4];
      for (std::size_t i = 0; i < view.bytes(); ++i) {
        const auto byte = view.as<const std::uint8_t>()[i];
        ++stands[byte & 15], ++stands[byte >> 4];
      }
      came[0] += 2 * static_cast<std::int64_t>(view.bytes() - source.size());
      EXPECT_EQ(came, stands) << experts_backend_name(kind) << " " << slot_name;
    }
  }
}

// Unpacked by the layout's own description, the weights are those that came.
TEST(FieldPacking, UnpackingWhatWasPackedGivesTheSource) {
  config::ExpertFormat gptq{.scheme = ExpertScheme::kInt4, .dialect = ExpertDialect::kGptq};
  gptq.group_size = 32;
  gptq.scale_dtype = DType::kF16;
  const ExpertsShape shape{2, 1, 160, 96, 1};
  for (const auto& [kind, order] :
       {std::pair{ExpertsBackendKind::kMarlin, FieldOrder::kMarlinTile},
        {ExpertsBackendKind::kMachete, FieldOrder::kMacheteBlock}}) {
    TestLayer layer(kind, gptq, shape);
    const Tensors tensors = testing::make_tensors(gptq, shape, 2);
    layer.load(tensors);
    const auto words = tensors.at("down_proj.qweight").as<std::uint32_t>();  // [E, 96 / 8, 160]
    const auto id = layer.registry().find_slot("layers.0.experts.down.weight").value();
    const auto* packed = layer.registry().view(id).as<const std::uint32_t>();
    const FieldLayout layout{order, 256, 16};
    for (std::int64_t e = 0; e < 2; ++e) {
      for (std::int64_t r = 0; r < 160; ++r) {
        for (std::int64_t k = 0; k < 96; ++k) {
          const std::uint32_t word = packed[e * 256 * 16 + layout.place(r, k / 8)];
          const int column = static_cast<int>(k % 8);
          const std::uint32_t source = words[(e * 12 + k / 8) * 160 + r];
          ASSERT_EQ(word >> (4 * nibble_place(order, column)) & 15, source >> (4 * column) & 15);
        }
      }
    }
  }
}

TEST(FieldSync, LocksAreZeroAfterEveryLaunchAndADirtyOneShows) {
  const config::ExpertFormat mxfp4{.scheme = ExpertScheme::kMxfp4};
  const ExpertsShape shape{4, 2, 160, 96, 3};
  TestLayer layer(ExpertsBackendKind::kMarlin, mxfp4, shape, 2);
  layer.load(testing::make_tensors(mxfp4, shape, 3));
  layer.randomize_rows(4);
  const auto id = layer.registry().find_slot("experts.workspace.locks").value();
  EXPECT_EQ(layer.registry().slot(id).spec.slot_class, storage::SlotClass::kSync);
  const auto view = layer.registry().view(id);
  const std::span<std::int32_t> locks(view.as<std::int32_t>(), view.bytes() / 4);
  ASSERT_TRUE(layer.forward(0, 3).ok());
  EXPECT_TRUE(std::ranges::all_of(locks, [](std::int32_t lock) { return lock == 0; }));
  const std::vector<float> clean(layer.out().begin(), layer.out().end());
  std::ranges::fill(locks, 1);
  ASSERT_TRUE(layer.forward(0, 3).ok());
  EXPECT_FALSE(std::ranges::equal(clean, layer.out()));
  EXPECT_TRUE(std::ranges::all_of(locks, [](std::int32_t lock) { return lock == 1; }));
  std::ranges::fill(locks, 0);
  ASSERT_TRUE(layer.forward(0, 3).ok());
  EXPECT_TRUE(std::ranges::equal(clean, layer.out()));
}

// Garbage in the padded rows and columns meets each other: it is not hidden by zeros elsewhere.
TEST(FieldPadding, GarbageThereReachesTheOutput) {
  const config::ExpertFormat mxfp4{.scheme = ExpertScheme::kMxfp4};
  const ExpertsShape shape{2, 1, 160, 96, 1};
  TestLayer layer(ExpertsBackendKind::kCutlass, mxfp4, shape);
  layer.load(testing::make_tensors(mxfp4, shape, 5));
  layer.randomize_rows(6);
  ASSERT_TRUE(layer.forward(0, 1).ok());
  const std::vector<float> clean(layer.out().begin(), layer.out().end());
  for (const char* name : {"gate_up.weight", "gate_up.scale", "down.weight", "down.scale"}) {
    const auto id = layer.registry().find_slot(std::string("layers.0.experts.") + name).value();
    device::Arena& arena = layer.registry().arena_of(id);
    arena.protect(device::Protection::kReadWrite).value();
    for (std::byte& byte : layer.registry().view(id).span()) {
      if (byte == std::byte{0}) byte = std::byte{0x73};
    }
    arena.protect(device::Protection::kReadOnly).value();
  }
  ASSERT_TRUE(layer.forward(0, 1).ok());
  EXPECT_FALSE(std::ranges::equal(clean, layer.out()));
}

// ---- constants and derived chains

std::vector<float> floats(TestLayer& layer, const std::string& name) {
  const auto id = layer.registry().find_slot("layers.0.experts." + name).value();
  const auto view = layer.registry().view(id);
  return {view.as<float>(), view.as<float>() + view.shape.element_count()};
}

TEST(FieldChain, TheCutlassConstantsAreWhatTheFormatWants) {
  config::ExpertFormat format{.scheme = ExpertScheme::kMxfp4,
                              .activations = ActivationScheme::kMxfp8};
  const ExpertsShape shape{4, 2, 64, 32, 2};
  TestLayer layer(ExpertsBackendKind::kCutlass, format, shape);
  EXPECT_EQ(layer.layer().constant_slots(),
            (std::vector<std::string>{
                "layers.0.experts.gemm1_alpha", "layers.0.experts.gemm1_beta",
                "layers.0.experts.gemm1_clamp_limit", "layers.0.experts.fake_input_scale"}));
  layer.load(testing::make_tensors(format, shape, 7));
  EXPECT_EQ(floats(layer, "fake_input_scale"), (std::vector<float>{1, 1, 1, 1}));
  format.activations = ActivationScheme::kNone;
  TestLayer plain(ExpertsBackendKind::kCutlass, format, shape);
  EXPECT_EQ(plain.layer().constant_slots().size(), 3u);
}

TEST(FieldChain, AlphasAreProductsOfBothScalesAndWhatIsDividedByThemFollows) {
  const config::ExpertFormat nvfp4{.scheme = ExpertScheme::kNvfp4,
                                   .activations = ActivationScheme::kNvfp4,
                                   .dialect = ExpertDialect::kModelOptNvfp4};
  const ExpertsShape shape{3, 2, 64, 32, 2};
  TestLayer layer(ExpertsBackendKind::kTrtllm, nvfp4, shape);
  for (const std::uint64_t seed : {8, 9, 10}) {
    const Tensors tensors = testing::make_tensors(nvfp4, shape, seed);
    layer.load(tensors);
    const auto of = [&](const char* name, std::size_t e) {
      return tensors.at(name).as<float>()[e];
    };
    for (std::size_t e = 0; e < 3; ++e) {
      const float input =
          std::max(of("gate_proj.input_scale", e), of("up_proj.input_scale", e));
      EXPECT_EQ(floats(layer, "gate_up.input_scale")[e], input);
      const float gate = of("gate_proj.weight_scale_2", e) * input;
      const float up = of("up_proj.weight_scale_2", e) * input;
      EXPECT_EQ(floats(layer, "gate.alpha")[e], gate);
      EXPECT_EQ(floats(layer, "up.alpha")[e], up);
      EXPECT_EQ(floats(layer, "gate.limit_over_alpha")[e], 7.0f / gate);
      EXPECT_EQ(floats(layer, "up.limit_over_alpha")[e], 7.0f / up);
      EXPECT_EQ(floats(layer, "up.beta_over_alpha")[e], 1.0f / up);
    }
  }
}

}  // namespace
}  // namespace holdfast::experts
