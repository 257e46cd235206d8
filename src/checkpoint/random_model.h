// RandomModel: the config files of the models that a random checkpoint can have the form of.
// Values; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "holdfast/result.h"

namespace holdfast::checkpoint {

struct RandomModel {
  std::string config_json;
  std::string generation_json;
};

// Every field of the published openai/gpt-oss-20b and -120b. `scale` "tiny": hidden size 256, 1024
// tokens and so on, with the same kinds of layers; gpt-oss-20b has 4 layers of 8 experts then, and
// gpt-oss-120b 6 of 32. Errors: kInvalidArgument naming what is known.
Result<RandomModel> random_model(std::string_view like, std::string_view scale);

}  // namespace holdfast::checkpoint
