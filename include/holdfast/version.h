// The version of the library. Any thread.
#pragma once

namespace holdfast {

// "MAJOR.MINOR.PATCH".
const char* version();

}  // namespace holdfast
