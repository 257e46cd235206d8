// run_server: `holdfast serve` from its options to the last connection. Called once, on the main
// thread.
#pragma once

#include <string>

#include "serve/context.h"

namespace holdfast::serve {

// Opens the engine, binds the listeners, prints one line when ready, and serves until SIGTERM or
// SIGINT: then drains. Errors: of Engine::open and HttpServer::start; kInvalidArgument
// naming an option, its value and what is accepted.
Status run_server(const ServeOptions& options);

// Flags > environment (HOLDFAST_...) > the TOML file at `path` > defaults: this is the file's part,
// laid over what `options` holds. Errors: kNotFound, kCorrupt naming line and column,
// kInvalidArgument naming an unknown key with the nearest known ones, or a value of another type.
Status read_config_file(const std::string& path, ServeOptions& options);

}  // namespace holdfast::serve
