#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/jsonl.h"
#include "cli/output.h"
#include "cli/session.h"
#include "holdfast/engine.h"
#include "holdfast/inspect.h"

namespace holdfast::cli {
namespace {

constexpr std::size_t kMaxDigestsBytes = std::size_t{64} << 20;
constexpr std::size_t kDigestDigits = 32;
constexpr std::size_t kShownDefects = 20;

using Digests = std::map<std::string, std::string>;

Result<std::string> read_digests_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return format_error(ErrorCode::kIo, "{}: cannot be opened", path);
  std::string text(kMaxDigestsBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return format_error(ErrorCode::kIo, "{}: cannot be read", path);
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() <= kMaxDigestsBytes) return text;
  return format_error(ErrorCode::kResourceExhausted, "{}: longer than {} bytes", path,
                      kMaxDigestsBytes);
}

// Lower-case hex; empty when `text` is no digest.
std::string normal_digest(std::string text) {
  if (text.size() != kDigestDigits) return {};
  for (char& c : text) {
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return {};
  }
  return text;
}

Result<Digests> read_digests(const std::string& path) {
  HF_ASSIGN(const std::string text, read_digests_text(path));
  // Deeper than an object of texts it is not read, whatever it holds.
  const auto shallow = [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    return depth <= 1;
  };
  const auto json = nlohmann::json::parse(text, shallow, false);
  if (!json.is_object()) {
    return format_error(ErrorCode::kCorrupt,
                        "{}: not a JSON object from tensor names to digests", path);
  }
  Digests digests;
  for (const auto& [name, value] : json.items()) {
    const std::string digest = value.is_string() ? normal_digest(value.get<std::string>()) : "";
    if (digest.empty()) {
      return format_error(ErrorCode::kCorrupt, "{}: the digest of {} is no 32 hex digits", path,
                          name);
    }
    digests.emplace(name, digest);
  }
  if (digests.empty()) {
    return format_error(ErrorCode::kCorrupt, "{}: no digest in it, so nothing would be checked",
                        path);
  }
  return digests;
}

struct SourceReport {
  std::uint64_t checked = 0, unlisted = 0;
  std::vector<std::string> defects;
};

SourceReport compare(const Digests& expected, const Digests& found) {
  SourceReport report;
  for (const auto& [name, digest] : expected) {
    const auto at = found.find(name);
    ++report.checked;
    if (at == found.end()) {
      report.defects.push_back(fmt::format("tensor {} is expected and not there", name));
    } else if (at->second != digest) {
      report.defects.push_back(
          fmt::format("tensor {} has digest {}, expected {}", name, at->second, digest));
    }
  }
  for (const auto& [name, digest] : found) report.unlisted += expected.contains(name) ? 0 : 1;
  return report;
}

// One tensor a line, so that two such files can be compared line by line.
std::string digests_json(const Digests& digests) {
  std::string out = "{";
  for (const auto& [name, digest] : digests) {
    out += fmt::format("{}\n  {}: \"{}\"", out.size() == 1 ? "" : ",", json_quote(name), digest);
  }
  return out + "\n}\n";
}

std::string report_json(const VerifyReport& report, const std::optional<SourceReport>& source) {
  JsonObject object;
  object.add("verified", report.defects.empty() && (!source || source->defects.empty()));
  object.add("slots", report.slots).add("bytes", report.bytes);
  object.add("defects", std::span<const std::string>(report.defects));
  if (source) {
    JsonObject inner;
    inner.add("tensors", source->checked).add("unlisted", source->unlisted);
    inner.add("defects", std::span<const std::string>(source->defects));
    object.add_raw("source", inner.take());
  }
  return object.take() + "\n";
}

void append_defects(std::string& out, const std::vector<std::string>& defects) {
  const std::size_t shown = std::min(defects.size(), kShownDefects);
  for (std::size_t i = 0; i < shown; ++i) out += fmt::format("  {}\n", defects[i]);
  if (shown < defects.size()) {
    out += fmt::format("  ... and {} more (--json lists all)\n", defects.size() - shown);
  }
}

std::string report_text(const VerifyReport& report, const std::optional<SourceReport>& source) {
  std::string out = fmt::format("live weights: {} slots, {}, {} not as committed\n", report.slots,
                                readable_bytes(report.bytes), report.defects.size());
  append_defects(out, report.defects);
  if (!source) return out;
  out += fmt::format("source tensors: {} expected, {} not as expected, {} not listed\n",
                     source->checked, source->defects.size(), source->unlisted);
  append_defects(out, source->defects);
  return out;
}

Result<int> verify(const CommandLine& flags) {
  Digests expected, found;
  if (!flags.digests.empty()) {
    HF_ASSIGN(expected, read_digests(flags.digests));
  }
  HF_ASSIGN(const std::unique_ptr<Engine> engine, open_engine(flags.model, flags.quiet));
  HF_ASSIGN(const VerifyReport report, engine->verify());
  std::optional<SourceReport> source;
  if (!flags.digests.empty() || !flags.write_digests.empty()) {
    HF_ASSIGN(found, checkpoint_digests(flags.model.directory));
  }
  if (!flags.digests.empty()) source = compare(expected, found);
  if (!flags.write_digests.empty()) {
    HF_TRY(write_file(flags.write_digests, digests_json(found)));
  }
  HF_TRY(write_file(flags.output,
                    flags.json ? report_json(report, source) : report_text(report, source)));
  const bool good = report.defects.empty() && (!source || source->defects.empty());
  return good ? kExitDone : kExitFailed;
}

}  // namespace

int run_verify(const CommandLine& line) {
  const Result<int> code = verify(line);
  return code.ok() ? *code : report_failure(code.error());
}

}  // namespace holdfast::cli
