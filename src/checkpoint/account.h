// take_account: the exact two-way comparison of what a dialect expects and what the files hold.
// Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace holdfast::checkpoint {

Account take_account(const std::vector<ExpectedTensor>& expected,
                     const std::vector<LocatedTensor>& located);

// The first defect of each kind and how many there are, kMismatch. `account` must not be complete.
Error describe_defects(const Account& account, const std::string& directory);

}  // namespace holdfast::checkpoint
