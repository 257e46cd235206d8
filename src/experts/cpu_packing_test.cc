// Packing moves every code, scale and value to one place of its own and fills the rest with zeros.
#include "experts/cpu_packing.h"

#include <gtest/gtest.h>

#include "ops/host_tensor.h"

namespace holdfast::experts {
namespace {

using ops::testing::DType;
using ops::testing::HostTensor;
using ops::testing::Runner;

HostTensor random_bytes(DType dtype, const tensor::Shape& shape, std::uint64_t seed) {
  base::Rng rng(seed);
  HostTensor out(dtype, shape);
  for (auto& byte : out.as<std::uint8_t>()) byte = static_cast<std::uint8_t>(rng.next());
  return out;
}

int nibble(std::span<const std::uint8_t> bytes, std::int64_t index) {
  return bytes[index / 2] >> (index % 2 * 4) & 15;
}

// Calls visit(packed tile, lane, checkpoint row) for every place of a packed matrix; row -1:
// padding. Written from the layout's description, not from PackedShape::source_row.
template <typename Visit>
void for_places(const PackedShape& matrix, const Visit& visit) {
  const std::int64_t kinds = matrix.interleaved ? 2 : 1;
  const std::int64_t rows = matrix.rows / kinds;
  std::int64_t tile = 0;
  for (std::int64_t first = 0; first < rows; first += 16) {
    for (std::int64_t kind = 0; kind < kinds; ++kind, ++tile) {
      for (std::int64_t lane = 0; lane < 16; ++lane) {
        visit(tile, lane, first + lane < rows ? (first + lane) * kinds + kind : -1);
      }
    }
  }
  EXPECT_EQ(tile, matrix.tiles());
}

const PackedShape kMatrices[] = {
    {64, 64, false}, {32, 128, true}, {40, 32, false},
    {50, 96, true},  {2, 32, true},   {1, 32, false}};

TEST(Packing, CodesAndScalesUnpackToWhatWasPackedWithZerosInThePadding) {
  constexpr std::int64_t kExperts = 3;
  for (const PackedShape& matrix : kMatrices) {
    Runner runner(ops::make_cpu_fast_kernels(), 2);
    const std::int64_t blocks = matrix.columns / 32;
    const HostTensor codes = random_bytes(DType::kU8, {kExperts, matrix.rows, blocks, 16}, 1);
    const HostTensor scales = random_bytes(DType::kU8, {kExperts, matrix.rows, blocks}, 2);
    HostTensor packed(DType::kU8, {kExperts, matrix.tiles(), matrix.columns / 8, 64});
    HostTensor packed_scales(DType::kU8, {kExperts, matrix.tiles(), blocks, 16});
    ASSERT_TRUE(pack_units(runner.stream(), matrix, row_major_units(4, matrix.columns / 8),
                           codes.view(), packed.view())
                    .ok());
    ASSERT_TRUE(pack_units(runner.stream(), matrix, row_major_units(1, blocks), scales.view(),
                           packed_scales.view())
                    .ok());
    for (std::int64_t e = 0; e < kExperts; ++e) {
      for_places(matrix, [&](std::int64_t tile, std::int64_t lane, std::int64_t row) {
        const std::int64_t block0 = (e * matrix.tiles() + tile) * blocks;
        for (std::int64_t k = 0; k < matrix.columns; ++k) {
          const std::int64_t group = (block0 + k / 32) * 4 + k % 32 / 8;
          const int got = nibble(packed.as<std::uint8_t>(), (group * 16 + lane) * 8 + k % 8);
          const std::int64_t source = (e * matrix.rows + row) * matrix.columns + k;
          ASSERT_EQ(got, row < 0 ? 0 : nibble(codes.as<std::uint8_t>(), source));
        }
        for (std::int64_t b = 0; b < blocks; ++b) {
          const int got = packed_scales.as<std::uint8_t>()[(block0 + b) * 16 + lane];
          const std::int64_t source = (e * matrix.rows + row) * blocks + b;
          ASSERT_EQ(got, row < 0 ? 0 : scales.as<std::uint8_t>()[source]);
        }
      });
    }
  }
}

TEST(Packing, Bf16UnpacksToWhatWasPackedWithZerosInThePadding) {
  constexpr std::int64_t kExperts = 2;
  for (const PackedShape& matrix :
       {PackedShape{64, 5, false}, {26, 37, true}, {37, 33, false}, {2, 1, true}}) {
    Runner runner(ops::make_cpu_fast_kernels(), 3);
    const HostTensor values =
        random_bytes(DType::kBF16, {kExperts, matrix.columns, matrix.rows}, 3);
    HostTensor packed(DType::kBF16, {kExperts, matrix.tiles(), matrix.columns, 16});
    ASSERT_TRUE(pack_units(runner.stream(), matrix,
                           input_major_units(2, matrix.columns, matrix.rows), values.view(),
                           packed.view())
                    .ok());
    for (std::int64_t e = 0; e < kExperts; ++e) {
      for_places(matrix, [&](std::int64_t tile, std::int64_t lane, std::int64_t row) {
        for (std::int64_t k = 0; k < matrix.columns; ++k) {
          const auto got = packed.as<std::uint16_t>()[((e * matrix.tiles() + tile) *
                                                           matrix.columns + k) * 16 + lane];
          const std::int64_t source = (e * matrix.columns + k) * matrix.rows + row;
          ASSERT_EQ(got, row < 0 ? 0 : values.as<std::uint16_t>()[source]);
        }
      });
    }
  }
}

TEST(Packing, ViewsThatDoNotFitTheMatrixAreRefused) {
  Runner runner(ops::make_cpu_fast_kernels());
  const PackedShape matrix{64, 64, false};
  HostTensor codes(DType::kU8, {2, 64, 2, 16});
  HostTensor packed(DType::kU8, {1, 4, 2, 256});
  const UnitLayout units = row_major_units(4, 8);
  const Status status = pack_units(runner.stream(), matrix, units, codes.view(), packed.view());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message(),
            "experts.pack_units: operand to is u8 [1, 4, 2, 256]: 2048 bytes, must be 4096 bytes");
}

TEST(Packing, NibblesStandWhereTheirOrderSays) {
  const PackedShape matrix{20, 24, false};
  Runner runner(ops::make_cpu_fast_kernels(), 2);
  HostTensor codes = random_bytes(DType::kU8, {2, 20, 24}, 4);
  for (auto& code : codes.as<std::uint8_t>()) code &= 15;
  std::vector<std::int32_t> order(24);
  for (int k = 0; k < 24; ++k) order[k] = k * 7 % 24;
  HostTensor packed(DType::kU8, {2, 2, 3, 64});
  ASSERT_TRUE(
      pack_nibbles(runner.stream(), matrix, order, codes.view(), packed.view()).ok());
  for (std::int64_t e = 0; e < 2; ++e) {
    for_places(matrix, [&](std::int64_t tile, std::int64_t lane, std::int64_t row) {
      for (std::int64_t k = 0; k < 24; ++k) {
        const std::int64_t word = ((e * 2 + tile) * 3 + k / 8) * 16 + lane;
        const int got = nibble(packed.as<std::uint8_t>(), word * 8 + k % 8);
        ASSERT_EQ(got, row < 0 ? 0
                               : codes.as<std::uint8_t>()[(e * 20 + row) * 24 + order[k]]);
      }
    });
  }
}

TEST(Packing, ScalesOfRowsAndBlocksBecomeFloatsOfTheirTiles) {
  const PackedShape matrix{150, 8, false};
  Runner runner(ops::make_cpu_fast_kernels());
  HostTensor rows(DType::kBF16, {1, 150});
  const auto scale_of = [](int row) { return static_cast<float>(row) * 0.5f; };
  for (int r = 0; r < 150; ++r) rows.as<std::uint16_t>()[r] = tensor::f32_to_bf16(scale_of(r));
  HostTensor packed(DType::kF32, {1, 10, 1, 16});
  ASSERT_TRUE(pack_scales(runner.stream(), matrix, {}, rows.view(), packed.view()).ok());
  for (int r = 0; r < 160; ++r) {
    EXPECT_EQ(packed.as<float>()[r], r < 150 ? scale_of(r) : 0.0f);
  }
  HostTensor blocks(DType::kF32, {1, 2, 3});
  for (int i = 0; i < 6; ++i) blocks.as<float>()[i] = static_cast<float>(i + 1);
  HostTensor tiles(DType::kF32, {1, 10, 3, 1});
  ASSERT_TRUE(pack_scales(runner.stream(), matrix,
                          {.groups = 3, .lanes = 1, .rows_per_scale = 128}, blocks.view(),
                          tiles.view())
                  .ok());
  for (int tile = 0; tile < 10; ++tile) {
    for (int g = 0; g < 3; ++g) {
      EXPECT_EQ(tiles.as<float>()[tile * 3 + g], static_cast<float>(tile / 8 * 3 + g + 1));
    }
  }
}

}  // namespace
}  // namespace holdfast::experts
