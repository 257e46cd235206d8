// WorkerPool: a fixed set of threads for the kernels of one CPU stream. parallel_for belongs to one
// caller at a time. The split of the work never decides a result: kernels compute each output
// element wholly inside one task. The work is cut into shares of fixed bounds; each worker starts
// with its own, and whoever is done takes shares that nobody has started, so that a worker without
// a core delays a kernel by at most the share that it is in.
#pragma once

#include <cstdint>
#include <memory>

namespace holdfast::device {

// Cores that this process may run on; at least 1.
int usable_core_count();

class WorkerPool {
 public:
  // `workers` counts the calling thread; 0 means all cores this process may use.
  explicit WorkerPool(int workers);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int worker_count() const { return worker_count_; }

  // Calls body(begin, end, worker) over disjoint ranges that cover [0, count), each a multiple of
  // `grain` long except the last; returns when all are done. The ranges depend on count, grain and
  // worker_count() alone; `worker` < worker_count() says who runs one, which is up to the moment:
  // calls with one `worker` follow each other, and a worker may get several or none.
  // Allocates nothing. body must not throw and must not call parallel_for.
  template <typename Body>
  void parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
    run(count, grain, &body,
        [](const void* context, std::int64_t begin, std::int64_t end, int worker) {
          (*static_cast<const Body*>(context))(begin, end, worker);
        });
  }

 private:
  using Invoke = void (*)(const void* context, std::int64_t begin, std::int64_t end, int worker);
  void run(std::int64_t count, std::int64_t grain, const void* context, Invoke invoke);

  struct State;
  int worker_count_ = 1;
  std::unique_ptr<State> state_;
};

}  // namespace holdfast::device
