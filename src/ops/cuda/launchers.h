// The CUDA launchers of the ops: each enqueues its kernel on a CUDA stream and names its operands.
// Arguments are already checked (ops.h). No state; the stream's thread.
#pragma once

#include "ops/ops.h"

namespace holdfast::ops::cuda {

Status embedding(device::Stream& stream, const EmbeddingArgs& args);
Status rms_norm(device::Stream& stream, const RmsNormArgs& args);
Status linear(device::Stream& stream, const LinearArgs& args);
Status rope(device::Stream& stream, const RopeArgs& args);
Status kv_write(device::Stream& stream, const KvWriteArgs& args);
Status paged_attention(device::Stream& stream, const PagedAttentionArgs& args);
Status router_top_k(device::Stream& stream, const RouterTopKArgs& args);
Status gather_rows(device::Stream& stream, const GatherRowsArgs& args);
Status head_norm(device::Stream& stream, const HeadNormArgs& args);
Status silu_gate(device::Stream& stream, const SiluGateArgs& args);
// `done` is false where the shapes or dtypes need the parts in turn; then nothing was launched.
Status qkv(device::Stream& stream, const QkvArgs& args, bool& done);
Status route(device::Stream& stream, const RouteArgs& args, bool& done);
Status head(device::Stream& stream, const HeadArgs& args);
Status choose(device::Stream& stream, const ChooseArgs& args);

}  // namespace holdfast::ops::cuda
