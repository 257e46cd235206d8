// Quantising one expert's matrix of gpt-oss-20b's shape ([5760, 2880]; int4 in groups of 96), by
// one thread: GB/s of source values read. bf16 lies in rows as Qwen3-MoE and Mixtral publish it, or
// input-major as gpt-oss does; the copy beside it is what memory allows.
#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <vector>

#include "tensor/codecs.h"
#include "tensor/quantize.h"

namespace holdfast::tensor {
namespace {

constexpr MatrixSize kSize{5760, 2880};

std::vector<std::byte> random_values(DType dtype) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  const auto count = static_cast<std::size_t>(kSize.rows * kSize.cols);
  std::vector<std::byte> out(count * (dtype == DType::kF32 ? 4 : 2));
  for (std::size_t i = 0; i < count; ++i) {
    const float value = normal(engine);
    const std::uint16_t bits = f32_to_bf16(value);
    if (dtype == DType::kF32) std::memcpy(out.data() + 4 * i, &value, 4);
    if (dtype != DType::kF32) std::memcpy(out.data() + 2 * i, &bits, 2);
  }
  return out;
}

void set_rate(benchmark::State& state, std::size_t bytes) {
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(bytes) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

void run(benchmark::State& state, const QuantizeRule& rule, DType dtype, bool input_major) {
  const std::vector<std::byte> values = random_values(dtype);
  const MatrixValues view{dtype, values.data(), kSize, input_major ? 1 : kSize.cols,
                          input_major ? kSize.rows : 1};
  const QuantizedBytes bytes = quantized_bytes(rule, kSize).value();
  std::vector<std::byte> codes(bytes.codes), scales(bytes.scales), zeros(bytes.zeros);
  for (auto _ : state) {
    QuantizeRule with = rule;
    const bool whole = rule.code == MatrixCode::kNvfp4 || rule.group.rows == kSize.rows;
    if (whole) with.whole = matrix_amax(view, {0, kSize.rows}).value();
    if (rule.code == MatrixCode::kNvfp4) with.whole = nvfp4_global(with.whole);
    quantize_rows(with, view, {0, kSize.rows}, {codes, scales, zeros}).value();
    benchmark::DoNotOptimize(codes.data());
  }
  set_rate(state, values.size());
}

void BM_Copy(benchmark::State& state) {
  const std::vector<std::byte> values = random_values(DType::kBF16);
  std::vector<std::byte> to(values.size());
  for (auto _ : state) {
    std::memcpy(to.data(), values.data(), to.size());
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
  }
  set_rate(state, values.size());
}
BENCHMARK(BM_Copy)->UseRealTime();

int register_all() {
  using enum MatrixCode;
  const std::pair<const char*, QuantizeRule> rules[] = {
      {"bf16", {.code = kCast}},
      {"mxfp4", {.code = kMxfp4}},
      {"mxfp8", {.code = kMxfp8}},
      {"nvfp4", {.code = kNvfp4}},
      {"fp8-tensor", {.code = kFp8, .dtype = DType::kF32, .group = kSize}},
      {"fp8-channel", {.code = kFp8, .dtype = DType::kBF16, .group = {1, kSize.cols}}},
      {"fp8-block", {.code = kFp8, .dtype = DType::kF32, .group = {128, 128}}},
      {"int4", {.code = kInt4, .group = {1, 96}}},
      {"int4-zeros", {.code = kInt4, .group = {1, 96}, .zeros = Int4Zeros::kAsymmetric}}};
  for (const auto& [name, rule] : rules) {
    const auto add = [&, rule = rule](const char* from, DType dtype, bool input_major) {
      benchmark::RegisterBenchmark(
          (std::string(name) + "/" + from).c_str(),
          [rule, dtype, input_major](benchmark::State& s) { run(s, rule, dtype, input_major); })
          ->UseRealTime();
    };
    add("bf16", DType::kBF16, false);
    add("bf16-input-major", DType::kBF16, true);
    add("f32", DType::kF32, false);
  }
  return 0;
}
const int kRegistered = register_all();

}  // namespace
}  // namespace holdfast::tensor
