#include <map>
#include <string>

#include "cli/command_line.h"
#include "cli/output.h"
#include "cli/session.h"
#include "holdfast/engine.h"

namespace holdfast::cli {
namespace {

std::string class_table(const CensusReport& census) {
  struct Count {
    std::uint64_t slots = 0, bytes = 0, digests = 0;
  };
  std::map<std::string, Count> by_class;
  Count all;
  for (const CensusEntry& slot : census.slots) {
    for (Count* count : {&by_class[slot.slot_class], &all}) {
      ++count->slots;
      count->bytes += slot.bytes;
      count->digests += slot.digest.empty() ? 0 : 1;
    }
  }
  std::string out = fmt::format("{:<10} {:>8} {:>14} {:>10}\n", "class", "slots", "bytes",
                                "digests");
  for (const auto& [name, count] : by_class) {
    out += fmt::format("{:<10} {:>8} {:>14} {:>10}\n", name, count.slots, count.bytes,
                       count.digests);
  }
  out += fmt::format("{:<10} {:>8} {:>14} {:>10}\n", "all", all.slots, all.bytes, all.digests);
  return out;
}

std::string slot_table(const CensusReport& census) {
  std::size_t width = 4;
  for (const CensusEntry& slot : census.slots) width = std::max(width, slot.name.size());
  std::string out = fmt::format("\n{:<{}} {:<9} {:>18} {:>12} {:>6}  {}\n", "slot", width, "class",
                                "address", "bytes", "epoch", "digest");
  for (const CensusEntry& slot : census.slots) {
    out += fmt::format("{:<{}} {:<9} {:>#18x} {:>12} {:>6}  {}\n", slot.name, width,
                       slot.slot_class, slot.address, slot.bytes, slot.epoch,
                       slot.digest.empty() ? "-" : slot.digest);
  }
  return out;
}

Result<int> census_of(const CommandLine& flags) {
  HF_ASSIGN(const std::unique_ptr<Engine> engine, open_engine(flags.model, flags.quiet));
  HF_ASSIGN(const CensusReport census, engine->census());
  std::string text;
  if (flags.json) {
    text = census.json;
    if (text.empty() || text.back() != '\n') text += '\n';
  } else {
    text = fmt::format("epoch {} on {}, experts {}\n\n", census.epoch, engine->device_name(),
                       engine->experts_backend());
    text += class_table(census);
    text += fmt::format("\ncaptured addresses {}, without a home {}, in another slot than at "
                        "capture {}\n", census.captured_addresses, census.homeless.size(),
                        census.rehomed.size());
    for (const std::string& address : census.homeless) text += "  no home: " + address + "\n";
    for (const std::string& address : census.rehomed) text += "  moved home: " + address + "\n";
    if (flags.verbose) text += slot_table(census);
  }
  HF_TRY(write_file(flags.output, text));
  return census.homeless.empty() && census.rehomed.empty() ? kExitDone : kExitFailed;
}

}  // namespace

int run_census(const CommandLine& line) {
  const Result<int> code = census_of(line);
  return code.ok() ? *code : report_failure(code.error());
}

}  // namespace holdfast::cli
