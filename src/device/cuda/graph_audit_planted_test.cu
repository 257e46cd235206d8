// A stale pointer of every kind that a graph can hold, planted: the audit finds it, or the capture
// is refused by the name of the node that it cannot read. docs/graph-audit.md has the table.
#include <cuda.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include "device/arena.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/cuda_test_device.h"
#include "device/cuda/graph_audit.h"
#include "device/test_home.h"

namespace holdfast::device::cuda {
namespace {

__global__ void copy_parameters(const float* from, float* to, std::int64_t count) {
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
}

struct PlainArgs {
  const float* from;
  float* to;
};
__global__ void copy_plain(PlainArgs a) { a.to[threadIdx.x] = a.from[threadIdx.x]; }

struct WideArgs {
  const float* from[6];
  std::int64_t count;
  float* to;
  std::int64_t rows, columns;
};
static_assert(sizeof(WideArgs) == 80);
__global__ void sum_wide(WideArgs a) {
  for (const float* from : a.from) a.to[threadIdx.x] += from[threadIdx.x];
}

#pragma pack(push, 4)
struct PackedArgs {
  std::int32_t before;
  const float* from;
  float* to;
};
#pragma pack(pop)
__global__ void copy_packed(PackedArgs a) { a.to[0] = a.from[0]; }

struct MapArgs {
  CUtensorMap map;
  float* to;
};
__global__ void read_map(const __grid_constant__ MapArgs a) {
  a.to[0] = reinterpret_cast<const float*>(&a.map)[threadIdx.x];
}

template <typename Function>
Function* driver_call(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result),
            cudaSuccess)
      << name;
  return reinterpret_cast<Function*>(found);
}

// Slots that live, and memory that was a slot before a rebuild and now is a freed block.
struct Fixture {
  explicit Fixture(Device& device)
      : gpu(device),
        driver(*cuda::driver().value()),
        arena(Arena::create(device, "slots", 4096).value()),
        stream(device.create_stream().value()) {
    arena->seal();
    home.add(arena->memory().address, arena->memory().bytes);
    auto freed = Arena::create(device, "freed", 4096).value();
    stale = reinterpret_cast<float*>(freed->memory().address);
  }
  float* slot(std::size_t index) {
    return reinterpret_cast<float*>(arena->memory().address) + index;
  }
  Operand operand(const char* role, const float* at, Access access) {
    return {role, {reinterpret_cast<std::uintptr_t>(at), 32 * sizeof(float)}, access};
  }
  cudaStream_t handle() { return static_cast<CudaStream&>(*stream).handle(); }

