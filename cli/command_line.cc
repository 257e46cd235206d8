#include "cli/command_line.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "cli/output.h"
#include "cli/request_line.h"
#include "holdfast/drill.h"
#include "holdfast/inspect.h"
#include "holdfast/version.h"

namespace holdfast::cli {
namespace {

constexpr int kMaxThreads = 1024;
constexpr std::int64_t kMaxContextFlag = 1 << 24;
constexpr std::int64_t kMaxSequencesFlag = 1024;

// An integer from `least` to `most`, with a message that says so.
CLI::Validator integer(std::int64_t least, std::int64_t most) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        std::int64_t value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most) return {};
        return fmt::format("{} is not an integer from {} to {}", text, least, most);
      },
      "");
}

CLI::Validator unsigned_integer() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        std::uint64_t value = 0;
        const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
        if (digits && CLI::detail::lexical_cast(text, value)) return {};
        return fmt::format("{} is not an integer from 0 to {}", text,
                           std::numeric_limits<std::uint64_t>::max());
      },
      "");
}

CLI::Validator one_of(std::vector<std::string> names) {
  return CLI::Validator(
      [names = std::move(names)](std::string& text) -> std::string {
        if (std::find(names.begin(), names.end(), text) != names.end()) return {};
        return fmt::format("{} is none of {}", text, fmt::join(names, ", "));
      },
      "");
}

// "1/7": layer 1, expert 7.
std::pair<std::int64_t, std::int64_t> parse_expert(const std::string& text) {
  const std::size_t slash = text.find('/');
  std::int64_t layer = -1, expert = -1;
  const auto read = [](std::string_view digits, std::int64_t& to) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), to);
    return error == std::errc() && end == digits.data() + digits.size();
  };
  const std::string_view all = text;
  const bool parsed = slash != std::string::npos && read(all.substr(0, slash), layer) &&
                      read(all.substr(slash + 1), expert);
  if (parsed && layer >= 0 && expert >= 0) return {layer, expert};
  throw CLI::ValidationError("--experts", text + " is not LAYER/EXPERT, as 1/7");
}

// "NAME:f32:bf16"; a name may hold colons.
ReloadCast parse_cast(const std::string& text) {
  const std::size_t to = text.rfind(':');
  const std::size_t from = to == std::string::npos || to == 0 ? to : text.rfind(':', to - 1);
  if (to == std::string::npos || from == std::string::npos || from == 0 || from == to) {
    throw CLI::ValidationError("--cast", text + " is not NAME:FROM:TO, as lm_head.weight:f32:bf16");
  }
  return {.parameter = text.substr(0, from),
          .from = text.substr(from + 1, to - from - 1),
          .to = text.substr(to + 1)};
}

void add_quiet(CLI::App& app, CommandLine& line) {
  app.add_flag("-q,--quiet", line.quiet, "no progress and no summary on stderr");
}

void add_model(CLI::App& app, CommandLine& line) {
  app.add_option("--model", line.model.directory, "the model's directory")
      ->required()->type_name("DIR");
}

void add_commit(CLI::App& app, std::string& commit, bool may_choose) {
  std::vector<std::string> names = {"remap", "copy", "stream"};
  std::string help =
      "how weights are committed: remap (swap pages), copy (copy bytes), stream (read into place)";
  if (may_choose) {
    names.insert(names.begin(), "auto");
    help += ", or auto: the shortest pause that the limits allow";
  }
  app.add_option("--commit", commit, help)->check(one_of(std::move(names)))->type_name("NAME");
}

