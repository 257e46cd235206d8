// The formulas of embedding, rms_norm, linear and gather_rows, as scalar loops in float32.
#include <cmath>

#include "ops/cpu/kernel_sets.h"

namespace holdfast::ops::cpu {

// out[r, h] = table[ids[r], h]
void Reference::embedding(const EmbeddingKernel& args, device::WorkerPool&) {
  const std::int64_t rows = active_row_count(args.active_rows, args.ids.shape[0]);
  const std::int64_t vocab = args.table.shape[0];
  const std::int64_t hidden = args.table.shape[1];
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t id = args.ids.as<const std::int32_t>()[r];
    const bool known = id >= 0 && id < vocab;
    float* out = args.out.as<float>() + r * hidden;
    for (std::int64_t h = 0; h < hidden; ++h) {
      out[h] = known ? weight_at(args.table, id * hidden + h) : 0.0f;
    }
  }
}

// out[r, h] = x[r, h] * rsqrt(sum_h x[r, h]^2 / H + eps) * weight[h]
void Reference::rms_norm(const RmsNormKernel& args, device::WorkerPool&) {
  const std::int64_t rows = active_row_count(args.active_rows, args.x.shape[0]);
  const std::int64_t hidden = args.x.shape[1];
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* x = args.x.as<const float>() + r * hidden;
    float* out = args.out.as<float>() + r * hidden;
    float square_sum = 0.0f;
    for (std::int64_t h = 0; h < hidden; ++h) square_sum += x[h] * x[h];
    const float mean = square_sum / static_cast<float>(hidden);
    const float scale = 1.0f / std::sqrt(mean + static_cast<float>(args.eps));
    for (std::int64_t h = 0; h < hidden; ++h) out[h] = x[h] * scale * weight_at(args.weight, h);
  }
}

// out[r, o] = sum_k x[r, k] * weight[o, k] + bias[o] + residual[r, o]
void Reference::linear(const LinearKernel& args, device::WorkerPool&) {
  const std::int64_t rows = active_row_count(args.active_rows, args.x.shape[0]);
  const std::int64_t inputs = args.weight.shape[1];
  const std::int64_t outputs = args.weight.shape[0];
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* x = args.x.as<const float>() + r * inputs;
    for (std::int64_t o = 0; o < outputs; ++o) {
      float sum = 0.0f;
      for (std::int64_t k = 0; k < inputs; ++k) {
        sum += x[k] * weight_at(args.weight, o * inputs + k);
      }
      if (!args.bias.empty()) sum += weight_at(args.bias, o);
      if (!args.residual.empty()) sum += args.residual.as<const float>()[r * outputs + o];
      args.out.as<float>()[r * outputs + o] = sum;
    }
  }
}

// out[r, h] = x[rows[r], h]
void Reference::gather_rows(const GatherRowsKernel& args, device::WorkerPool&) {
  const std::int64_t rows = active_row_count(args.active_rows, args.rows.shape[0]);
  const std::int64_t source_rows = args.x.shape[0];
  const std::int64_t hidden = args.x.shape[1];
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t source = args.rows.as<const std::int32_t>()[r];
    const bool known = source >= 0 && source < source_rows;
    float* out = args.out.as<float>() + r * hidden;
    for (std::int64_t h = 0; h < hidden; ++h) {
      out[h] = known ? args.x.as<const float>()[source * hidden + h] : 0.0f;
    }
  }
}

}  // namespace holdfast::ops::cpu