  // What the audit says of a graph that holds only what `body` enqueues.
  GraphAudit audit(const std::function<void(cudaStream_t)>& body) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(handle(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    body(handle());
    EXPECT_EQ(cudaStreamEndCapture(handle(), &graph), cudaSuccess);
    auto audit = audit_graph(driver, graph, home);
    EXPECT_TRUE(audit.ok()) << audit.error().to_string();
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return audit.ok() ? std::move(*audit) : GraphAudit{};
  }

  Device& gpu;
  const Driver& driver;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Stream> stream;
  FakeHome home;
  float* stale = nullptr;
};

// The node and the byte at which `address` was found: "copy_plain@8", or what there is instead.
std::string found_at(const GraphAudit& audit, const void* address) {
  for (const AuditedPointer& pointer : audit.pointers) {
    if (pointer.address != reinterpret_cast<std::uintptr_t>(address)) continue;
    return pointer.node + "@" + std::to_string(pointer.byte);
  }
  return "not found in " + std::to_string(audit.nodes) + " nodes";
}

// A capture of `body` is refused in words that hold `words`.
void expect_refused(Fixture& f, const std::function<Status()>& body,
                    std::initializer_list<const char*> words) {
  const auto graph = capture(*f.stream, f.home, "planted", body);
  ASSERT_FALSE(graph.ok());
  for (const char* word : words) {
    EXPECT_NE(graph.error().message().find(word), std::string::npos) << graph.error().message();
  }
  // Nothing stays recorded: the next capture of sound work goes through.
  const auto sound = capture(*f.stream, f.home, "sound", [&] {
    return launch_cuda(*f.stream, {"copy_plain", {.block = dim3(32)}}, copy_plain,
                       PlainArgs{f.slot(0), f.slot(64)},
                       {f.operand("from", f.slot(0), Access::kRead),
                        f.operand("to", f.slot(64), Access::kWrite)});
  });
  EXPECT_TRUE(sound.ok()) << sound.error().to_string();
}

Status enqueued(cudaError_t status) { return check(status, "planting"); }

TEST(CudaPlanted, APointerInKernelParamsIsFoundAlsoAnInteriorOne) {
  HF_GPU_OR_SKIP(gpu);
  Fixture f(gpu);
  const float* from = f.stale + 17;
  float* to = f.slot(0);
  std::int64_t count = 32;
  void* arguments[] = {&from, &to, &count};
  const auto launch = [&](cudaStream_t stream) {
    return cudaLaunchKernel(copy_parameters, dim3(1), dim3(32), arguments, 0, stream);
  };
  const GraphAudit audit = f.audit([&](cudaStream_t s) { EXPECT_EQ(launch(s), cudaSuccess); });
  EXPECT_NE(found_at(audit, from).find("copy_parameters"), std::string::npos);
  EXPECT_NE(found_at(audit, from).find("@0"), std::string::npos) << found_at(audit, from);
  expect_refused(f, [&] { return enqueued(launch(f.handle())); },
                 {"copy_parameters", "no launch of ours"});
  expect_refused(f, [&] {
    return launch_cuda(*f.stream, {"plain", {.block = dim3(32)}}, copy_plain,
                       PlainArgs{from, to}, {f.operand("to", to, Access::kWrite)});
  }, {"node plain", "at byte 0"});
}

TEST(CudaPlanted, APointerInAPackedParameterBufferIsFound) {
  HF_GPU_OR_SKIP(gpu);
  Fixture f(gpu);
  CUfunction function = nullptr;
  ASSERT_EQ(cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(copy_plain)),
            cudaSuccess);
  const auto launch_kernel = driver_call<decltype(cuLaunchKernel)>("cuLaunchKernel");
  PlainArgs args{f.stale, f.slot(0)};
  std::size_t bytes = sizeof(args);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &args, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  const auto launch = [&](cudaStream_t stream) {
    return launch_kernel(function, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, extra);
  };
  const GraphAudit audit = f.audit([&](cudaStream_t s) { EXPECT_EQ(launch(s), CUDA_SUCCESS); });
  EXPECT_NE(found_at(audit, f.stale).find("copy_plain"), std::string::npos)
      << found_at(audit, f.stale);
  expect_refused(f, [&] { return check(launch(f.handle()), "planting"); },
                 {"copy_plain", "no launch of ours"});
}

TEST(CudaPlanted, TheLastPointerOfAWideStructIsFound) {
  HF_GPU_OR_SKIP(gpu);
  Fixture f(gpu);
  WideArgs args{{f.slot(0), f.slot(32), f.slot(64), f.slot(96), f.slot(128), f.stale + 3}, 32,
                f.slot(160), 1, 1};
  void* arguments[] = {&args};
  const GraphAudit audit = f.audit([&](cudaStream_t s) {
    EXPECT_EQ(cudaLaunchKernel(sum_wide, dim3(1), dim3(32), arguments, 0, s), cudaSuccess);
  });
  EXPECT_EQ(audit.pointers.size(), 7u);
  EXPECT_NE(found_at(audit, f.stale + 3).find("sum_wide"), std::string::npos);
  EXPECT_NE(found_at(audit, f.stale + 3).find("@40"), std::string::npos);
  expect_refused(f, [&] {
    return launch_cuda(*f.stream, {"wide", {.block = dim3(32)}}, sum_wide, args,
                       {f.operand("a", f.slot(0), Access::kRead),
                        f.operand("b", f.slot(32), Access::kRead),
                        f.operand("c", f.slot(64), Access::kRead),
                        f.operand("d", f.slot(96), Access::kRead),
                        f.operand("e", f.slot(128), Access::kRead),
                        f.operand("to", f.slot(160), Access::kReadWrite)});
  }, {"node wide", "at byte 40"});
}

