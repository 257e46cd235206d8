#include "device/cpu/worker_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/assert.h"

namespace holdfast::device {
namespace {

// About 50 us of waiting before a thread gives its core back: longer than the gap between two
// kernels of a step, shorter than anyone notices.
constexpr int kSpinRounds = 2000;
// More workers than cores: whoever spins keeps the core from the thread that it waits for.
constexpr int kOversubscribedSpinRounds = 16;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Waits until `word` is no longer `old`, spinning first. Returns the new value.
std::uint32_t await_change(const std::atomic<std::uint32_t>& word, std::uint32_t old, int spins) {
  for (int round = 0; round < spins; ++round) {
    const std::uint32_t value = word.load(std::memory_order_acquire);
    if (value != old) return value;
    relax();
  }
  word.wait(old, std::memory_order_acquire);
  return word.load(std::memory_order_acquire);
}

struct Job {
  std::int64_t count = 0;
  std::int64_t grain = 1;
  std::int64_t units = 0;
  int active = 0;
  const void* context = nullptr;
  void (*invoke)(const void*, std::int64_t, std::int64_t, int) = nullptr;

  // One contiguous share per worker, so that each streams one region of memory.
  void run_share(int worker) const {
    const std::int64_t begin = units * worker / active * grain;
    const std::int64_t end = std::min(units * (worker + 1) / active * grain, count);
    invoke(context, begin, end, worker);
  }
};

// One per worker, so that a worker left out of a job never looks at that job.
struct alignas(64) Mailbox {
  std::atomic<std::uint32_t> posted{0};
};

}  // namespace

int usable_core_count() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

struct WorkerPool::State {
  explicit State(int workers) : mailboxes(static_cast<std::size_t>(workers)) {
    spins = workers > usable_core_count() ? kOversubscribedSpinRounds : kSpinRounds;
    threads.reserve(mailboxes.size() - 1);
    for (int worker = 1; worker < workers; ++worker) {
      threads.emplace_back([this, worker] { serve(worker); });
    }
  }

  ~State() {
    stop.store(true, std::memory_order_relaxed);
    for (std::size_t worker = 1; worker < mailboxes.size(); ++worker) post(worker);
    for (std::thread& thread : threads) thread.join();
  }

  void post(std::size_t worker) {
    mailboxes[worker].posted.fetch_add(1, std::memory_order_release);
    mailboxes[worker].posted.notify_one();
  }

  void serve(int worker) {
    std::uint32_t seen = 0;
    while (true) {
      seen = await_change(mailboxes[static_cast<std::size_t>(worker)].posted, seen, spins);
      if (stop.load(std::memory_order_relaxed)) return;
      job.run_share(worker);
      if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) pending.notify_one();
    }
  }

  void run(const Job& next) {
    job = next;
    pending.store(static_cast<std::uint32_t>(next.active - 1), std::memory_order_relaxed);
    for (int worker = 1; worker < next.active; ++worker) post(static_cast<std::size_t>(worker));
    job.run_share(0);
    std::uint32_t left = pending.load(std::memory_order_acquire);
    while (left != 0) left = await_change(pending, left, spins);
  }

  int spins = 0;
  std::vector<Mailbox> mailboxes;
  std::vector<std::thread> threads;
  Job job;
  std::atomic<bool> stop{false};
  std::atomic<bool> busy{false};
  alignas(64) std::atomic<std::uint32_t> pending{0};
};

WorkerPool::WorkerPool(int workers) : worker_count_(workers == 0 ? usable_core_count() : workers) {
  HF_ASSERT(workers >= 0, "a worker pool needs a worker count of 0 (all cores) or more");
  state_ = std::make_unique<State>(worker_count_);
}

WorkerPool::~WorkerPool() = default;

void WorkerPool::run(std::int64_t count, std::int64_t grain, const void* context, Invoke invoke) {
  HF_ASSERT(count >= 0 && grain >= 1, "parallel_for needs count >= 0 and grain >= 1");
  if (count == 0) return;
  const std::int64_t units = count / grain + (count % grain != 0 ? 1 : 0);
  const int active = static_cast<int>(std::min<std::int64_t>(units, worker_count_));
  if (active == 1) {
    invoke(context, 0, count, 0);
    return;
  }
  HF_ASSERT(!state_->busy.exchange(true, std::memory_order_acquire),
            "parallel_for was called inside parallel_for or by two threads at a time");
  state_->run(Job{.count = count,
                  .grain = grain,
                  .units = units,
                  .active = active,
                  .context = context,
                  .invoke = invoke});
  state_->busy.store(false, std::memory_order_release);
}

}  // namespace holdfast::device
