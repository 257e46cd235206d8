// Every scheme of weights and activations, in every dialect that publishes it: the backends against
// double precision over the codecs' whole-matrix decoders, and against each other.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>

#include "experts/capabilities.h"
#include "experts/layer_parameters.h"
#include "experts/round_inputs.h"
#include "experts/test_layer.h"
#include "experts/test_schemes.h"
#include "tensor/fp8_codecs.h"
#include "tensor/int4_codecs.h"
#include "tensor/mx_codecs.h"
#include "tensor/nvfp4_codecs.h"

namespace holdfast::experts {
namespace {

using config::ActivationScheme;
using config::ExpertDialect;
using config::ExpertFormat;
using config::ExpertScheme;
using config::ExpertTensor;
using config::Projection;
using config::TensorRole;
using testing::backends_of;
using testing::scheme_cases;
using testing::SchemeCase;
using testing::Tensors;
using testing::TestLayer;

constexpr double kUnit = 0x1p-24;

// ---- the exact layer

// One expert's matrix of one projection, [rows, columns], by the codecs of whole matrices.
class ExactMatrix {
 public:
  ExactMatrix(const SchemeCase& c, const Tensors& tensors, Projection projection,
              std::int64_t expert)
      : format_(c.format), tensors_(tensors), expert_(expert) {
    const ExpertsShape& s = c.shape;
    const bool down = projection == Projection::kDown;
    columns_ = down ? s.intermediate_size : s.hidden_size;
    rows_ = down ? s.hidden_size : s.intermediate_size;
    list_ = testing::tensors_of(c.format, s);
    projection_ = projection;
    if (!down && find(Projection::kGateUp, TensorRole::kWeight) != nullptr) {
      projection_ = Projection::kGateUp;
      whole_rows_ = 2 * rows_;
      step_ = 2;
      first_ = projection == Projection::kUp ? 1 : 0;
    } else {
      whole_rows_ = rows_;
    }
    values_.resize(static_cast<std::size_t>(whole_rows_ * columns_));
    decode();
  }
  double value(std::int64_t row, std::int64_t k) const {
    return values_[static_cast<std::size_t>((row * step_ + first_) * columns_ + k)];
  }
  double bias(std::int64_t row) const {
    const ExpertTensor* tensor = find(projection_, TensorRole::kBias);
    if (tensor == nullptr) return 0;
    return tensor::bf16_to_f32(bytes<std::uint16_t>(*tensor)[row * step_ + first_]);
  }
  std::int64_t columns() const { return columns_; }
  float input_scale() const {
    const ExpertTensor* tensor = find(projection_, TensorRole::kInputScale);
    return tensor == nullptr ? 1.0f : multiplier(*tensor);
  }