TEST(CudaPlanted, APointerOffItsAlignmentInAPackedStructIsFound) {
  HF_GPU_OR_SKIP(gpu);
  Fixture f(gpu);
  PackedArgs args{7, f.stale, f.slot(0)};
  void* arguments[] = {&args};
  const GraphAudit audit = f.audit([&](cudaStream_t s) {
    EXPECT_EQ(cudaLaunchKernel(copy_packed, dim3(1), dim3(1), arguments, 0, s), cudaSuccess);
  });
  EXPECT_NE(found_at(audit, f.stale).find("copy_packed"), std::string::npos);
  EXPECT_NE(found_at(audit, f.stale).find("@4"), std::string::npos) << found_at(audit, f.stale);
  expect_refused(f, [&] {
    return launch_cuda(*f.stream, {"packed", {}}, copy_packed, args,
                       {f.operand("to", f.slot(0), Access::kWrite)});
  }, {"node packed", "at byte 4"});
}

TEST(CudaPlanted, TheAddressInATensorMapIsFound) {
  HF_GPU_OR_SKIP(gpu);
  Fixture f(gpu);
  const auto encode = driver_call<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  MapArgs args{{}, f.slot(0)};
  const cuuint64_t dims[] = {32, 8}, strides[] = {128};
  const cuuint32_t box[] = {32, 8}, steps[] = {1, 1};
  ASSERT_EQ(encode(&args.map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, f.stale, dims, strides, box,
                   steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                   CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
            CUDA_SUCCESS);
  void* arguments[] = {&args};
  const GraphAudit audit = f.audit([&](cudaStream_t s) {
    EXPECT_EQ(cudaLaunchKernel(read_map, dim3(1), dim3(1), arguments, 0, s), cudaSuccess);
  });
  EXPECT_NE(found_at(audit, f.stale).find("read_map"), std::string::npos)
      << found_at(audit, f.stale);
  expect_refused(f, [&] {
    return launch_cuda(*f.stream, {"map", {}}, read_map, args,
                       {f.operand("to", f.slot(0), Access::kWrite)});
  }, {"node map", "read_map"});
}

TEST(CudaPlanted, MemcpyAndMemsetNodesAreReadAndRefused) {
  HF_GPU_OR_SKIP(gpu);
  Fixture f(gpu);
  const auto copy = [&](cudaStream_t stream) {
    return cudaMemcpyAsync(f.slot(0), f.stale + 8, 64, cudaMemcpyDeviceToDevice, stream);
  };
  const auto set = [&](cudaStream_t s) { return cudaMemsetAsync(f.stale + 24, 0, 64, s); };
  const GraphAudit audit = f.audit([&](cudaStream_t stream) {
    EXPECT_EQ(copy(stream), cudaSuccess);
    EXPECT_EQ(set(stream), cudaSuccess);
  });
  EXPECT_EQ(found_at(audit, f.stale + 8), "memcpy@0");
  EXPECT_EQ(found_at(audit, f.stale + 24), "memset@0");
  expect_refused(f, [&] { return enqueued(copy(f.handle())); }, {"memcpy", "no launch of ours"});
  expect_refused(f, [&] { return enqueued(set(f.handle())); }, {"memset", "no launch of ours"});
  // The way that is ours says what it reads, and that has no home.
  expect_refused(f, [&] {
    return f.stream->copy(reinterpret_cast<std::byte*>(f.slot(0)),
                          reinterpret_cast<std::byte*>(f.stale), 64);
  }, {"copy", "operand from"});
}

// A graph of one kernel that reads stale memory, to be put into others.
cudaGraph_t stale_child(Fixture& f) {
  cudaGraph_t child = nullptr;
  EXPECT_EQ(cudaGraphCreate(&child, 0), cudaSuccess);
  PlainArgs args{f.stale, f.slot(0)};
  void* arguments[] = {&args};
  cudaKernelNodeParams params = {};
  params.func = reinterpret_cast<void*>(copy_plain);
  params.gridDim = dim3(1);
  params.blockDim = dim3(32);
  params.kernelParams = arguments;
  cudaGraphNode_t node = nullptr;
  EXPECT_EQ(cudaGraphAddKernelNode(&node, child, nullptr, 0, &params), cudaSuccess);
  return child;
}

using AddNode = std::function<cudaGraphNode_t(cudaGraph_t, const cudaGraphNode_t*,
                                              const cudaGraphEdgeData*, std::size_t)>;
// Adds a node to what `stream` captures, as something that goes around our streams would.
void plant(cudaStream_t stream, const AddNode& add) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* before = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  ASSERT_EQ(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, &before, &edges, &count),
            cudaSuccess);
  cudaGraphNode_t node = add(graph, before, edges, count);
  ASSERT_EQ(cudaStreamUpdateCaptureDependencies(stream, &node, nullptr, 1,
                                                cudaStreamSetCaptureDependencies),
            cudaSuccess);
}

