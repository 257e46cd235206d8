#include "cli/serve.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>

#include "cli/command_line.h"
#include "cli/output.h"
#include "cli/session.h"
#include "serve/serve_options.h"
#include "serve/server.h"
#include "serve/vllm_flags.h"

namespace holdfast::cli {
namespace {

constexpr std::string_view kServe = R"(Examples:
  holdfast serve models/gptoss-tiny-A
  holdfast serve models/gptoss-tiny-A --port 9000 --control-port 9001 --max-num-seqs 64
  holdfast serve --config holdfast.toml --log-format json
  holdfast serve models/gptoss-tiny-A --print-config > holdfast.toml

Then, from another terminal:
  curl -s http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \
    -d '{"model": "gptoss-tiny-A", "prompt": "ROMEO:", "max_tokens": 16, "temperature": 0}'
  curl -s -X POST http://127.0.0.1:8001/update_weights -H 'Content-Type: application/json' \
    -d '{"weight_dir": "models/gptoss-tiny-B"}'
and open http://127.0.0.1:8001/ in a browser: the status page.

Two listeners: the public one generates; the control one generates, too, and pauses and replaces
weights. The control listener is of this machine alone unless --control-host says otherwise, and
then it asks for a token. With --control-port equal to --port there is one listener for both.

An option can be given in four places, the first wins: a flag (--max-num-seqs 64), the environment
(HOLDFAST_MAX_NUM_SEQS=64), a TOML file named by --config or HOLDFAST_CONFIG (max-num-seqs = 64),
the default. --print-config shows what results, as such a file. Tokens are better off in the
environment or the file than in a flag, which every user of the machine can see.

Flags of vLLM that are none here are taken where they ask for what is so anyway (as
--tensor-parallel-size 1), and else refused with what to do instead.

When it is ready, one line on stdout says where. GET /health: the process lives; /ready: it would
answer (503 and why, while it loads, drains, sleeps, or its weights are poisoned). SIGTERM and
Ctrl-C let running requests end first; a second one does not.)";

// What vLLM's users write by habit: their scripts run, or are told what to do instead.
void add_compatible(CLI::App& app) {
  app.add_option_function<std::string>(
         "--weight-transfer-config",
         [](const std::string& json) {
           const Status status = serve::check_weight_transfer_config(json);
           if (!status.ok()) {
             throw CLI::ValidationError(status.error().message());
           }
         },
         "as vLLM's: {\"backend\": \"disk\"} or \"http\"; both are always there")
      ->type_name("JSON")->group("Accepted for vLLM's sake");
  for (const serve::VllmFlag& flag : serve::vllm_flags()) {
    const auto check = [&flag](const std::string& value) {
      const Status status = serve::check_vllm_flag(flag, value);
      if (!status.ok()) throw CLI::ValidationError(status.error().message());
    };
    const std::string name(flag.name);
    CLI::Option* const added =
        flag.takes_value
            ? app.add_option_function<std::string>(name, check)
            : app.add_flag_function(name, [check](std::int64_t) { check({}); });
    added->group("");  // not in the help: they change nothing
  }
}

std::string default_text(const serve::OptionValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *integer);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return {};
}

std::string flag_names(const serve::ServeOption& option) {
  std::string names = "--" + option.name;
  for (const std::string& alias : option.aliases) names += ",--" + alias;
  return names;
}

void add_switch(CLI::App& app, const serve::ServeOption& option, ServeFlags& flags) {
  std::string names = flag_names(option);
  for (const std::string& name : {option.name, option.aliases.front()}) {
    names += ",!--no-" + name;
  }
  app.add_flag_function(
         names,
         [&option, &flags](std::int64_t count) {
           flags.given.emplace_back("--" + option.name, count > 0 ? "true" : "false");
         },
         option.help + "; on by default")
      ->group(option.group);
}

