// Casts: the only ways in which a source of another dtype is accepted: what is not quantised is
// rounded to bf16 from any float, and others are declared by name. Done element by element with the
// scalar codecs, and stated in the plan. Pure; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "holdfast/result.h"
#include "storage/slot.h"
#include "tensor/dtype.h"

namespace holdfast::reload {

struct DeclaredCast {
  std::string parameter = {};  // a parameter's name, or a suffix of it
  tensor::DType from = tensor::DType::kF32;
  tensor::DType to = tensor::DType::kBF16;
};

// Whether `parameter` takes f16 and f32 besides its bf16, and `from` is one of the three.
bool takes_rounded(const storage::ParameterSpec& parameter, tensor::DType from);
// "bf16", or "bf16, f16 or f32" where all are taken.
std::string taken_dtypes(const storage::ParameterSpec& parameter);
// Between f32, f16, bf16, f8_e4m3 and f8_e5m2.
bool castable(tensor::DType from, tensor::DType to);
// Whether some values of `from` have no equal in `to`.
bool is_narrowing(tensor::DType from, tensor::DType to);
// Casts whole elements; `to` has room for as many as `from` has. Asserts castable.
void cast_elements(tensor::DType from, std::span<const std::byte> source, tensor::DType to,
                   std::span<std::byte> target);

}  // namespace holdfast::reload
