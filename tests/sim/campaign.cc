#include "campaign.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <new>
#include <vector>

#include <fmt/format.h>

#include "base/assert.h"

namespace holdfast::sim {

namespace {

constexpr std::uint64_t kMaxViolations = 100;

// What a child tells while it runs; in memory that it shares with its parent.
struct Progress {
  std::atomic<std::uint64_t> next_index{0};  // of the seed that runs now
  std::uint64_t violations = 0;
  FaultTable table;
};

struct Worker {
  pid_t pid = -1;
  Progress* progress = nullptr;
};

// Seeds first + job, first + job + jobs, ...
void run_seeds(const CampaignOptions& options, Progress& progress) {
  for (;;) {
    const std::uint64_t index = progress.next_index.load();
    if (index >= options.seeds || progress.violations >= kMaxViolations) return;
    SimulationOptions simulation = options.simulation;
    simulation.seed = options.first_seed + index;
    const Status status = simulate(simulation, progress.table);
    if (!status.ok()) {
      ++progress.violations;
      std::printf("%s\n", describe_violation(simulation, status.error()).c_str());
      std::fflush(stdout);
    }
    progress.next_index.store(index + static_cast<std::uint64_t>(options.jobs));
  }
}

void start(const CampaignOptions& options, Worker& worker) {
  std::fflush(stdout);
  worker.pid = ::fork();
  HF_ASSERT(worker.pid >= 0, "fork failed");
  if (worker.pid > 0) return;
  run_seeds(options, *worker.progress);
  std::fflush(stdout);
  // Not exit: the parent's buffers and handlers are not this process's to run.
  ::_exit(0);
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return fmt::format("killed by signal {}", WTERMSIG(status));
  return fmt::format("exited with {}", WEXITSTATUS(status));
}

}  // namespace

Status simulate(const SimulationOptions& options, FaultTable& table) {
  return Simulation(options, table).run();
}

std::string describe_violation(const SimulationOptions& options, const Error& error) {
  std::string replay = fmt::format("./dev sim {}", options.seed);
  if (options.events != SimulationOptions().events) {
    replay += fmt::format(" --events {}", options.events);
  }
  if (options.background) replay += " --background";
  return fmt::format("VIOLATION seed {}: {}\n  replay: {}", options.seed, error.message(), replay);
}

CampaignResult run_campaign(const CampaignOptions& options) {
  CampaignResult result;
  std::vector<Worker> workers(static_cast<std::size_t>(options.jobs));
  for (std::size_t job = 0; job < workers.size(); ++job) {
    void* const shared = ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    HF_ASSERT(shared != MAP_FAILED, "mmap failed");
    workers[job].progress = new (shared) Progress();
    workers[job].progress->next_index.store(job);
    start(options, workers[job]);
  }
  for (Worker& worker : workers) {
    for (;;) {
      int status = 0;
      HF_ASSERT(::waitpid(worker.pid, &status, 0) == worker.pid, "waitpid failed");
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
      Progress& progress = *worker.progress;
      const std::uint64_t index = progress.next_index.load();
      SimulationOptions crashed = options.simulation;
      crashed.seed = options.first_seed + index;
      std::printf("%s\n", describe_violation(crashed, Error(ErrorCode::kDevice,
                                                            "the process was " +
                                                                how_it_ended(status)))
                              .c_str());
      if (++progress.violations >= kMaxViolations) break;
      progress.next_index.store(index + static_cast<std::uint64_t>(options.jobs));
      start(options, worker);
    }
    result.table.add(worker.progress->table);
    result.violations += worker.progress->violations;
    ::munmap(worker.progress, sizeof(Progress));
  }
  return result;
}

}  // namespace holdfast::sim