// `experts_flag`: plan's --experts says which experts.
void add_backend(CLI::App& app, CommandLine& line, const char* experts_flag = "--experts") {
  ModelFlags& model = line.model;
  app.add_option("--device", model.device, "cpu, or a GPU of a build with CUDA: cuda, cuda:1, ...")
      ->type_name("NAME");
  app.add_option("--threads", model.threads, "CPU threads; 0 is all cores")
      ->check(integer(0, kMaxThreads))->type_name("INT");
  app.add_option("--kernels", model.kernels, "fast, or reference: plain scalar loops")
      ->check(one_of({"fast", "reference"}))->type_name("NAME");
  app.add_option(experts_flag, model.experts,
                 "the experts backend: auto, or one that `inspect --matrix` lists")
      ->check(one_of(experts_backends()))->type_name("NAME");
  app.add_option("--expert-activations", model.expert_activations,
                 "what the experts do to their inputs: published, none, or mxfp8, fp8-token, "
                 "fp8-token-group")
      ->check(one_of({"published", "none", "mxfp8", "fp8-token", "fp8-token-group"}))
      ->type_name("NAME");
  app.add_option("--quantize-experts", model.quantize_experts,
                 "quantise bf16 experts as they arrive, as `holdfast quantize --to SCHEME` would")
      ->check(CLI::IsMember(quantize_schemes()))->type_name("SCHEME");
  app.add_option("--quantize-group", model.quantize_group,
                 "with --quantize-experts int4: inputs that share a scale")
      ->check(CLI::Range(1, 1 << 20))->type_name("INT");
  add_quiet(app, line);
}

void add_engine(CLI::App& app, CommandLine& line, const char* experts_flag = "--experts") {
  add_model(app, line);
  app.add_option("--max-context", line.model.max_context,
                 "positions a sequence may have; 0 is the model's, at most 4096")
      ->check(integer(0, kMaxContextFlag))->type_name("INT");
  app.add_option("--max-sequences", line.model.max_sequences,
                 "requests that decode together, 1 to 1024")
      ->check(integer(1, kMaxSequencesFlag))->type_name("INT");
  add_backend(app, line, experts_flag);
}

void add_serving(CLI::App& app, CommandLine& line) {
  add_engine(app, line);
  add_commit(app, line.model.commit, false);
}

void add_output(CLI::App& app, CommandLine& line) {
  app.add_option("-o,--output", line.output,
                 "write the results here, whole or not at all, instead of to stdout")
      ->type_name("FILE");
}

void add_input(CLI::App& app, CommandLine& line) {
  app.add_option("--input", line.input, "JSON Lines; - is stdin")->type_name("FILE");
}

void add_sampling(CLI::App& app, RequestFlags& request) {
  Sampling& sampling = request.sampling;
  app.add_option("--temperature", sampling.temperature, "0 (default) is greedy; at most 100")
      ->type_name("FLOAT");
  app.add_option("--top-p", sampling.top_p, "keep the likeliest tokens up to this mass, (0, 1]")
      ->type_name("FLOAT");
  app.add_option("--top-k", sampling.top_k, "keep this many tokens; 0 is all")->type_name("INT");
  app.add_option("--min-p", sampling.min_p, "keep tokens of this share of the likeliest, [0, 1]")
      ->type_name("FLOAT");
  app.add_option("--seed", sampling.seed, "the draws depend on it and on nothing else")
      ->check(unsigned_integer())->type_name("UINT");
  app.add_option("--max-tokens", request.max_tokens, "tokens to generate at most")
      ->check(integer(0, kMaxRequestTokens))->type_name("INT");
}

void add_text_rules(CLI::App& app, RequestFlags& request, bool decodes) {
  app.add_flag("--plain-text", request.plain_text,
               "special tokens written in a text (<|start|>) are text, not tokens");
  if (!decodes) return;
  app.add_flag("--skip-special", request.skip_special,
               "leave special tokens out of the text that comes back");
}

void add_generate(CLI::App& root, CommandLine& line) {
  CLI::App& app = *root.add_subcommand("generate", "continue prompts");
  add_serving(app, line);
  app.add_option("--prompt", line.prompt, "the text to continue")->type_name("TEXT");
  add_input(app, line);
  add_output(app, line);
  app.add_flag("--json", line.json, "the result of --prompt as a line of JSON");
  add_sampling(app, line.request);
  app.add_flag("--ignore-eos", line.request.ignore_eos, "do not stop at the model's end tokens");
  app.add_option("--stop-token", line.request.stop_token_ids,
                 "one more token id to stop at (repeatable)")
      ->check(integer(0, std::numeric_limits<std::int32_t>::max()))->type_name("ID")
      ->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->default_str("");
  app.add_option("--stop", line.request.stop,
                 "end where the text holds this, wherever tokens end; it is not shown (repeatable)")
      ->type_name("STRING")->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->default_str("");
  app.add_flag("--prompt-logprobs", line.request.prompt_logprobs,
               "also the log probabilities of the prompt's tokens");
  add_text_rules(app, line.request, true);
}