void plant_child(Fixture& f, cudaStream_t stream) {
  plant(stream, [&](cudaGraph_t graph, const cudaGraphNode_t* before, const cudaGraphEdgeData*,
                    std::size_t count) {
    cudaGraph_t child = stale_child(f);
    cudaGraphNode_t node = nullptr;
    EXPECT_EQ(cudaGraphAddChildGraphNode(&node, graph, before, count, child), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(child), cudaSuccess);
    return node;
  });
}

// A conditional node with a body that reads stale memory.
void plant_conditional(Fixture& f, cudaStream_t stream) {
  plant(stream, [&](cudaGraph_t graph, const cudaGraphNode_t* before,
                    const cudaGraphEdgeData* edges, std::size_t count) {
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.type = cudaGraphCondTypeIf;
    params.conditional.size = 1;
    EXPECT_EQ(cudaGraphConditionalHandleCreate(&params.conditional.handle, graph, 0, 0),
              cudaSuccess);
    cudaGraphNode_t node = nullptr;
    EXPECT_EQ(cudaGraphAddNode(&node, graph, before, edges, count, &params), cudaSuccess);
    cudaGraph_t child = stale_child(f);
    cudaGraphNode_t body = nullptr;
    EXPECT_EQ(cudaGraphAddChildGraphNode(&body, params.conditional.phGraph_out[0], nullptr, 0,
                                         child),
              cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(child), cudaSuccess);
    return node;
  });
}

TEST(CudaPlanted, APointerInAChildGraphIsFoundAndTheNodeIsRefused) {
  HF_GPU_OR_SKIP(gpu);
  Fixture f(gpu);
  const GraphAudit audit = f.audit([&](cudaStream_t s) { plant_child(f, s); });
  EXPECT_NE(found_at(audit, f.stale).find("copy_plain"), std::string::npos)
      << found_at(audit, f.stale);
  expect_refused(f, [&] {
    plant_child(f, f.handle());
    return Status();
  }, {"child graph", "no launch of ours"});
}

TEST(CudaPlanted, AConditionalNodeCannotBeReadAndIsRefusedByName) {
  HF_GPU_OR_SKIP(gpu);
  Fixture f(gpu);
  const GraphAudit audit = f.audit([&](cudaStream_t s) { plant_conditional(f, s); });
  ASSERT_EQ(audit.unaudited.size(), 1u);
  EXPECT_NE(audit.unaudited[0].find("conditional"), std::string::npos) << audit.unaudited[0];
  expect_refused(f, [&] {
    plant_conditional(f, f.handle());
    return Status();
  }, {"conditional", "no launch of ours"});
}

__global__ void read_through_table(const float* const* table, float* to) {
  to[threadIdx.x] = table[0][threadIdx.x];
}

TEST(CudaPlanted, ATableOfPointersOutsideEverySlotIsFound) {
  HF_GPU_OR_SKIP(gpu);
  Fixture f(gpu);
  const float* const* table = reinterpret_cast<const float* const*>(f.stale);
  float* to = f.slot(0);
  void* arguments[] = {&table, &to};
  const auto launch = [&](cudaStream_t s) {
    return cudaLaunchKernel(read_through_table, dim3(1), dim3(32), arguments, 0, s);
  };
  const GraphAudit audit = f.audit([&](cudaStream_t s) { EXPECT_EQ(launch(s), cudaSuccess); });
  EXPECT_NE(found_at(audit, f.stale).find("read_through_table"), std::string::npos);
  expect_refused(f, [&] { return enqueued(launch(f.handle())); }, {"read_through_table"});
}

}  // namespace
}  // namespace holdfast::device::cuda