 private:
  const ExpertTensor* find(Projection projection, TensorRole role) const {
    for (const ExpertTensor& tensor : list_) {
      if (tensor.projection == projection && tensor.role == role) return &tensor;
    }
    return nullptr;
  }
  const ExpertTensor& of(TensorRole role) const { return *find(projection_, role); }
  template <typename T>
  std::span<const T> bytes(const ExpertTensor& tensor) const {
    const auto all = tensors_.at(tensor.name).as<T>();
    const std::int64_t experts = tensors_.at(tensor.name).view().shape[0];
    const auto count = all.size() / static_cast<std::size_t>(experts);
    return all.subspan(static_cast<std::size_t>(expert_) * count, count);
  }
  std::vector<float> floats(const ExpertTensor& tensor) const {
    const auto view = tensors_.at(tensor.name).view().row(expert_);
    return ops::testing::decode(view);
  }
  float multiplier(const ExpertTensor& tensor) const {
    const float stored = floats(tensor).front();
    return format_.dialect == ExpertDialect::kCompressedNvfp4 ? 1.0f / stored : stored;
  }
  void decode() {
    const ExpertTensor& weight = of(TensorRole::kWeight);
    switch (format_.scheme) {
      case ExpertScheme::kBF16:
      case ExpertScheme::kF16:
      case ExpertScheme::kF32: return decode_plain(weight);
      case ExpertScheme::kMxfp4:
        return tensor::decode_mxfp4(bytes<std::uint8_t>(weight),
                                    bytes<std::uint8_t>(of(TensorRole::kScale)), values_)
            .value();
      case ExpertScheme::kMxfp8:
        return tensor::decode_mxfp8(bytes<std::uint8_t>(weight),
                                    bytes<std::uint8_t>(of(TensorRole::kScale)), values_)
            .value();
      case ExpertScheme::kNvfp4:
        return tensor::decode_nvfp4(multiplier(of(TensorRole::kGlobalScale)),
                                    bytes<std::uint8_t>(weight),
                                    bytes<std::uint8_t>(of(TensorRole::kScale)), values_)
            .value();
      case ExpertScheme::kInt4: return decode_int4(weight);
      default: break;
    }
    const tensor::MatrixSize size{rows_, columns_};
    const tensor::Fp8Layout layout =
        format_.scheme == ExpertScheme::kFp8Tensor    ? tensor::fp8_per_tensor(size)
        : format_.scheme == ExpertScheme::kFp8Channel ? tensor::fp8_per_row(size)
                                                      : tensor::fp8_blocks(size);
    tensor::decode_fp8(layout, bytes<std::uint8_t>(weight), floats(of(TensorRole::kScale)),
                       values_)
        .value();
  }
  void decode_plain(const ExpertTensor& weight) {
    const std::vector<float> all = floats(weight);
    for (std::int64_t r = 0; r < whole_rows_; ++r) {
      for (std::int64_t k = 0; k < columns_; ++k) {
        const std::int64_t from = weight.input_major ? k * whole_rows_ + r : r * columns_ + k;
        values_[static_cast<std::size_t>(r * columns_ + k)] = all[static_cast<std::size_t>(from)];
      }
    }
  }
  void decode_int4(const ExpertTensor& weight) {
    const tensor::Int4Size size{rows_, columns_, format_.group_size};
    const tensor::Int4Packing packing = int4_packing(format_);
    const auto groups = static_cast<std::size_t>(size.groups());
    std::vector<std::uint8_t> codes(values_.size());
    tensor::unpack_int4_weight(packing, size, bytes<std::int32_t>(weight), codes).value();
    std::vector<std::uint8_t> zeros(static_cast<std::size_t>(rows_) * groups, 8);
    if (const ExpertTensor* tensor = find(projection_, TensorRole::kZeros)) {
      tensor::unpack_int4_zeros(packing, size, bytes<std::int32_t>(*tensor), zeros).value();
    }
    const std::vector<float> stored = floats(of(TensorRole::kScale));
    std::vector<float> scales(stored.size());
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t g = 0; g < size.groups(); ++g) {
        scales[static_cast<std::size_t>(r * size.groups() + g)] =
            stored[static_cast<std::size_t>(tensor::int4_scale_index(packing, size, r, g))];
      }
    }
    const ExpertTensor* index = find(projection_, TensorRole::kGroupIndex);
    const auto group_index =
        index == nullptr ? std::span<const std::int32_t>() : bytes<std::int32_t>(*index);
    tensor::decode_int4(size, {codes, scales, zeros, group_index}, values_).value();
  }

  ExpertFormat format_;
  const Tensors& tensors_;
  std::int64_t expert_;
  std::vector<ExpertTensor> list_;
  Projection projection_ = Projection::kGate;
  std::int64_t rows_ = 0, columns_ = 0, whole_rows_ = 0, step_ = 1, first_ = 0;
  std::vector<float> values_;
};

// Values and how far float32 may be from them.
struct Bounded {
  double value = 0, bound = 0;
};
using Row = std::vector<Bounded>;

