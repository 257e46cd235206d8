// decode_matrix: every format's values are those of the scalar codecs, rounded once to bf16; what
// cannot be is refused by the matrix's name.
#include "model/decode_matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "experts/layer_parameters.h"
#include "experts/raw_matrix.h"
#include "experts/test_schemes.h"
#include "tensor/codecs.h"

namespace holdfast::model {
namespace {

using config::ExpertScheme;
using config::TensorRole;
using experts::testing::HostTensor;
using experts::testing::SchemeCase;
using tensor::DType;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The down matrix of one expert of a test layer, as if it were a linear layer's.
struct Made {
  SchemeCase scheme;
  std::map<TensorRole, HostTensor> tensors;
  tensor::MatrixSize size;
  bool input_major = false;

  PublishedMatrix published() {
    PublishedMatrix matrix{.name = "self_attn.o_proj", .size = size};
    for (auto& [role, tensor] : tensors) {
      tensor::TensorView view = tensor.view();
      view.shape = tensor::Shape::from_dims(view.shape.dims().subspan(1)).value();
      matrix.of(role) = view;
    }
    return matrix;
  }
  const std::byte* at(TensorRole role) {
    const auto found = tensors.find(role);
    return found == tensors.end() ? nullptr : found->second.view().address;
  }
  // By the formula that every experts backend is measured against.
  std::vector<std::uint16_t> by_the_codecs() {
    const auto dtype_of = [&](TensorRole role) {
      return static_cast<std::int64_t>(tensors.contains(role) ? tensors.at(role).view().dtype
                                                              : DType::kF32);
    };
    const config::ExpertFormat& format = scheme.format;
    const experts::RawMatrix raw{
        .scheme = static_cast<std::int64_t>(format.scheme),
        .rows = size.rows,
        .columns = size.cols,
        .packing = static_cast<std::int64_t>(experts::int4_packing(format)),
        .group = format.group_size,
        .divides = format.dialect == config::ExpertDialect::kCompressedNvfp4 ? 1 : 0,
        .scale_dtype = dtype_of(TensorRole::kScale),
        .scalar_dtype = dtype_of(TensorRole::kGlobalScale),
        .weights = at(TensorRole::kWeight),
        .scales = at(TensorRole::kScale),
        .global_scale = at(TensorRole::kGlobalScale),
        .zeros = at(TensorRole::kZeros),
        .group_index = reinterpret_cast<const std::int32_t*>(at(TensorRole::kGroupIndex))};
    std::vector<float> row(static_cast<std::size_t>(size.cols));
    std::vector<std::uint16_t> out;
    for (std::int64_t r = 0; r < size.rows; ++r) {
      experts::decode_row(raw, 0, r, row.data());
      for (const float value : row) out.push_back(tensor::f32_to_bf16(value));
    }
    return out;
  }
  std::vector<std::uint16_t> decode(Status* status = nullptr) {
    // What decode_matrix does not write stands out.
    std::vector<std::uint16_t> out(static_cast<std::size_t>(size.rows * size.cols), 0xDDDD);
    const Status done = decode_matrix(scheme.format, published(), out.data());
    if (status != nullptr) {
      *status = done;
    } else {
      EXPECT_TRUE(done.ok()) << done.error().to_string();
    }
    return out;
  }
  std::string error() {
    Status status;
    decode(&status);
    return status.ok() ? "ok" : status.error().to_string();
  }
};

Made make(SchemeCase scheme, std::uint64_t seed = 7) {
  scheme.shape.expert_count = 1;
  Made made{.scheme = scheme,
            .tensors = {},
            .size = {scheme.shape.hidden_size, scheme.shape.intermediate_size}};
  auto tensors = experts::testing::make_tensors(scheme.format, scheme.shape, seed);
  for (const auto& tensor : experts::testing::tensors_of(scheme.format, scheme.shape)) {
    const bool down = tensor.projection == config::Projection::kDown;
    if (!down || tensor.role == TensorRole::kBias) continue;
    made.tensors.emplace(tensor.role, std::move(tensors.at(tensor.name)));
  }
  return made;
}

Made make(const std::string& name) {
  for (const SchemeCase& scheme : experts::testing::scheme_cases()) {
    if (scheme.name == name) return make(scheme);
  }
  ADD_FAILURE() << name;
  return {};
}

bool is_plain(ExpertScheme scheme) {
  return scheme == ExpertScheme::kBF16 || scheme == ExpertScheme::kF16 ||
         scheme == ExpertScheme::kF32;
}

TEST(DecodeMatrix, EveryFormatsValuesAreTheScalarCodecsRoundedOnce) {
  int formats = 0;
  for (const SchemeCase& scheme : experts::testing::scheme_cases()) {
    if (is_plain(scheme.format.scheme)) continue;
    SCOPED_TRACE(scheme.name);
    Made made = make(scheme);
    EXPECT_EQ(made.decode(), made.by_the_codecs());
    ++formats;
  }
  EXPECT_GE(formats, 20);
}

TEST(DecodeMatrix, AWeightThatCameInBf16IsCopied) {
  Made made = make("bf16");
  const auto stored = made.tensors.at(TensorRole::kWeight).as<std::uint16_t>();
  EXPECT_EQ(made.decode(), std::vector<std::uint16_t>(stored.begin(), stored.end()));
}

TEST(DecodeMatrix, AScalarScaleThatIsNoScaleIsRefusedByTheMatrixsName) {
  for (const auto& [name, role, what] :
       {std::tuple{"fp8 tensor", TensorRole::kScale, "weight scale"},
        std::tuple{"fp8 tensor x static", TensorRole::kInputScale, "input scale"},
        std::tuple{"nvfp4 inverse", TensorRole::kGlobalScale, "global scale"},
        std::tuple{"nvfp4 x nvfp4", TensorRole::kInputScale, "input scale"}}) {
    for (const float value : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
      Made made = make(name);
      made.tensors.at(role).as<float>()[0] = value;
      EXPECT_THAT(made.error(), AllOf(HasSubstr("self_attn.o_proj"), HasSubstr(what))) << value;
    }
  }
}

TEST(DecodeMatrix, AValueBeyondBf16IsRefusedByItsPlace) {
  Made made = make("fp8 channel x token");
  made.tensors.at(TensorRole::kWeight).as<std::uint8_t>()[2 * 21 + 5] = 0x7E;
  made.tensors.at(TensorRole::kScale).as<float>()[2] = 1e37f;
  EXPECT_THAT(made.error(), AllOf(HasSubstr("self_attn.o_proj"), HasSubstr("value [2, ")));
}

TEST(DecodeMatrix, GroupsAndStatedShapesThatCannotBeAreRefused) {
  Made order = make("gptq act-order");
  order.tensors.at(TensorRole::kGroupIndex).as<std::int32_t>()[3] = 77;
  EXPECT_THAT(order.error(), AllOf(HasSubstr("self_attn.o_proj"), HasSubstr("input 3 is of group "
                                                                           "77, there are 3")));
  Made plain = make("gptq");
  std::swap(plain.tensors.at(TensorRole::kGroupIndex).as<std::int32_t>()[0],
            plain.tensors.at(TensorRole::kGroupIndex).as<std::int32_t>()[95]);
  EXPECT_THAT(plain.error(), HasSubstr("does config.json lack desc_act?"));
  Made shape = make("int4 compressed");
  shape.tensors.at(TensorRole::kShape).as<std::int64_t>()[1] = 95;
  EXPECT_THAT(shape.error(), HasSubstr("weight_shape is [192, 95], the matrix is [192, 96]"));
}

}  // namespace
}  // namespace holdfast::model
