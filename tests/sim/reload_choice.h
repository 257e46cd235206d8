// What a simulated reload is asked to do, drawn from the seed before it begins. A value.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "faults.h"
#include "faulty_source.h"
#include "holdfast/reload.h"

namespace holdfast::sim {

struct ReloadChoice {
  std::size_t version = 0;  // what the engine holds once it has committed
  std::string directory = {};
  ReloadOptions options = {};
  bool part = false;
  FaultKind fault = FaultKind::kNone;
  std::optional<SourceFault> source_fault = {};
  std::string text = {};

  bool streams() const { return options.commit == "stream"; }
  // The request or the directory is what is wrong: nothing may begin.
  bool refused_by_plan() const;
};

}  // namespace holdfast::sim