// What the scheme makes of x. A value near the middle of two codes, or a group's largest near the
// next scale, may go either way: the bound covers what becomes of x moved by its own bound and by
// the roundings of a reciprocal.
Row rounded(ActivationScheme scheme, float scale, const Row& x) {
  const auto round = [&](auto move) {
    std::vector<float> moved;
    for (const Bounded& b : x) moved.push_back(static_cast<float>(move(b)));
    std::vector<float> out(moved.size());
    round_row({.scheme = scheme}, scale, moved, out.data());
    return out;
  };
  const std::vector<float> middle = round([](const Bounded& b) { return b.value; });
  Row out;
  for (const float value : middle) out.push_back({value, 4 * kUnit * std::fabs(value)});
  for (const double by : {-1.0, 1.0}) {
    const auto outward = [&](const Bounded& b) {
      return b.value + by * std::copysign(b.bound + 4 * kUnit * std::fabs(b.value), b.value);
    };
    const std::vector<float> moved = round(outward);
    for (std::size_t i = 0; i < x.size(); ++i) {
      out[i].bound = std::max(out[i].bound, 1.01 * std::fabs(double{moved[i]} - middle[i]) +
                                                4 * kUnit * std::fabs(middle[i]));
    }
  }
  return out;
}

Bounded exact_row(const ExactMatrix& matrix, std::int64_t row, const Row& x) {
  Bounded out{matrix.bias(row), 0};
  double magnitude = std::fabs(out.value);
  for (std::size_t k = 0; k < x.size(); ++k) {
    const double w = matrix.value(row, static_cast<std::int64_t>(k));
    out.value += w * x[k].value;
    out.bound += std::fabs(w) * x[k].bound;
    magnitude += std::fabs(w * x[k].value);
  }
  out.bound += (static_cast<double>(x.size()) + 12) * kUnit * magnitude;
  return out;
}

// alpha 1.702, beta 1, limit 7: |d/dg| <= 1.1 * 8 and |d/du| <= 7, and a few roundings.
Bounded exact_swiglu(Bounded gate, Bounded up) {
  const double g = std::min(gate.value, 7.0);
  const double u = std::clamp(up.value, -7.0, 7.0);
  const double value = g / (1 + std::exp(-double{1.702f} * g)) * (u + 1);
  return {value, 8.8 * gate.bound + 7 * up.bound + 16 * kUnit * std::fabs(value) + 1e-30};
}

Row exact_expert(const SchemeCase& c, const Tensors& tensors, std::int64_t expert, Row x) {
  const ExactMatrix gate(c, tensors, Projection::kGate, expert);
  const ExactMatrix up(c, tensors, Projection::kUp, expert);
  const ExactMatrix down(c, tensors, Projection::kDown, expert);
  const auto scheme = c.format.activations;
  x = rounded(scheme, std::max(gate.input_scale(), up.input_scale()), x);
  Row activation;
  for (std::int64_t i = 0; i < c.shape.intermediate_size; ++i) {
    activation.push_back(exact_swiglu(exact_row(gate, i, x), exact_row(up, i, x)));
  }
  activation = rounded(scheme, down.input_scale(), activation);
  Row out;
  for (std::int64_t h = 0; h < c.shape.hidden_size; ++h) {
    out.push_back(exact_row(down, h, activation));
  }
  return out;
}

Row exact_forward(const SchemeCase& c, const Tensors& tensors, TestLayer& layer) {
  Row out;
  for (const float value : layer.residual()) out.push_back({value, 0});
  const std::int64_t hidden = c.shape.hidden_size;
  for (std::int64_t pair = 0; pair < std::ssize(layer.ids()); ++pair) {
    const std::int64_t r = pair / c.shape.experts_per_token;
    Row x;
    for (std::int64_t h = 0; h < hidden; ++h) x.push_back({layer.x()[r * hidden + h], 0});
    const Row y = exact_expert(c, tensors, layer.ids()[pair], std::move(x));
    const double weight = layer.weights()[pair];
    for (std::int64_t h = 0; h < hidden; ++h) {
      Bounded& sum = out[r * hidden + h];
      sum.value += weight * y[h].value;
      sum.bound += weight * y[h].bound + 8 * kUnit * (std::fabs(weight * y[h].value) + 1);
    }
  }
  return out;
}

// ---- tests

