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

// Shares of one worker: more than one, so that a worker that loses its core keeps little from the
// others; few, so that each streams a long region of memory.
constexpr std::int64_t kSharesPerWorker = 4;
// Work of fewer units is not worth cutting further: one share a worker.
constexpr std::int64_t kMinUnitsPerShare = 4;
// A worker out of shares looks at so many others' (the caller at all), so that looking costs the
// same on any number of cores.
constexpr int kHelpReach = 8;

struct Job {
  std::int64_t count = 0;
  std::int64_t grain = 1;
  std::int64_t units = 0;
  std::int64_t active = 0;
  std::int64_t shares_per_worker = 1;
  const void* context = nullptr;
  void (*invoke)(const void*, std::int64_t, std::int64_t, int) = nullptr;

  // The cut depends on the job alone; `runner` only says who runs the share.
  void run_share(std::int64_t share, int runner) const {
    const std::int64_t shares = active * shares_per_worker;
    const std::int64_t begin = units * share / shares * grain;
    const std::int64_t end = std::min(units * (share + 1) / shares * grain, count);
    invoke(context, begin, end, runner);
  }
};

// What there is to claim of one worker: {ticket of the job, stop, number of shares still open: 4
// bits}. Whoever swaps a word for one with an open share less has claimed a share of the job that
// is running then: that job cannot end before the share is done, so a claim, and nothing else,
// gives the right to read the job. The ticket makes each job's words new, so that a worker that has
// seen its last word used up notices the next.
constexpr std::uint32_t kOpenMask = 15;
constexpr std::uint32_t kStop = kOpenMask + 1;
constexpr std::uint32_t kTicketStep = kStop << 1;
static_assert(kSharesPerWorker <= kOpenMask);

// One per worker, so that a worker left out of a job never looks at that job.
struct alignas(64) Mailbox {
  std::atomic<std::uint32_t> claims{0};

  // How many shares were open before the one that this claimed; 0 when none is open.
  std::uint32_t claim() {
    std::uint32_t word = claims.load(std::memory_order_relaxed);
    while ((word & kOpenMask) != 0) {
      if (claims.compare_exchange_weak(word, word - 1, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
        return word & kOpenMask;
      }
    }
    return 0;
  }

  void post(std::uint32_t word) {
    claims.store(word, std::memory_order_release);
    claims.notify_one();
  }
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
    for (Mailbox& mailbox : mailboxes) mailbox.post(kStop);
    for (std::thread& thread : threads) thread.join();
  }

  void serve(int worker) {
    const std::atomic<std::uint32_t>& claims = mailboxes[static_cast<std::size_t>(worker)].claims;
    const int reach = std::min(kHelpReach + 1, static_cast<int>(mailboxes.size()));
    std::uint32_t seen = 0;
    while (true) {
      seen = await_change(claims, seen, spins);
      if ((seen & kStop) != 0) return;
      run_shares(worker, reach);
      seen &= ~kOpenMask;  // of this ticket nothing is left
    }
  }

  // Claims and runs shares: its own first, then those of the next workers, `reach` in all.
  void run_shares(int runner, int reach) {
    const auto count = static_cast<int>(mailboxes.size());
    for (int step = 0; step < reach; ++step) {
      const int owner = (runner + step) % count;
      Mailbox& mailbox = mailboxes[static_cast<std::size_t>(owner)];
      while (const std::uint32_t open = mailbox.claim()) {
        job.run_share((owner + 1) * job.shares_per_worker - open, runner);
        if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) pending.notify_one();
      }
    }
  }

  void run(const Job& next) {
    job = next;
    const auto shares = static_cast<std::uint32_t>(next.shares_per_worker);
    const auto active = static_cast<std::uint32_t>(next.active);
    pending.store(active * shares, std::memory_order_relaxed);
    ticket += kTicketStep;
    for (std::uint32_t worker = 0; worker < active; ++worker) {
      mailboxes[worker].post(ticket | shares);
    }
    run_shares(0, static_cast<int>(active));
    std::uint32_t left = pending.load(std::memory_order_acquire);
    while (left != 0) left = await_change(pending, left, spins);
  }

  int spins = 0;
  std::uint32_t ticket = 0;  // the caller's
  std::vector<Mailbox> mailboxes;
  std::vector<std::thread> threads;
  Job job;
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
  const std::int64_t active = std::min<std::int64_t>(units, worker_count_);
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
                  .shares_per_worker = std::clamp<std::int64_t>(
                      units / (active * kMinUnitsPerShare), 1, kSharesPerWorker),
                  .context = context,
                  .invoke = invoke});
  state_->busy.store(false, std::memory_order_release);
}

}  // namespace holdfast::device
