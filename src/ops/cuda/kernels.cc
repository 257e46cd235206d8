// The CUDA set of kernels behind ops::Kernels.
#include "base/error.h"
#include "ops/cuda/launchers.h"
#include "ops/ops.h"

namespace holdfast::ops {
namespace {

using device::Stream;

class CudaKernels final : public Kernels {
 public:
  Status embedding(Stream& s, const EmbeddingArgs& a) override { return cuda::embedding(s, a); }
  Status rms_norm(Stream& s, const RmsNormArgs& a) override { return cuda::rms_norm(s, a); }
  Status linear(Stream& s, const LinearArgs& a) override { return cuda::linear(s, a); }
  Status rope(Stream& s, const RopeArgs& a) override { return cuda::rope(s, a); }
  Status kv_write(Stream& s, const KvWriteArgs& a) override { return cuda::kv_write(s, a); }
  Status paged_attention(Stream& s, const PagedAttentionArgs& a) override {
    return cuda::paged_attention(s, a);
  }
  Status router_top_k(Stream& s, const RouterTopKArgs& a) override {
    return cuda::router_top_k(s, a);
  }
  Status gather_rows(Stream& s, const GatherRowsArgs& a) override {
    return cuda::gather_rows(s, a);
  }
  Status head_norm(Stream& s, const HeadNormArgs& a) override { return cuda::head_norm(s, a); }
  Status silu_gate(Stream& s, const SiluGateArgs& a) override { return cuda::silu_gate(s, a); }
  bool routes_over_all() const override { return true; }
  Status qkv(Stream& s, const QkvArgs& a) override {
    bool done = false;
    HF_TRY(cuda::qkv(s, a, done));
    return done ? Status() : Kernels::qkv(s, a);
  }
  Status route(Stream& s, const RouteArgs& a) override {
    bool done = false;
    HF_TRY(cuda::route(s, a, done));
    return done ? Status() : Kernels::route(s, a);
  }
  Status head(Stream& s, const HeadArgs& a) override { return cuda::head(s, a); }
  Status choose(Stream& s, const ChooseArgs& a) override { return cuda::choose(s, a); }
};

}  // namespace

std::unique_ptr<Kernels> make_cuda_kernels() { return std::make_unique<CudaKernels>(); }

}  // namespace holdfast::ops
