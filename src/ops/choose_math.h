// choose's arithmetic (ops.h), which the host's sampler and every device share bit by bit: weights
// of logits by an exponential of our own, and one order in which they are added. No operation is
// contracted into another. Pure.
//
// A row's logits go in chunks of kChooseChunk, a chunk in leaves of kChooseLeaf. A leaf's weights
// are added in order; the leaves of each run of 32 by halving distances, the runs in order, and the
// chunks in order. A draw walks the chunks, then the leaves of one chunk, then one leaf.
#pragma once

#include <cstdint>
#include <cstring>

#include "device/host_device.h"
#include "ops/ops.h"

namespace holdfast::ops {

inline constexpr std::int64_t kChooseLeaf = 16;
inline constexpr std::int64_t kChooseLeaves = kChooseChunk / kChooseLeaf;  // of a chunk
inline constexpr std::int64_t kChooseRun = 32;                             // leaves

HF_HOST_DEVICE inline double exact_product(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
HF_HOST_DEVICE inline double exact_sum(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

// e^x for x <= 0 within 2 units of the last place; 0 below -708. Between two powers of two a
// polynomial; 0 gives exactly 1.
HF_HOST_DEVICE inline double choose_exp(double x) {
  if (!(x >= -708.0)) return 0.0;
  constexpr double kRound = 0x1.8p52;  // a number that is added to it is rounded to an integer
  const double shifted = exact_sum(exact_product(x, 0x1.71547652b82fep0), kRound);
  const double n = exact_sum(shifted, -kRound);
  // ln 2 in two parts, so that n times the first is exact.
  double r = exact_sum(x, exact_product(n, -0x1.62e42feep-1));
  r = exact_sum(r, exact_product(n, -0x1.a39ef35793c76p-33));
  double p = 1.0 / 479001600.0;
  p = exact_sum(exact_product(p, r), 1.0 / 39916800.0);
  p = exact_sum(exact_product(p, r), 1.0 / 3628800.0);
  p = exact_sum(exact_product(p, r), 1.0 / 362880.0);
  p = exact_sum(exact_product(p, r), 1.0 / 40320.0);
  p = exact_sum(exact_product(p, r), 1.0 / 5040.0);
  p = exact_sum(exact_product(p, r), 1.0 / 720.0);
  p = exact_sum(exact_product(p, r), 1.0 / 120.0);
  p = exact_sum(exact_product(p, r), 1.0 / 24.0);
  p = exact_sum(exact_product(p, r), 1.0 / 6.0);
  p = exact_sum(exact_product(p, r), 0.5);
  p = exact_sum(exact_product(p, r), 1.0);
  p = exact_sum(exact_product(p, r), 1.0);
  std::int64_t bits = 0;
  std::int64_t power = 0;
  memcpy(&bits, &p, sizeof(bits));
  memcpy(&power, &shifted, sizeof(power));
  bits += power << 52;  // what is above the integer's low bits is shifted out
  memcpy(&p, &bits, sizeof(p));
  return p;
}

// Of a logit, relative to the row's largest, which has exactly 1. temperature > 0.
HF_HOST_DEVICE inline double choose_weight(float logit, float largest, double temperature) {
  return choose_exp((static_cast<double>(logit) - static_cast<double>(largest)) / temperature);
}

// How choose treats one row: temperature 0 takes the largest; `draw` in [0, 1).
struct ChooseRow {
  const float* logits = nullptr;
  std::int64_t vocab = 0;  // at least 1
  float temperature = 0;
  double draw = 0;
};
// On the host.
Choice choose_row(const ChooseRow& row);
// The sum of all weights at temperature 1: Choice::total.
double choose_total(const ChooseRow& row, float largest);

}  // namespace holdfast::ops
