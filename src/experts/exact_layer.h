// What one layer's experts compute, in double precision, with how far a backend's arithmetic may be
// from it. Tests only.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "experts/exact_matrix.h"
#include "experts/round_inputs.h"

namespace holdfast::experts::testing {

inline constexpr double kUnit = 0x1p-24;

// Of a product, relative to the sum of its terms' magnitudes: each addition, and each term.
struct Precision {
  double addition = kUnit;
  double term = 0;
};

// Values and how far float32 may be from them.
struct Bounded {
  double value = 0, bound = 0;
};
using Row = std::vector<Bounded>;

// Inputs that share a scale, or all of `count`.
inline std::size_t inputs_of_a_scale(ActivationScheme scheme, std::size_t count) {
  switch (scheme) {
    case ActivationScheme::kMxfp8: return tensor::kMxBlock;
    case ActivationScheme::kFp8TokenGroup: return tensor::kFp8Block;
    case ActivationScheme::kNvfp4: return tensor::kNvfp4Block;
    default: return count;
  }
}

// x, each moved outwards (by 1) or inwards (-1) by its bound and the roundings of a reciprocal;
// or, `against`, all but the largest of each group, also by as much as that one may move: its scale
// then moves the other way.
inline std::vector<float> moved(ActivationScheme scheme, const Row& x, double by, bool against) {
  std::vector<float> out;
  const std::size_t size = inputs_of_a_scale(scheme, x.size());
  const auto smaller = [](const Bounded& a, const Bounded& b) {
    return std::fabs(a.value) < std::fabs(b.value);
  };
  for (std::size_t begin = 0; begin < x.size(); begin += size) {
    const auto first = x.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = x.begin() + static_cast<std::ptrdiff_t>(std::min(begin + size, x.size()));
    const auto largest = std::max_element(first, last, smaller);
    const double most = std::fabs(largest->value);
    const double relative = (most > 0 ? largest->bound / most : 0) + 4 * kUnit;
    for (auto i = first; i != last; ++i) {
      double move = i->bound + 4 * kUnit * std::fabs(i->value);
      if (against) move = i == largest ? 0 : move + relative * std::fabs(i->value);
      double value = i->value + by * std::copysign(move, i->value);
      if (against) value = std::clamp(value, -most, most);
      out.push_back(static_cast<float>(value));
    }
  }
  return out;
}

// What the scheme makes of x. A value near the middle of two codes, or a group's largest near the
// next scale, may go either way: the bound covers what becomes of x when it moves by its own bound.
inline Row rounded(ActivationScheme scheme, float scale, const Row& x) {
  const auto round = [&](const std::vector<float>& values) {
    std::vector<float> out(values.size());
    round_row({.scheme = scheme}, scale, values, out.data());
    return out;
  };
  std::vector<float> values;
  for (const Bounded& b : x) values.push_back(static_cast<float>(b.value));
  const std::vector<float> middle = round(values);
  Row out;
  for (const float value : middle) out.push_back({value, 4 * kUnit * std::fabs(value)});
  for (const bool against : {false, true}) {
    for (const double by : {-1.0, 1.0}) {
      const std::vector<float> other = round(moved(scheme, x, by, against));
      for (std::size_t i = 0; i < x.size(); ++i) {
        out[i].bound = std::max(out[i].bound, 1.01 * std::fabs(double{other[i]} - middle[i]) +
                                                  4 * kUnit * std::fabs(middle[i]));
      }
    }
  }
  return out;
}

inline Bounded exact_row(const ExactMatrix& matrix, std::int64_t row, const Row& x,
                         const Precision& precision) {
  Bounded out{matrix.bias(row), 0};
  double magnitude = std::fabs(out.value);
  for (std::size_t k = 0; k < x.size(); ++k) {
    const double w = matrix.value(row, static_cast<std::int64_t>(k));
    out.value += w * x[k].value;
    out.bound += std::fabs(w) * x[k].bound;
    magnitude += std::fabs(w * x[k].value);
  }
  out.bound +=
      ((static_cast<double>(x.size()) + 12) * precision.addition + precision.term) * magnitude;
  return out;
}

// alpha 1.702, beta 1, limit 7: |d/dg| <= 1.1 * 8 and |d/du| <= 7, and a few roundings.
inline Bounded exact_swiglu(Bounded gate, Bounded up) {
  const double g = std::min(gate.value, 7.0);
  const double u = std::clamp(up.value, -7.0, 7.0);
  const double value = g / (1 + std::exp(-double{1.702f} * g)) * (u + 1);
  return {value, 8.8 * gate.bound + 7 * up.bound + 16 * kUnit * std::fabs(value) + 1e-30};
}

inline Row exact_expert(const SchemeCase& c, const Tensors& tensors, std::int64_t expert, Row x,
                        const Precision& precision) {
  const ExactMatrix gate(c, tensors, Projection::kGate, expert);
  const ExactMatrix up(c, tensors, Projection::kUp, expert);
  const ExactMatrix down(c, tensors, Projection::kDown, expert);
  const auto scheme = c.format.activations;
  x = rounded(scheme, std::max(gate.input_scale(), up.input_scale()), x);
  Row activation;
  for (std::int64_t i = 0; i < c.shape.intermediate_size; ++i) {
    activation.push_back(
        exact_swiglu(exact_row(gate, i, x, precision), exact_row(up, i, x, precision)));
  }
  activation = rounded(scheme, down.input_scale(), activation);
  Row out;
  for (std::int64_t h = 0; h < c.shape.hidden_size; ++h) {
    out.push_back(exact_row(down, h, activation, precision));
  }
  return out;
}

inline Row exact_forward(const SchemeCase& c, const Tensors& tensors, TestLayer& layer,
                         const Precision& precision = {}) {
  Row out;
  for (const float value : layer.residual()) out.push_back({value, 0});
  const std::int64_t hidden = c.shape.hidden_size;
  for (std::int64_t pair = 0; pair < std::ssize(layer.ids()); ++pair) {
    const std::int64_t r = pair / c.shape.experts_per_token;
    Row x;
    for (std::int64_t h = 0; h < hidden; ++h) x.push_back({layer.x()[r * hidden + h], 0});
    const Row y = exact_expert(c, tensors, layer.ids()[pair], std::move(x), precision);
    const double weight = layer.weights()[pair];
    for (std::int64_t h = 0; h < hidden; ++h) {
      Bounded& sum = out[r * hidden + h];
      sum.value += weight * y[h].value;
      sum.bound += weight * y[h].bound + 8 * kUnit * (std::fabs(weight * y[h].value) + 1);
    }
  }
  return out;
}

}  // namespace holdfast::experts::testing