void add_value(CLI::App& app, const serve::ServeOption& option, ServeFlags& flags) {
  const serve::OptionValue now = option.get(serve::ServeOptions{});
  std::string help = option.help;
  if (!option.choices.empty()) help += fmt::format(": {}", fmt::join(option.choices, ", "));
  CLI::Option* const added = app.add_option_function<std::string>(
      flag_names(option),
      [&option, &flags](const std::string& text) {
        serve::ServeOptions scratch;
        const Status status =
            serve::set_serve_option(scratch, option, text, "--" + option.name);
        if (!status.ok()) throw CLI::ValidationError(status.error().message());
        flags.given.emplace_back("--" + option.name, text);
      },
      help);
  // A script's flag may be followed by its user's.
  added->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  added->group(option.group)->default_str(default_text(now));
  added->type_name(std::holds_alternative<std::int64_t>(now) ? "INT" : "TEXT");
}

// A flag that would say nothing beside the others is an error, not ignored; the same in a file is
// what --print-config wrote.
Status check_company(const ServeFlags& flags, const serve::ServeOptions& options) {
  for (const auto& [flag, text] : flags.given) {
    if (flag != "--quantize-group" || options.engine.quantize_experts == "int4") continue;
    return Error(ErrorCode::kInvalidArgument,
                 "serve: --quantize-group is for --quantize-experts int4");
  }
  return {};
}

Result<serve::ServeOptions> resolve_options(const ServeFlags& flags) {
  serve::ServeOptions options;
  const char* const named = std::getenv("HOLDFAST_CONFIG");
  const std::string config = !flags.config.empty() ? flags.config : named ? named : "";
  if (!config.empty()) HF_TRY(serve::read_config_file(config, options));
  HF_TRY(serve::read_environment([](const char* name) { return std::getenv(name); }, options));
  for (const auto& [flag, text] : flags.given) {
    const serve::ServeOption* const option = serve::find_serve_option(flag.substr(2));
    HF_TRY(serve::set_serve_option(options, *option, text, flag));
  }
  HF_TRY(check_company(flags, options));
  HF_TRY(serve::check_serve_options(options));
  return options;
}

}  // namespace

void add_serve(CLI::App& root, CommandLine& line) {
  CLI::App& app = *root.add_subcommand("serve", "an HTTP server whose weights can be replaced");
  ServeFlags& flags = line.serve;
  app.add_option("--config", flags.config, "a TOML file with options")->type_name("FILE");
  app.add_flag("--print-config", flags.print_config, "print the options that result, and end");
  app.add_flag("-q,--quiet", line.quiet, "no progress on stderr");
  for (const serve::ServeOption& option : serve::serve_options()) {
    if (option.name == "model") {
      app.add_option_function<std::string>(
             "MODEL,--model",
             [&flags](const std::string& text) { flags.given.emplace_back("--model", text); },
             "the model's directory")
          ->type_name("DIR");
    } else if (std::holds_alternative<bool>(option.get(serve::ServeOptions{}))) {
      add_switch(app, option, flags);
    } else {
      add_value(app, option, flags);
    }
  }
  add_compatible(app);
  app.footer(std::string(kServe));
}

int run_serve(const CommandLine& line) {
  Result<serve::ServeOptions> options = resolve_options(line.serve);
  if (!options.ok()) {
    return report_usage(options.error().message() + " (holdfast serve --help shows the usage)");
  }
  if (line.serve.print_config) {
    const Status written = write_file("", serve::config_text(*options));
    return written.ok() ? kExitDone : report_failure(written.error());
  }
  const auto progress = std::make_shared<ProgressLine>(line.quiet);
  options->engine.progress = show_progress(progress);
  const Status served = serve::run_server(*options, [&progress](const std::string& ready) {
    progress->clear();
    static_cast<void>(write_file("", ready + "\n"));  // nobody has to read it
  });
  return served.ok() ? kExitDone : report_failure(served.error());
}

}  // namespace holdfast::cli
