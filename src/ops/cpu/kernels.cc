// Kernels for the CPU: names every operand for the manifest and launches the set's function.
#include "device/cpu/cpu_device.h"
#include "ops/cpu/kernel_sets.h"
#include "ops/ops.h"

namespace holdfast::ops {
namespace {

using device::launch_cpu;
using device::reads;
using device::Stream;
using device::updates;
using device::writes;

using cpu::kernel_view;

template <typename Set>
class CpuKernels final : public Kernels {
 public:
  Status embedding(Stream& stream, const EmbeddingArgs& a) override {
    const cpu::EmbeddingKernel kernel{kernel_view(a.ids), kernel_view(a.table), kernel_view(a.out),
                                      kernel_view(a.active_rows)};
    return launch_cpu<&Set::embedding>(stream, "embedding", kernel,
                                       {reads("ids", a.ids), reads("table", a.table),
                                        reads("active_rows", a.active_rows), writes("out", a.out)});
  }

  Status rms_norm(Stream& stream, const RmsNormArgs& a) override {
    const cpu::RmsNormKernel kernel{kernel_view(a.x), kernel_view(a.weight), kernel_view(a.out),
                                    kernel_view(a.active_rows), double{a.eps}};
    return launch_cpu<&Set::rms_norm>(stream, "rms_norm", kernel,
                                      {reads("x", a.x), reads("weight", a.weight),
                                       reads("active_rows", a.active_rows), writes("out", a.out)});
  }

  Status head_norm(Stream& stream, const HeadNormArgs& a) override {
    const cpu::HeadNormKernel kernel{kernel_view(a.x),           kernel_view(a.query_weight),
                                     kernel_view(a.key_weight),  kernel_view(a.active_rows),
                                     a.query_head_count,         a.key_head_count,
                                     double{a.eps}};
    return launch_cpu<&Set::head_norm>(
        stream, "head_norm", kernel,
        {updates("x", a.x), reads("query_weight", a.query_weight),
         reads("key_weight", a.key_weight), reads("active_rows", a.active_rows)});
  }

  Status silu_gate(Stream& stream, const SiluGateArgs& a) override {
    const cpu::SiluGateKernel kernel{kernel_view(a.x), kernel_view(a.out),
                                     kernel_view(a.active_rows)};
    return launch_cpu<&Set::silu_gate>(
        stream, "silu_gate", kernel,
        {reads("x", a.x), reads("active_rows", a.active_rows), writes("out", a.out)});
  }

  Status linear(Stream& stream, const LinearArgs& a) override {
    const cpu::LinearKernel kernel{kernel_view(a.x),    kernel_view(a.weight),
                                   kernel_view(a.bias), kernel_view(a.residual),
                                   kernel_view(a.out),  kernel_view(a.active_rows)};
    return launch_cpu<&Set::linear>(
        stream, "linear", kernel,
        {reads("x", a.x), reads("weight", a.weight), reads("bias", a.bias),
         reads("residual", a.residual), reads("active_rows", a.active_rows), writes("out", a.out)});
  }

  Status rope(Stream& stream, const RopeArgs& a) override {
    const cpu::RopeKernel kernel{kernel_view(a.x),
                                 kernel_view(a.positions),
                                 kernel_view(a.cos_table),
                                 kernel_view(a.sin_table),
                                 kernel_view(a.active_rows),
                                 a.head_count,
                                 a.head_dim};
    return launch_cpu<&Set::rope>(
        stream, "rope", kernel,
        {updates("x", a.x), reads("positions", a.positions), reads("cos_table", a.cos_table),
         reads("sin_table", a.sin_table), reads("active_rows", a.active_rows)});
  }

  Status kv_write(Stream& stream, const KvWriteArgs& a) override {
    const cpu::KvWriteKernel kernel{kernel_view(a.qkv), kernel_view(a.slot_mapping),
                                    kernel_view(a.key_pages), kernel_view(a.value_pages),
                                    kernel_view(a.active_rows)};
    return launch_cpu<&Set::kv_write>(
        stream, "kv_write", kernel,
        {reads("qkv", a.qkv), reads("slot_mapping", a.slot_mapping),
         updates("key_pages", a.key_pages), updates("value_pages", a.value_pages),
         reads("active_rows", a.active_rows)});
  }

  Status paged_attention(Stream& stream, const PagedAttentionArgs& a) override {
    const cpu::PagedAttentionKernel kernel{kernel_view(a.qkv),          kernel_view(a.positions),
                                           kernel_view(a.row_sequence), kernel_view(a.block_tables),
                                           kernel_view(a.key_pages),    kernel_view(a.value_pages),
                                           kernel_view(a.sinks),        kernel_view(a.out),
                                           kernel_view(a.active_rows),  a.window,
                                           double{a.scale}};
    return launch_cpu<&Set::paged_attention>(
        stream, "paged_attention", kernel,
        {reads("qkv", a.qkv), reads("positions", a.positions),
         reads("row_sequence", a.row_sequence), reads("block_tables", a.block_tables),
         reads("key_pages", a.key_pages), reads("value_pages", a.value_pages),
         reads("sinks", a.sinks), reads("active_rows", a.active_rows), writes("out", a.out)});
  }

  Status router_top_k(Stream& stream, const RouterTopKArgs& a) override {
    const cpu::RouterTopKKernel kernel{kernel_view(a.logits), kernel_view(a.ids),
                                       kernel_view(a.weights), kernel_view(a.active_rows),
                                       a.over_all ? 1 : 0};
    return launch_cpu<&Set::router_top_k>(
        stream, "router_top_k", kernel,
        {reads("logits", a.logits), reads("active_rows", a.active_rows), writes("ids", a.ids),
         writes("weights", a.weights)});
  }

  bool routes_over_all() const override { return true; }

  Status gather_rows(Stream& stream, const GatherRowsArgs& a) override {
    const cpu::GatherRowsKernel kernel{kernel_view(a.x), kernel_view(a.rows), kernel_view(a.out),
                                       kernel_view(a.active_rows)};
    return launch_cpu<&Set::gather_rows>(
        stream, "gather_rows", kernel,
        {reads("x", a.x), reads("rows", a.rows), reads("active_rows", a.active_rows),
         writes("out", a.out)});
  }

  Status choose(Stream& stream, const ChooseArgs& a) override {
    const cpu::ChooseKernel kernel{kernel_view(a.logits), kernel_view(a.temperatures),
                                   kernel_view(a.draws), kernel_view(a.choices),
                                   kernel_view(a.active_rows)};
    return launch_cpu<&cpu::choose>(
        stream, "choose", kernel,
        {reads("logits", a.logits), reads("temperatures", a.temperatures), reads("draws", a.draws),
         reads("active_rows", a.active_rows), writes("choices", a.choices)});
  }
};

}  // namespace

std::unique_ptr<Kernels> make_cpu_reference_kernels() {
  return std::make_unique<CpuKernels<cpu::Reference>>();
}

std::unique_ptr<Kernels> make_cpu_fast_kernels() {
  return std::make_unique<CpuKernels<cpu::Fast>>();
}

}  // namespace holdfast::ops
