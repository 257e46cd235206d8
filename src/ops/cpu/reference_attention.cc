// The formulas of rope, kv_write and paged_attention, as scalar loops in float32.
#include <algorithm>
#include <cmath>

#include "ops/cpu/kernel_sets.h"

namespace holdfast::ops::cpu {

// With half = d / 2 and (a, b) = (x[i], x[i + half]) of a head:
// x[i] = a cos_i - b sin_i, x[i + half] = b cos_i + a sin_i
void Reference::rope(const RopeKernel& args, device::WorkerPool&) {
  const std::int64_t rows = active_row_count(args.active_rows, args.x.shape[0]);
  const std::int64_t width = args.x.shape[1];
  const std::int64_t half = args.head_dim / 2;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t position = args.positions.as<const std::int32_t>()[r];
    if (position < 0 || position >= args.cos_table.shape[0]) continue;
    const float* cosine = args.cos_table.as<const float>() + position * half;
    const float* sine = args.sin_table.as<const float>() + position * half;
    for (std::int64_t head = 0; head < args.head_count; ++head) {
      float* x = args.x.as<float>() + r * width + head * args.head_dim;
      for (std::int64_t i = 0; i < half; ++i) {
        const float a = x[i];
        const float b = x[i + half];
        x[i] = a * cosine[i] - b * sine[i];
        x[i + half] = b * cosine[i] + a * sine[i];
      }
    }
  }
}

// pages[slot_mapping[r]] = k, v of row r
void Reference::kv_write(const KvWriteKernel& args, device::WorkerPool&) {
  const auto& pages = args.key_pages.shape;
  const std::int64_t rows = active_row_count(args.active_rows, args.qkv.shape[0]);
  const std::int64_t width = args.qkv.shape[1];
  const std::int64_t kv_width = pages[2] * pages[3];
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t slot = args.slot_mapping.as<const std::int32_t>()[r];
    if (slot < 0 || slot >= pages[0] * pages[1]) continue;
    const float* value = args.qkv.as<const float>() + (r + 1) * width - kv_width;
    const float* key = value - kv_width;
    std::copy_n(key, kv_width, args.key_pages.as<float>() + slot * kv_width);
    std::copy_n(value, kv_width, args.value_pages.as<float>() + slot * kv_width);
  }
}

namespace {

float dot(const float* a, const float* b, std::int64_t count) {
  float sum = 0.0f;
  for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// With s_j = scale * q . k_j over the visible keys and m = max(sink, max_j s_j):
// out = sum_j exp(s_j - m) v_j / (exp(sink - m) + sum_j exp(s_j - m))
void attend_head(const PagedAttentionKernel& args, const PagedKeys& keys, std::int64_t row,
                 std::int64_t head) {
  const std::int64_t dim = args.key_pages.shape[3];
  const std::int64_t query_heads = args.sinks.shape[0];
  const std::int64_t kv_head = head / (query_heads / args.key_pages.shape[2]);
  const float* query = args.qkv.as<const float>() + row * args.qkv.shape[1] + head * dim;
  const float* key = args.key_pages.as<const float>() + kv_head * dim;
  const float* value = args.value_pages.as<const float>() + kv_head * dim;
  float* out = args.out.as<float>() + (row * query_heads + head) * dim;
  std::fill_n(out, dim, 0.0f);
  if (keys.table == nullptr) return;

  const auto scale = static_cast<float>(args.scale);
  const float sink = weight_at(args.sinks, head);
  float largest = sink;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const std::int64_t offset = keys.offset(j);
    if (offset >= 0) largest = std::max(largest, scale * dot(query, key + offset, dim));
  }
  float denominator = std::exp(sink - largest);
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const std::int64_t offset = keys.offset(j);
    if (offset < 0) continue;
    const float p = std::exp(scale * dot(query, key + offset, dim) - largest);
    denominator += p;
    for (std::int64_t i = 0; i < dim; ++i) out[i] += p * value[offset + i];
  }
  for (std::int64_t i = 0; i < dim; ++i) out[i] /= denominator;
}

}  // namespace

void Reference::paged_attention(const PagedAttentionKernel& args, device::WorkerPool&) {
  const std::int64_t rows = active_row_count(args.active_rows, args.qkv.shape[0]);
  for (std::int64_t r = 0; r < rows; ++r) {
    const PagedKeys keys = visible_keys(args, r);
    for (std::int64_t head = 0; head < args.sinks.shape[0]; ++head) {
      attend_head(args, keys, r, head);
    }
  }
}

}  // namespace holdfast::ops::cpu
