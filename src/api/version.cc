#include "holdfast/version.h"

namespace holdfast {

const char* version() { return "0.1.0"; }

}  // namespace holdfast