void add_score(CLI::App& root, CommandLine& line) {
  CLI::App& app = *root.add_subcommand("score", "log probabilities of given tokens");
  add_serving(app, line);
  add_input(app, line);
  add_output(app, line);
  app.add_option("--logits", line.logits, "write float32 logits to this safetensors file")
      ->type_name("FILE");
  add_text_rules(app, line.request, false);
}

void add_tokenize(CLI::App& root, CommandLine& line) {
  CLI::App& app = *root.add_subcommand("tokenize", "text to token ids, or back");
  add_model(app, line);
  app.add_option("--text", line.prompt, "one text instead of --input")->type_name("TEXT");
  add_input(app, line);
  add_output(app, line);
  app.add_flag("--decode", line.decode, "ids to text");
  add_text_rules(app, line.request, true);
}

void add_chat(CLI::App& root, CommandLine& line) {
  CLI::App& app = *root.add_subcommand("chat", "talk with a model, in harmony's format");
  add_serving(app, line);
  add_sampling(app, line.request);
  CommandLine::Chat& chat = line.chat;
  app.add_option("--instructions", chat.instructions, "the developer message")->type_name("TEXT");
  app.add_option("--effort", chat.effort, "the reasoning effort: low, medium or high")
      ->check(one_of({"low", "medium", "high"}))->type_name("NAME");
  app.add_option("--date", chat.date, "the date that the model is told; today (UTC) by default")
      ->type_name("YYYY-MM-DD");
  app.add_flag("--hide-analysis", chat.hide_analysis, "do not show the analysis channel");
  app.add_flag("--json", line.json, "each reply as a line of JSON");
}

void add_inspect(CLI::App& root, CommandLine& line) {
  CLI::App& app = *root.add_subcommand("inspect", "what a model directory holds and lacks");
  app.add_option("directory", line.model.directory, "the model's directory")->type_name("DIR");
  app.add_flag("--json", line.json, "the report as one line of JSON");
  app.add_flag("--tensors", line.tensors, "list every tensor");
  app.add_flag("--matrix", line.matrix,
               "instead: which experts backend runs which formats on which device");
  add_output(app, line);
  app.callback([&line] {
    if (!line.matrix && line.model.directory.empty()) throw CLI::RequiredError("directory");
  });
}

void add_inject(CLI::App& app, CommandLine& line, const std::string& help) {
  app.add_option("--inject", line.inject, help)->check(one_of(drill_faults()))->type_name("FAULT");
}

void add_drill(CLI::App& root, CommandLine& line) {
  CLI::App& app = *root.add_subcommand(
      "drill", "swap weights under captured graphs, and prove that nothing moved");
  CommandLine::Drill& drill = line.drill;
  app.add_option("--from", drill.from, "the model that is loaded")->required()->type_name("DIR");
  app.add_option("--to", drill.to, "the model that replaces it")->required()->type_name("DIR");
  app.add_option("--json", drill.json_file, "also write the report as JSON; - is stdout")
      ->type_name("FILE");
  add_inject(app, line, "a defect that the drill must find, or a fault, see below");
  app.add_option("--prompt", drill.prompts, "a prompt of its own (repeatable)")
      ->type_name("TEXT")->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->default_str("");
  app.add_option("--max-tokens", drill.max_tokens, "tokens of each greedy run")
      ->check(integer(1, kMaxRequestTokens))->type_name("INT");
  app.add_option("--label", drill.label, "free text for the report")->type_name("TEXT");
  add_backend(app, line);
  add_commit(app, line.model.commit, true);
}

