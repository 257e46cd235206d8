#include <span>

#include "cli/command_line.h"
#include "cli/jsonl.h"
#include "cli/output.h"
#include "holdfast/tokenizer.h"

namespace holdfast::cli {
namespace {

constexpr std::string_view kEncodeFields[] = {"text", "id"};
constexpr std::string_view kDecodeFields[] = {"ids", "id"};

Result<std::string> encode_line(const LineObject& object, const Tokenizer& tokenizer,
                                const RequestFlags& flags) {
  HF_TRY(object.allow_only(kEncodeFields));
  HF_ASSIGN(const std::optional<std::string> id, object.label("id"));
  HF_ASSIGN(const std::optional<std::string> text, object.text("text"));
  if (!text) return object.wrong("text", "a string");
  Result<std::vector<std::int32_t>> ids = tokenizer.encode(*text, !flags.plain_text);
  if (!ids.ok()) return ids.error().with_context(object.place());
  JsonObject result;
  if (id) result.add_raw("id", *id);
  return result.add("ids", std::span<const std::int32_t>(*ids)).take() + "\n";
}

Result<std::string> decode_line(const LineObject& object, const Tokenizer& tokenizer,
                                const RequestFlags& flags) {
  HF_TRY(object.allow_only(kDecodeFields));
  HF_ASSIGN(const std::optional<std::string> id, object.label("id"));
  HF_ASSIGN(const std::optional<std::vector<std::int32_t>> ids, object.token_ids("ids"));
  if (!ids) return object.wrong("ids", "an array of token ids");
  Result<std::string> text = tokenizer.decode(*ids, flags.skip_special);
  if (!text.ok()) return text.error().with_context(object.place());
  JsonObject result;
  if (id) result.add_raw("id", *id);
  return result.add("text", *text).take() + "\n";
}

Status tokenize(const CommandLine& flags) {
  std::vector<LineObject> lines;
  if (flags.prompt) {
    lines.emplace_back("--text", std::vector<std::pair<std::string, FieldValue>>{
                                     {"text", FieldValue(*flags.prompt)}});
  } else {
    HF_ASSIGN(lines, read_json_lines(flags.input));
  }
  HF_ASSIGN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::open(flags.model.directory));
  // The whole input is good or nothing is written.
  std::string all;
  for (const LineObject& line : lines) {
    HF_ASSIGN(const std::string result, flags.decode
                                            ? decode_line(line, *tokenizer, flags.request)
                                            : encode_line(line, *tokenizer, flags.request));
    all += result;
  }
  return write_file(flags.output, all);
}

}  // namespace

int run_tokenize(const CommandLine& line) {
  const Status status = tokenize(line);
  return status.ok() ? kExitDone : report_failure(status.error());
}

}  // namespace holdfast::cli
