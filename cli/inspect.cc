#include "holdfast/inspect.h"

#include <algorithm>

#include "cli/command_line.h"
#include "cli/jsonl.h"
#include "cli/output.h"

namespace holdfast::cli {
namespace {

constexpr std::size_t kShownDefects = 20;

std::string tensor_json(const InspectTensor& tensor) {
  JsonObject object;
  object.add("name", tensor.name).add("dtype", tensor.dtype);
  object.add_raw("shape", tensor.shape);  // "[32, 5760]" is JSON as it stands
  return object.add("bytes", tensor.bytes).add("file", tensor.file).take();
}

std::string report_json(const InspectReport& report, bool with_tensors) {
  JsonObject object;
  object.add("directory", report.directory).add("complete", report.complete);
  object.add("model_type", report.model_type).add("dialect", report.dialect);
  object.add("scheme", report.scheme).add("experts_backend", report.experts_backend);
  JsonObject config;
  for (const auto& [name, value] : report.config) config.add(name, value);
  object.add_raw("config", config.take());
  object.add("tensor_count", std::uint64_t{report.tensors.size()});
  object.add("total_bytes", report.total_bytes);
  JsonObject bytes;
  for (const auto& [dtype, count] : report.bytes_by_dtype) bytes.add(dtype, count);
  object.add_raw("bytes_by_dtype", bytes.take());
  object.add("missing", std::span<const std::string>(report.missing));
  object.add("unknown", std::span<const std::string>(report.unknown));
  object.add("mismatched", std::span<const std::string>(report.mismatched));
  object.add("tokenizer", report.tokenizer);
  if (with_tensors) {
    std::string list;
    for (const InspectTensor& tensor : report.tensors) {
      list += (list.empty() ? "" : ",") + tensor_json(tensor);
    }
    object.add_raw("tensors", "[" + list + "]");
  }
  return object.take() + "\n";
}

void append_row(std::string& out, std::string_view name, std::string_view value) {
  out += fmt::format("{:<18} {}\n", name, value);
}

void append_defects(std::string& out, std::string_view kind,
                    const std::vector<std::string>& defects) {
  if (defects.empty()) return;
  out += fmt::format("\n{} ({})\n", kind, defects.size());
  const std::size_t shown = std::min(defects.size(), kShownDefects);
  for (std::size_t i = 0; i < shown; ++i) out += fmt::format("  {}\n", defects[i]);
  if (shown < defects.size()) {
    out += fmt::format("  ... and {} more (--json lists all)\n", defects.size() - shown);
  }
}

void append_tensors(std::string& out, const std::vector<InspectTensor>& tensors) {
  std::size_t name_width = 4, shape_width = 5;
  for (const InspectTensor& tensor : tensors) {
    name_width = std::max(name_width, tensor.name.size());
    shape_width = std::max(shape_width, tensor.shape.size());
  }
  out += fmt::format("\n{:<{}} {:>8} {:<{}} {:>12}  file\n", "name", name_width, "dtype", "shape",
                     shape_width, "bytes");
  for (const InspectTensor& tensor : tensors) {
    out += fmt::format("{:<{}} {:>8} {:<{}} {:>12}  {}\n", tensor.name, name_width, tensor.dtype,
                       tensor.shape, shape_width, tensor.bytes, tensor.file);
  }
}

std::string report_table(const InspectReport& report, bool with_tensors) {
  std::string out;
  append_row(out, "directory", report.directory);
  append_row(out, "model type", report.model_type);
  append_row(out, "dialect", report.dialect);
  append_row(out, "expert weights", report.scheme);
  append_row(out, "experts backend", report.experts_backend);
  for (const auto& [name, value] : report.config) append_row(out, name, value);
  append_row(out, "tokenizer", report.tokenizer);
  append_row(out, "tensors", fmt::format("{}, {}", report.tensors.size(),
                                         readable_bytes(report.total_bytes)));
  for (const auto& [dtype, bytes] : report.bytes_by_dtype) {
    append_row(out, "  " + dtype, readable_bytes(bytes));
  }
  append_defects(out, "missing", report.missing);
  append_defects(out, "unknown", report.unknown);
  append_defects(out, "mismatched", report.mismatched);
  if (with_tensors) append_tensors(out, report.tensors);
  out += report.complete ? "\ncomplete: this model can be loaded\n"
                         : "\nNOT complete: this model cannot be loaded\n";
  return out;
}

}  // namespace

int run_inspect(const CommandLine& line) {
  if (line.matrix) {
    const Status written = write_file(line.output, experts_matrix());
    return written.ok() ? kExitDone : report_failure(written.error());
  }
  const Result<InspectReport> report = inspect(line.model.directory);
  if (!report.ok()) return report_failure(report.error());
  const std::string text = line.json ? report_json(*report, line.tensors)
                                     : report_table(*report, line.tensors);
  const Status status = write_file(line.output, text);
  if (!status.ok()) return report_failure(status.error());
  return report->complete ? kExitDone : kExitFailed;
}

}  // namespace holdfast::cli
