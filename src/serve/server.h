// run_server: `holdfast serve` from its options to the last connection. Called once, on the main
// thread.
#pragma once

#include <functional>
#include <string>

#include "serve/context.h"

namespace holdfast::serve {

// Binds the listeners, opens the engine, calls `ready` with one line ("ready: http://127.0.0.1:8000
// (control http://127.0.0.1:8001) model NAME in 0.4 s"), and serves until SIGTERM or SIGINT: then
// lets requests end for drain_timeout_s, refusing new ones with 503 (/health goes on), closes its
// listeners, and returns; a second signal ends at once. While the model loads a signal ends the
// process, and /ready says 503.
// Errors: of check_serve_options, Engine::open and HttpServer::start; kDevice when the engine had
// failed for good (/ready said so until then).
Status run_server(const ServeOptions& options,
                  const std::function<void(const std::string& line)>& ready);

// Flags > environment (HOLDFAST_...) > the TOML file at `path` > defaults: this is the file's part,
// laid over what `options` holds. Errors: kNotFound, kCorrupt naming line and column,
// kInvalidArgument naming an unknown key with the nearest known ones, or a value of another type.
Status read_config_file(const std::string& path, ServeOptions& options);

}  // namespace holdfast::serve
