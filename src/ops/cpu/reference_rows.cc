// The formulas of embedding, rms_norm, head_norm, linear, silu_gate and gather_rows as scalar loops
// in float32.
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

namespace {

// out[h] = x[h] * rsqrt(sum_h x[h]^2 / count + eps) * weight[h]
void normalise(const float* x, const View& weight, std::int64_t count, double eps, float* out) {
  float square_sum = 0.0f;
  for (std::int64_t h = 0; h < count; ++h) square_sum += x[h] * x[h];
  const float mean = square_sum / static_cast<float>(count);
  const float scale = 1.0f / std::sqrt(mean + static_cast<float>(eps));
  for (std::int64_t h = 0; h < count; ++h) out[h] = x[h] * scale * weight_at(weight, h);
}

}  // namespace

void Reference::rms_norm(const RmsNormKernel& args, device::WorkerPool&) {
  const std::int64_t rows = active_row_count(args.active_rows, args.x.shape[0]);
  const std::int64_t hidden = args.x.shape[1];
  for (std::int64_t r = 0; r < rows; ++r) {
    normalise(args.x.as<const float>() + r * hidden, args.weight, hidden, args.eps,
              args.out.as<float>() + r * hidden);
  }
}

void Reference::head_norm(const HeadNormKernel& args, device::WorkerPool&) {
  const std::int64_t rows = active_row_count(args.active_rows, args.x.shape[0]);
  const std::int64_t dim = args.query_weight.shape[0];
  for (std::int64_t r = 0; r < rows; ++r) {
    float* x = args.x.as<float>() + r * args.x.shape[1];
    for (std::int64_t head = 0; head < args.query_heads + args.key_heads; ++head) {
      const View& weight = head < args.query_heads ? args.query_weight : args.key_weight;
      normalise(x + head * dim, weight, dim, args.eps, x + head * dim);
    }
  }
}

// out[r, i] = g / (1 + exp(-g)) * x[r, I + i] with g = x[r, i]
void Reference::silu_gate(const SiluGateKernel& args, device::WorkerPool&) {
  const std::int64_t rows = active_row_count(args.active_rows, args.out.shape[0]);
  const std::int64_t inner = args.out.shape[1];
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* gate = args.x.as<const float>() + r * 2 * inner;
    float* out = args.out.as<float>() + r * inner;
    for (std::int64_t i = 0; i < inner; ++i) {
      out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * gate[inner + i];
    }
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
