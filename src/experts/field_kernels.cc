#include "experts/field_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "experts/round_inputs.h"
#include "tensor/codecs.h"
#include "tensor/int4_codecs.h"

namespace holdfast::experts::field {
namespace {

constexpr int kOctet = 8;

bool is_expert(std::int32_t id, const cpu::MoeShape& shape) {
  return id >= 0 && id < shape.expert_count;
}

template <typename T>
T load(const std::byte* from, std::int64_t index) {
  T value;
  std::memcpy(&value, from + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

struct RowOf {
  std::int64_t expert = 0;
  std::int64_t row = 0;
};

// Columns [8 v, 8 v + 8) of a row.
void decode_octet(const Matrix& m, const RowOf& of, std::int64_t v, int zero, float* w) {
  const std::int64_t first = of.expert * m.layout.rows * m.layout.units;
  if (m.codec == cpu::Codec::kE2M1 || m.codec == cpu::Codec::kInt4) {
    const auto word = load<std::uint32_t>(m.weights, first + m.layout.place(of.row, v));
    for (int i = 0; i < kOctet; ++i) {
      const auto code =
          static_cast<std::uint8_t>(word >> (4 * nibble_place(m.layout.order, i)) & 15u);
      w[i] = m.codec == cpu::Codec::kE2M1 ? tensor::f4_e2m1_to_f32(code)
                                          : static_cast<float>(int{code} - zero);
    }
    return;
  }
  for (int i = 0; i < kOctet; ++i) {
    const std::int64_t at = first + m.layout.place(of.row, v * kOctet + i);
    switch (m.codec) {
      case cpu::Codec::kBF16:
        w[i] = tensor::bf16_to_f32(load<std::uint16_t>(m.weights, at));
        break;
      case cpu::Codec::kF16: w[i] = tensor::f16_to_f32(load<std::uint16_t>(m.weights, at)); break;
      case cpu::Codec::kF32: w[i] = load<float>(m.weights, at); break;
      default: w[i] = tensor::f8_e4m3_to_f32(load<std::uint8_t>(m.weights, at));
    }
  }
}

float group_scale(const Matrix& m, std::int64_t expert, std::int64_t row, std::int64_t group) {
  const std::int64_t at = expert * m.scale_layout.rows * m.scale_layout.groups +
                          m.scale_layout.place(row, group);
  switch (m.group_scale) {
    case cpu::GroupScale::kNone: break;
    case cpu::GroupScale::kE8M0: return tensor::f8_e8m0_to_f32(load<std::uint8_t>(m.scales, at));
    case cpu::GroupScale::kE4M3: return tensor::f8_e4m3_to_f32(load<std::uint8_t>(m.scales, at));
    case cpu::GroupScale::kF16: return tensor::f16_to_f32(load<std::uint16_t>(m.scales, at));
    case cpu::GroupScale::kBF16: return tensor::bf16_to_f32(load<std::uint16_t>(m.scales, at));
    case cpu::GroupScale::kF32:
    case cpu::GroupScale::kF32Tile: return load<float>(m.scales, at);
  }
  return 1.0f;
}

// The row times x over columns [begin, columns): the accumulator, before alpha and bias.
float row_times(const Matrix& m, std::int64_t expert, std::int64_t row, const float* x,
                std::int64_t begin) {
  float sum = 0.0f;
  const std::int64_t group = m.group_scale == cpu::GroupScale::kNone ? m.columns : m.group;
  for (std::int64_t k = begin; k < m.columns; k += kOctet) {
    const std::int64_t g = k / group;
    int zero = tensor::kInt4SymmetricZero;
    if (m.zeros != nullptr) {
      zero = m.zeros[(expert * m.layout.rows + row) * m.scale_layout.groups + g];
    }
    float w[kOctet];
    decode_octet(m, {expert, row}, k / kOctet, zero, w);
    float octet = 0.0f;
    for (int i = 0; i < kOctet; ++i) octet += w[i] * x[k + i];
    sum += octet * group_scale(m, expert, row, g);
  }
  if (m.row_scales != nullptr) sum *= m.row_scales[expert * m.layout.rows + row];
  return sum;
}

float factor(const float* values, std::int64_t expert) {
  return values == nullptr ? 1.0f : values[expert];
}
float bias(const Matrix& m, std::int64_t expert, std::int64_t row) {
  return m.bias == nullptr ? 0.0f : m.bias[expert * m.layout.rows + row];
}

// Where the sums of a tile begin: what its lock says is done already.
std::int64_t take_turns(std::int32_t* locks, std::int64_t tile, std::int64_t columns) {
  if (locks == nullptr) return 0;
  const std::int32_t turn = locks[tile];
  if (turn != 0) return turn == 1 ? columns / 2 / kOctet * kOctet : columns;
  locks[tile] = 2;
  return 0;
}
void release(std::int32_t* locks, std::int64_t tile, std::int64_t begin) {
  if (locks != nullptr && begin == 0) locks[tile] = 0;
}

float gated(const GateUpArgs& args, std::int64_t expert, float gate, float up) {
  const float gate_alpha = factor(args.gate_alpha, expert);
  const float up_alpha = factor(args.up_alpha, expert);
  const float gate_limit = args.gate_limit[expert];
  const float up_limit = args.up_limit[expert];
  if (args.raw_limits == 0) {
    gate *= gate_alpha;
    up *= up_alpha;
  }
  gate = gate > gate_limit ? gate_limit : gate;
  up = up > up_limit ? up_limit : (up < -up_limit ? -up_limit : up);
  up += args.beta[expert];
  if (args.raw_limits != 0) {
    gate *= gate_alpha;
    up *= up_alpha;
  }
  return gate / (1.0f + std::exp(-args.swiglu_alpha[expert] * gate)) * up;
}

void gate_up_row(const GateUpArgs& args, std::int64_t i, std::int64_t begin) {
  const Matrix& m = args.matrix;
  const std::int64_t gate_at = gate_row(args.halves, m.layout.rows, i);
  const std::int64_t up_at = up_row(args.halves, m.layout.rows, i);
  const std::int64_t inner = m.layout.rows / 2;
  for (std::int64_t e = 0; e < args.shape.expert_count; ++e) {
    for (std::int64_t g = args.groups.begin[e]; g < args.groups.begin[e + 1]; ++g) {
      const std::int64_t pair = args.groups.pairs[g];
      const float* x = args.inputs + pair * m.columns;
      const float scale = factor(args.input_factor, e);
      // A format has an alpha or biases, not both: what is added here is of the accumulator.
      const float gate = row_times(m, e, gate_at, x, begin) * scale + bias(m, e, gate_at);
      const float up = row_times(m, e, up_at, x, begin) * scale + bias(m, e, up_at);
      args.activation[pair * inner + i] = gated(args, e, gate, up);
    }
  }
}

void down_row(const DownArgs& args, std::int64_t h, std::int64_t begin) {
  const Matrix& m = args.matrix;
  for (std::int64_t e = 0; e < args.shape.expert_count; ++e) {
    for (std::int64_t g = args.groups.begin[e]; g < args.groups.begin[e + 1]; ++g) {
      const std::int64_t pair = args.groups.pairs[g];
      const float sum = row_times(m, e, h, args.inputs + pair * m.columns, begin) *
                        factor(args.input_factor, e) * factor(args.alpha, e);
      args.down_out[pair * args.shape.hidden + h] = sum + bias(m, e, h);
    }
  }
}

// Calls row(r, begin) for rows [0, count), a tile of them to a worker.
template <typename Row>
void for_rows(std::int64_t count, std::int32_t* locks, std::int64_t columns,
              device::WorkerPool& workers, const Row& row) {
  const std::int64_t tiles = (count + kLockRows - 1) / kLockRows;
  workers.parallel_for(tiles, 1, [&](std::int64_t first, std::int64_t last, int) {
    for (std::int64_t tile = first; tile < last; ++tile) {
      const std::int64_t begin = take_turns(locks, tile, columns);
      const std::int64_t end = std::min(count, (tile + 1) * kLockRows);
      for (std::int64_t r = tile * kLockRows; r < end; ++r) row(r, begin);
      release(locks, tile, begin);
    }
  });
}

void prepare_pair(const PrepareArgs& args, std::int64_t pair) {
  const std::int64_t expert = args.ids[pair];
  const float* from =
      args.from.x + pair / args.from.pairs_per_row * args.from.length;
  float* to = args.to + pair * args.padded;
  const float reciprocal = factor(args.reciprocal, expert);
  for (std::int64_t k = 0; k < args.columns; ++k) {
    const std::int64_t source = args.order == nullptr ? k : args.order[expert * args.columns + k];
    to[k] = from[source] * reciprocal;
  }
  std::copy(from + args.columns, from + args.from.length, to + args.columns);
  std::fill(to + args.from.length, to + args.padded, 0.0f);
  const RoundRule rule{.scheme = static_cast<config::ActivationScheme>(args.activations),
                       .input_scale = InputScale::kLeftOut};
  const auto count = static_cast<std::size_t>(args.columns);
  round_row(rule, factor(args.input_scale, expert), {to, count}, to);
}

}  // namespace

void prepare(const PrepareArgs& args, device::WorkerPool& workers) {
  const std::int64_t rows = std::clamp<std::int64_t>(*args.active_rows, 0, args.shape.n);
  workers.parallel_for(rows * args.shape.experts_per_token, 1,
                       [&](std::int64_t begin, std::int64_t end, int) {
                         for (std::int64_t pair = begin; pair < end; ++pair) {
                           if (is_expert(args.ids[pair], args.shape)) prepare_pair(args, pair);
                         }
                       });
}

void gate_up(const GateUpArgs& args, device::WorkerPool& workers) {
  for_rows(args.matrix.layout.rows / 2, args.locks, args.matrix.columns, workers,
           [&](std::int64_t i, std::int64_t begin) { gate_up_row(args, i, begin); });
}

void down(const DownArgs& args, device::WorkerPool& workers) {
  for_rows(args.shape.hidden, args.locks, args.matrix.columns, workers,
           [&](std::int64_t h, std::int64_t begin) { down_row(args, h, begin); });
}

}  // namespace holdfast::experts::field
