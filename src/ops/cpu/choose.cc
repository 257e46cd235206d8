// choose on the CPU, for both sets: the host's arithmetic, rows on all workers.
#include <cstring>

#include "ops/choose_math.h"
#include "ops/cpu/kernel_sets.h"

namespace holdfast::ops::cpu {

void choose(const ChooseKernel& args, device::WorkerPool& workers) {
  const std::int64_t rows = active_row_count(args.active_rows, args.logits.shape[0]);
  const std::int64_t vocab = args.logits.shape[1];
  workers.parallel_for(rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      ChooseRow row{.logits = args.logits.as<const float>() + r * vocab,
                    .vocab = vocab,
                    .temperature = args.temperatures.as<const float>()[r]};
      std::memcpy(&row.draw, args.draws.address + r * 8, sizeof(row.draw));
      const Choice choice = choose_row(row);
      std::memcpy(args.choices.address + r * static_cast<std::int64_t>(sizeof(choice)), &choice,
                  sizeof(choice));
    }
  });
}

}  // namespace holdfast::ops::cpu