TEST(Schemes, EveryBackendStaysWithinFloat32OfDoublePrecision) {
  for (const SchemeCase& c : scheme_cases()) {
    const Tensors tensors = testing::make_tensors(c.format, c.shape, 31);
    for (const auto kind : backends_of(c.format)) {
      SCOPED_TRACE(std::string(c.name) + ", " + std::string(experts_backend_name(kind)));
      TestLayer layer(kind, c.format, c.shape, 2);
      layer.load(tensors);
      layer.randomize_rows(32);
      ASSERT_TRUE(layer.forward(0, c.shape.max_rows).ok());
      const Row exact = exact_forward(c, tensors, layer);
      double largest = 0;
      for (std::size_t i = 0; i < exact.size(); ++i) {
        ASSERT_NEAR(layer.out()[i], exact[i].value, exact[i].bound) << "element " << i;
        largest = std::max(largest, std::fabs(exact[i].value - layer.residual()[i]));
      }
      EXPECT_GT(largest, 1e-3) << "the experts must matter";
    }
  }
}

TEST(Schemes, EveryInstructionSetOfThisMachineStaysWithinTheBound) {
  for (const SchemeCase& c : scheme_cases()) {
    SCOPED_TRACE(c.name);
    const Tensors tensors = testing::make_tensors(c.format, c.shape, 43);
    Row exact;
    for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
      hwy::SetSupportedTargetsForTest(target);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      SCOPED_TRACE(hwy::TargetName(target));
      TestLayer layer(ExpertsBackendKind::kHoldfast, c.format, c.shape);
      layer.load(tensors);
      layer.randomize_rows(44);
      ASSERT_TRUE(layer.forward(0, c.shape.max_rows).ok());
      if (exact.empty()) exact = exact_forward(c, tensors, layer);
      for (std::size_t i = 0; i < exact.size(); ++i) {
        ASSERT_NEAR(layer.out()[i], exact[i].value, exact[i].bound) << "element " << i;
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

void expect_independent_rows(const SchemeCase& c, ExpertsBackendKind kind,
                             const Tensors& tensors) {
  SCOPED_TRACE(experts_backend_name(kind));
  std::vector<float> expected;
  for (int workers = 1; workers <= 3; workers += 2) {
    TestLayer layer(kind, c.format, c.shape, workers);
    layer.load(tensors);
    layer.randomize_rows(34);
    ASSERT_TRUE(layer.forward(0, c.shape.max_rows).ok());
    const std::vector<float> together(layer.out().begin(), layer.out().end());
    if (workers == 1) expected = together;
    layer.poison_out();
    layer.set_active(1);
    for (std::int64_t r = 0; r < c.shape.max_rows; ++r) ASSERT_TRUE(layer.forward(r, 1).ok());
    const std::size_t bytes = together.size() * sizeof(float);
    EXPECT_EQ(std::memcmp(layer.out().data(), together.data(), bytes), 0) << workers;
    EXPECT_EQ(std::memcmp(expected.data(), together.data(), bytes), 0) << workers;
  }
}

TEST(Schemes, ARowHasTheSameBitsAloneAndAmongOthersOnAnyWorkerCount) {
  for (const SchemeCase& c : scheme_cases()) {
    SCOPED_TRACE(c.name);
    const Tensors tensors = testing::make_tensors(c.format, c.shape, 33);
    for (const auto kind : backends_of(c.format)) {
      if (kind != ExpertsBackendKind::kReference) expect_independent_rows(c, kind, tensors);
    }
  }
}

TEST(Schemes, ACapturedForwardReplaysToTheSameBits) {
  for (const SchemeCase& c : scheme_cases()) {
    for (const auto kind : backends_of(c.format)) {
      SCOPED_TRACE(std::string(c.name) + ", " + std::string(experts_backend_name(kind)));
      TestLayer layer(kind, c.format, c.shape, 2);
      layer.load(testing::make_tensors(c.format, c.shape, 35));
      layer.randomize_rows(36);
      auto graph = device::capture(layer.runner().stream(), layer.registry(), "experts",
                                   [&] { return layer.forward(0, c.shape.max_rows); })
                       .value();
      layer.randomize_rows(37);
      ASSERT_TRUE(layer.forward(0, c.shape.max_rows).ok());
      const std::vector<float> eager(layer.out().begin(), layer.out().end());
      layer.poison_out();
      ASSERT_TRUE(graph->launch(layer.runner().stream()).ok());
      EXPECT_EQ(std::memcmp(eager.data(), layer.out().data(), eager.size() * sizeof(float)), 0);
    }
  }
}

TEST(Schemes, PlainSiluIsTheSameKernelWithOtherConstants) {
  const SchemeCase c{"bf16", {ExpertScheme::kBF16, ActivationScheme::kNone, ExpertDialect::kHub},
                     {3, 2, 37, 21, 4}};
  const config::SwigluConfig silu{1.0f, 0.0f, INFINITY};
  const Tensors tensors = testing::make_tensors(c.format, c.shape, 38);
  for (const auto kind : {ExpertsBackendKind::kReference, ExpertsBackendKind::kHoldfast}) {
    TestLayer layer(kind, c.format, c.shape, 1, silu);
    layer.load(tensors);
    layer.randomize_rows(39);
    ASSERT_TRUE(layer.forward(0, 1).ok());
    for (std::int64_t h = 0; h < c.shape.hidden_size; ++h) {
      double sum = layer.residual()[h];
      for (int k = 0; k < 2; ++k) {
        const ExactMatrix gate(c, tensors, Projection::kGate, layer.ids()[k]);
        const ExactMatrix up(c, tensors, Projection::kUp, layer.ids()[k]);
        const ExactMatrix down(c, tensors, Projection::kDown, layer.ids()[k]);
        for (std::int64_t i = 0; i < c.shape.intermediate_size; ++i) {
          double g = 0, u = 0;
          for (std::int64_t j = 0; j < c.shape.hidden_size; ++j) {
            g += gate.value(i, j) * layer.x()[j];
            u += up.value(i, j) * layer.x()[j];
          }
          sum += layer.weights()[k] * down.value(h, i) * g / (1 + std::exp(-g)) * u;
        }
      }
      EXPECT_NEAR(layer.out()[h], sum, 2e-6) << h;
    }
  }
}

// ---- what a load refuses

std::string load_error(const SchemeCase& c, const Tensors& tensors) {
  TestLayer layer(ExpertsBackendKind::kHoldfast, c.format, c.shape);
  const Status status = layer.try_load(tensors);
  return status.ok() ? "" : status.error().to_string();
}

SchemeCase case_named(const std::string& name) {
  for (const SchemeCase& c : scheme_cases()) {
    if (c.name == name) return c;
  }
  return {};
}

TEST(Schemes, AScaleThatIsNoScaleIsRefusedByItsName) {
  for (const float bad : {0.0f, -1.0f, INFINITY, NAN}) {
    const SchemeCase c = case_named("nvfp4 x nvfp4");
    Tensors tensors = testing::make_tensors(c.format, c.shape, 40);
    tensors.at("up_proj.weight_scale_2").as<float>()[1] = bad;
    EXPECT_NE(load_error(c, tensors).find("up.weight_scale"), std::string::npos) << bad;
    tensors = testing::make_tensors(c.format, c.shape, 40);
    tensors.at("gate_proj.input_scale").as<float>()[2] = bad;
    EXPECT_NE(load_error(c, tensors).find("gate_up.input_scale"), std::string::npos) << bad;
  }
}

TEST(Schemes, AGroupIndexThatCannotBeIsRefused) {
  const SchemeCase ordered = case_named("gptq act-order");
  Tensors tensors = testing::make_tensors(ordered.format, ordered.shape, 41);
  tensors.at("down_proj.g_idx").as<std::int32_t>()[5] = 3;  // of 96 / 32 groups
  EXPECT_NE(load_error(ordered, tensors).find("input 5 is of group 3, there are 3"),
            std::string::npos);
  tensors = testing::make_tensors(ordered.format, ordered.shape, 41);
  auto index = tensors.at("up_proj.g_idx").as<std::int32_t>();
  std::swap(index[0], *std::find_if(index.begin(), index.end(),
                                    [&](std::int32_t group) { return group != index[0]; }));
  EXPECT_NE(load_error(ordered, tensors).find("gate and up differ"), std::string::npos);
  tensors = testing::make_tensors(ordered.format, ordered.shape, 41);
  index = tensors.at("down_proj.g_idx").as<std::int32_t>();
  index[0] = index[0] == 0 ? 1 : 0;
  EXPECT_NE(load_error(ordered, tensors).find("must have 32"), std::string::npos);

  const SchemeCase plain = case_named("gptq");
  tensors = testing::make_tensors(plain.format, plain.shape, 41);
  index = tensors.at("down_proj.g_idx").as<std::int32_t>();
  std::swap(index[0], index[40]);
  EXPECT_NE(load_error(plain, tensors).find("has no act-order"), std::string::npos);
}

TEST(Schemes, AStatedShapeThatIsAnotherIsRefused) {
  const SchemeCase c = case_named("int4 compressed");
  Tensors tensors = testing::make_tensors(c.format, c.shape, 42);
  tensors.at("down_proj.weight_shape").as<std::int64_t>()[0] = 64;
  EXPECT_NE(load_error(c, tensors).find("[64, 96]"), std::string::npos);
}

TEST(RoundRow, IsWhatTheCodecsEncodeAndDecode) {
  base::Rng rng(50);
  std::vector<float> x(256), out(256), expected(256), scales(256);
  std::vector<std::uint8_t> codes(256), bytes(256);
  for (int round = 0; round < 200; ++round) {
    const float range = std::ldexp(1.0f, static_cast<int>(rng.next_below(40)) - 20);
    for (float& value : x) value = ops::testing::random_float(rng, range);
    const auto same = [&](ActivationScheme scheme, float scale) {
      round_row({.scheme = scheme}, scale, x, out.data());
      return std::memcmp(out.data(), expected.data(), 256 * sizeof(float)) == 0;
    };
    const std::span<std::uint8_t> mx(bytes.data(), 8);
    tensor::encode_mxfp8(tensor::E8m0Rule::kCeil, x, codes, mx).value();
    tensor::decode_mxfp8(codes, mx, expected).value();
    EXPECT_TRUE(same(ActivationScheme::kMxfp8, 1.0f));
    const auto fp8 = [&](const tensor::Fp8Layout& layout, tensor::Fp8ScaleRule rule) {
      const auto count = layout.scales();
      const std::span<float> used(scales.data(), count.rows * count.cols);
      tensor::encode_fp8(layout, rule, x, {codes, used}).value();
      tensor::decode_fp8(layout, codes, used, expected).value();
    };
    fp8(tensor::fp8_per_row({1, 256}), tensor::Fp8ScaleRule::kToken);
    EXPECT_TRUE(same(ActivationScheme::kFp8Token, 1.0f));
    fp8(tensor::fp8_token_groups({1, 256}), tensor::Fp8ScaleRule::kTokenGroup);
    EXPECT_TRUE(same(ActivationScheme::kFp8TokenGroup, 1.0f));
    const tensor::Fp8Layout whole = tensor::fp8_per_tensor({1, 256});
    const float scale = range / 300;
    tensor::encode_fp8_static(whole, x, {&scale, 1}, codes).value();
    tensor::decode_fp8(whole, codes, {&scale, 1}, expected).value();
    EXPECT_TRUE(same(ActivationScheme::kFp8Static, scale));
    const float global = range / 2688;
    const std::span<std::uint8_t> half(codes.data(), 128), blocks(bytes.data(), 16);
    tensor::encode_nvfp4(global, x, {half, blocks}).value();
    tensor::decode_nvfp4(global, half, blocks, expected).value();
    EXPECT_TRUE(same(ActivationScheme::kNvfp4, global));
  }
}

}  // namespace
}  // namespace holdfast::experts