void add_census(CLI::App& root, CommandLine& line) {
  CLI::App& app = *root.add_subcommand("census", "count every slot and every captured address");
  add_serving(app, line);
  add_inject(app, line, "count after a reload with this defect or fault, see below");
  app.add_option("--to", line.reload.to, "with --inject: what the reload reads; the model itself "
                                         "by default")
      ->type_name("DIR");
  app.add_flag("--json", line.json, "the whole census as JSON");
  app.add_flag("-v,--verbose", line.verbose, "list every slot");
  app.add_flag("--graphs", line.graphs,
               "instead: every node of the captured graphs, its pointers, and their slots");
  add_output(app, line);
}

void add_scope(CLI::App& app, ReloadOptions& options) {
  ReloadScope& scope = options.scope;
  app.add_option("--layers", scope.layers, "only these layers: 0,2")
      ->check(integer(0, std::numeric_limits<std::int32_t>::max()))->delimiter(',')
      ->type_name("INT,...")->default_str("");
  app.add_option_function<std::vector<std::string>>(
         "--experts",
         [&scope](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) scope.experts.push_back(parse_expert(text));
         },
         "only these experts of a layer: 1/7,2/0 (layer/expert)")
      ->delimiter(',')->type_name("LAYER/EXPERT,...");
  app.add_option("--parameters", scope.parameters, "only these parameters, by name")
      ->type_name("NAME")->default_str("");
  app.add_option_function<std::vector<std::string>>(
         "--cast",
         [&options](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) options.casts.push_back(parse_cast(text));
         },
         "a change of dtype that is meant (repeatable); the name, or its end")
      ->type_name("NAME:FROM:TO");
}

void add_plan(CLI::App& root, CommandLine& line) {
  CLI::App& app = *root.add_subcommand("plan", "what a reload would do and cost, before any byte "
                                               "moves");
  add_engine(app, line, "--experts-backend");
  ReloadOptions& options = line.reload.options;
  options.commit = "auto";
  app.add_option("--to", line.reload.to, "the model that would replace it")
      ->required()->type_name("DIR");
  add_commit(app, options.commit, true);
  app.add_option("--max-extra-bytes", options.max_extra_bytes,
                 "with --commit auto: bytes beyond what is live, on the device and on the host; 0 "
                 "is no limit")
      ->check(unsigned_integer())->type_name("UINT");
  app.add_option("--max-pause-us", options.max_pause_us,
                 "with --commit auto: microseconds without a step; 0 is no limit")
      ->type_name("FLOAT");
  add_scope(app, options);
  app.add_flag("--apply-constants", options.apply_constants,
               "a config that changes constants is applied instead of refused");
  app.add_flag("--undo-image", options.undo_image,
               "with a streamed commit: keep what is needed to roll back");
  app.add_flag("--json", line.json, "the plan as JSON");
  add_output(app, line);
}

void add_verify(CLI::App& root, CommandLine& line) {
  CLI::App& app = *root.add_subcommand("verify", "whether weights are what was committed, and what "
                                                 "a trainer vouches for");
  add_serving(app, line);
  app.add_option("--digests", line.digests,
                 "hold the checkpoint against this file of expected digests")->type_name("FILE");
  app.add_option("--write-digests", line.write_digests, "write such a file")->type_name("FILE");
  app.add_flag("--json", line.json, "the report as one line of JSON");
  add_output(app, line);
}

// What CLI11 cannot say: which flags exclude or need each other, and the ranges of floats.
Status check(const CommandLine& line) {
  const auto usage = [](std::string_view message) {
    return Error(ErrorCode::kInvalidArgument, std::string(message));
  };
  const bool takes_prompt = line.command == "generate" || line.command == "tokenize";
  if (takes_prompt && line.prompt.has_value() == !line.input.empty()) {
    return usage(fmt::format("{}: give exactly one of {} and --input", line.command,
                             line.command == "generate" ? "--prompt" : "--text"));
  }
  if (line.command == "score" && line.input.empty()) return usage("score: --input is required");
  if (line.command == "tokenize" && line.decode && line.prompt) {
    return usage("tokenize: --decode reads --input, not --text");
  }
  if (line.request.stop_token_ids.size() > kMaxStopTokenIds) {
    return usage(fmt::format("--stop-token stands {} times, at most {}",
                             line.request.stop_token_ids.size(), kMaxStopTokenIds));
  }
  if (line.request.stop.size() > kMaxStopStrings) {
    return usage(fmt::format("--stop stands {} times, at most {}", line.request.stop.size(),
                             kMaxStopStrings));
  }
  for (const std::string& stop : line.request.stop) {
    if (!stop.empty() && stop.size() <= kMaxStopBytes) continue;
    return usage(fmt::format("a --stop string of {} bytes, expected 1 to {}", stop.size(),
                             kMaxStopBytes));
  }
  if (line.command == "census" && !line.reload.to.empty() && line.inject.empty()) {
    return usage("census: --to is for --inject");
  }
  HF_TRY(check_sampling(line.request.sampling));
  return {};
}

