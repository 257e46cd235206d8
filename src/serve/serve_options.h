// The options of `holdfast serve` as a table: one place from which flags, environment variables,
// the configuration file, --print-config and the help come. Values; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "serve/context.h"

namespace holdfast::serve {

using OptionValue = std::variant<bool, std::int64_t, std::string, std::vector<std::string>>;

struct ServeOption {
  std::string name;                  // "max-model-len": the flag --max-model-len, the variable
                                     // HOLDFAST_MAX_MODEL_LEN, the key of the file
  std::vector<std::string> aliases;  // further names, of flags and keys
  std::string group, help;
  std::int64_t least = 0, most = 0;  // of an integer
  std::vector<std::string> choices;  // of a text; empty: any
  bool secret = false;               // never printed
  std::function<OptionValue(const ServeOptions&)> get;  // its alternative is the option's type
  std::function<void(ServeOptions&, OptionValue)> set;
};

// All of them, in the order of the help; made once.
const std::vector<ServeOption>& serve_options();
// By name or alias, with "_" for "-"; null: there is none.
const ServeOption* find_serve_option(std::string_view name);
// "HOLDFAST_MAX_MODEL_LEN".
std::string environment_name(const ServeOption& option);

// Sets one, checked. `where`: what the message calls it, "--port" or "HOLDFAST_PORT". Errors:
// kInvalidArgument naming `where`, the value, and what is accepted.
Status set_serve_option(ServeOptions& options, const ServeOption& option, OptionValue value,
                        std::string_view where);
// The same from text: lists are separated by commas, booleans are true and false (1, 0, yes, no).
Status set_serve_option(ServeOptions& options, const ServeOption& option, const std::string& text,
                        std::string_view where);

// Lays the variables HOLDFAST_... over `options`. `variable` gives null for one that is not set.
// Errors: kInvalidArgument.
Status read_environment(const std::function<const char*(const char*)>& variable,
                        ServeOptions& options);
// `options` as a configuration file, which read_config_file takes. Secrets are named, not shown.
std::string config_text(const ServeOptions& options);

// What no option can know alone: a control listener that others reach has a token, listeners have
// different ports, a header can carry the tokens, model roots exist. Errors: kInvalidArgument
// naming both sides.
Status check_serve_options(const ServeOptions& options);

}  // namespace holdfast::serve
