// A stranger's program: opens a model and generates eight tokens from it.
#include <holdfast/engine.h>
#include <holdfast/version.h>

#include <cstdio>

int main(int argc, char** argv) {
  holdfast::EngineOptions options;
  options.model_directory = argc > 1 ? argv[1] : ".";
  auto engine = holdfast::Engine::open(options);
  if (!engine.ok()) return std::fprintf(stderr, "%s\n", engine.error().to_string().c_str()), 1;
  auto request = (*engine)->submit({.prompt_ids = {307}, .max_tokens = 8});
  if (!request.ok()) return std::fprintf(stderr, "%s\n", request.error().to_string().c_str()), 1;
  std::printf("holdfast %s:", holdfast::version());
  while (!(*engine)->idle()) {
    auto events = (*engine)->step();
    if (!events.ok()) return std::fprintf(stderr, "%s\n", events.error().to_string().c_str()), 1;
    for (const auto& event : *events) {
      if (event.token) std::printf(" %d", event.token->id);
    }
  }
  std::printf("\n");
}