bool given(const CLI::App& command, const char* flag) {
  const CLI::Option* const option = command.get_option_no_throw(flag);
  return option != nullptr && option->count() > 0;
}

// A flag that would say nothing beside the others is an error, not ignored.
Status check_company(const CLI::App& command, const CommandLine& line) {
  const bool tokenizes = line.command == "tokenize";
  const struct {
    const char* flag;
    bool ignored;
    const char* reason;
  } rules[] = {
      // Of `serve` its own options decide, which come from a file, too.
      {"--quantize-group", line.command != "serve" && line.model.quantize_experts != "int4",
       "is for --quantize-experts int4"},
      {"--skip-special", tokenizes && !line.decode, "is for --decode"},
      {"--plain-text", tokenizes && line.decode, "is for texts, and --decode reads ids"},
      {"--verbose", line.graphs, "lists slots, and --graphs prints nodes"},
      {"--json", line.matrix, "is for a model's report, --matrix prints a table"},
      {"--tensors", line.matrix, "is for a model's report, --matrix prints a table"},
      {"directory", line.matrix, "is for a model's report, --matrix reads no model"},
  };
  for (const auto& [flag, ignored, reason] : rules) {
    if (!ignored || !given(command, flag)) continue;
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}: {} {}", line.command, flag, reason));
  }
  const auto parts = command.get_subcommands();  // those that were given: of `bench serve`
  if (!parts.empty()) return check_company(*parts.front(), line);
  for (const CLI::Option* option : command.get_options()) {
    const std::string& type = option->get_type_name();
    if (option->count() == 0 || (type != "FILE" && type != "DIR" && type != "OUT")) continue;
    for (const std::string& name : option->results()) {
      if (!name.empty()) continue;
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("{}: an empty name", option->get_name()));
    }
  }
  return {};
}

}  // namespace

std::optional<int> parse_command_line(int argc, char** argv, CommandLine& line) {
  CLI::App app("Generates from mixture-of-experts models while their weights are replaced.",
               "holdfast");
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", fmt::format("holdfast {}", version()));
  app.option_defaults()->always_capture_default();
  add_generate(app, line);
  add_score(app, line);
  add_tokenize(app, line);
  add_chat(app, line);
  add_inspect(app, line);
  add_drill(app, line);
  add_census(app, line);
  add_plan(app, line);
  add_verify(app, line);
  add_serve(app, line);
  add_bench(app, line);
  add_make_checkpoint(app, line);
  add_quantize(app, line);
  app.add_subcommand("version", "print the version");
  app.footer(std::string(help_footer("")));
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string_view footer = help_footer(command->get_name());
    if (!footer.empty()) command->footer(std::string(footer));  // some have set theirs
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    const auto chosen = app.get_subcommands();
    const std::string command = chosen.empty() ? "" : " " + chosen.front()->get_name();
    return report_usage(
        fmt::format("{} (holdfast{} --help shows the usage)", error.what(), command));
  }
  if (app.get_subcommands().empty()) {
    return report_usage("a command is required (holdfast --help shows them)");
  }
  line.command = app.get_subcommands().front()->get_name();
  Status status = check_company(*app.get_subcommands().front(), line);
  if (status.ok()) status = check(line);
  if (!status.ok()) {
    return report_usage(fmt::format("{} (holdfast {} --help shows the usage)",
                                    status.error().message(), line.command));
  }
  return std::nullopt;
}

}  // namespace holdfast::cli
