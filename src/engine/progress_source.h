// A Source around another that reports how much of it has been read. For the first load.
#pragma once

#include <functional>
#include <memory>

#include "reload/source.h"

namespace holdfast::engine {

// `progress` gets a fraction in [0, 1], at most a hundred times, on the thread that reads.
std::unique_ptr<reload::Source> make_progress_source(std::unique_ptr<reload::Source> inner,
                                                     std::function<void(double)> progress);

}  // namespace holdfast::engine
