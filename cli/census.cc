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

// A reload with the fault that the flags name, and what became of it in a line.
std::string reload_with_fault(Engine& engine, const CommandLine& flags) {
  const std::string& to = flags.reload.to.empty() ? flags.model.directory : flags.reload.to;
  Status status = engine.begin_reload(to, {.inject = flags.inject});
  std::string outcome;
  if (status.ok()) {
    const Result<ReloadReport> report = engine.finish_reload();
    if (!report.ok()) status = report.error();
    const auto last = engine.last_reload();
    outcome = last ? last->state : "never begun";
  } else {
    outcome = "never begun";
  }
  return fmt::format("reload of {} with {}: {}{}{}", to, flags.inject, outcome,
                     status.ok() ? "" : ": ", status.ok() ? "" : status.error().to_string());
}

// node -> pointer -> slot, and the figures last.
std::string graph_table(const GraphCensusReport& report) {
  std::string out;
  std::string_view graph;
  for (const GraphCensusNode& node : report.nodes) {
    if (node.graph != graph) out += fmt::format("{}{}\n", out.empty() ? "" : "\n", node.graph);
    graph = node.graph;
    out += fmt::format("  {}\n", node.name);
    for (const GraphCensusPointer& pointer : node.pointers) {
      out += fmt::format("    byte {:>4}  {:>#14x}  {:<14} {}\n", pointer.byte, pointer.address,
                         pointer.role.empty() ? "-" : pointer.role,
                         pointer.slot.empty()
                             ? std::string("NO SLOT")
                             : fmt::format("{} + {}", pointer.slot, pointer.slot_offset));
    }
  }
  for (const std::string& node : report.unaudited) out += "unaudited: " + node + "\n";
  return out + fmt::format("\ngraphs {}, nodes {}, words {}, pointers {}, in no slot {}, "
                           "unaudited {}, {:.2f} ms\n",
                           report.graphs, report.nodes.size(), report.words, report.pointers,
                           report.homeless, report.unaudited.size(), report.ms);
}

Result<int> write_graphs(const Engine& engine, const CommandLine& flags,
                         const std::string& outcome) {
  HF_ASSIGN(const GraphCensusReport report, engine.graph_census());
  if (!outcome.empty()) say(outcome);
  HF_TRY(write_file(flags.output, flags.json ? report.json + "\n" : graph_table(report)));
  return report.homeless == 0 && report.unaudited.empty() ? kExitDone : kExitFailed;
}

Result<int> census_of(const CommandLine& flags) {
  const bool injects = !flags.inject.empty();
  HF_ASSIGN(const std::unique_ptr<Engine> engine, open_engine(flags.model, flags.quiet, injects));
  const std::string outcome = injects ? reload_with_fault(*engine, flags) : "";
  const bool refused = injects && engine->epoch() == 1;
  if (flags.graphs) {
    HF_ASSIGN(const int code, write_graphs(*engine, flags, outcome));
    return refused ? kExitFailed : code;
  }
  HF_ASSIGN(const CensusReport census, engine->census());
  std::string text;
  // With --json, stdout is the census's alone.
  if (injects && flags.json) say(outcome);
  if (flags.json) {
    text = census.json;
    if (text.empty() || text.back() != '\n') text += '\n';
  } else {
    if (injects) text = outcome + "\n";
    text += fmt::format("epoch {} on {}, experts {}{}\n\n", census.epoch, engine->device_name(),
                        engine->experts_backend(), engine->poisoned() ? ", POISONED" : "");
    text += class_table(census);
    text += fmt::format("\ncaptured addresses {}, without a home {}, in another slot than at "
                        "capture {}\n", census.captured_addresses, census.homeless.size(),
                        census.rehomed.size());
    for (const std::string& address : census.homeless) text += "  no home: " + address + "\n";
    for (const std::string& address : census.rehomed) text += "  moved home: " + address + "\n";
    if (flags.verbose) text += slot_table(census);
  }
  HF_TRY(write_file(flags.output, text));
  const bool sound = census.homeless.empty() && census.rehomed.empty() && !refused;
  return sound ? kExitDone : kExitFailed;
}

}  // namespace

int run_census(const CommandLine& line) {
  const Result<int> code = census_of(line);
  return code.ok() ? *code : report_failure(code.error());
}

}  // namespace holdfast::cli
