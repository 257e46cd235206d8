// What the control routes share.
#include "serve/control_support.h"

#include <gtest/gtest.h>

namespace holdfast::serve {
namespace {

TEST(UpdateError, IsNeverOneThatClientsSendAgain) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::kPoisoned); ++code) {
    const Error error(static_cast<ErrorCode>(code), "why");
    const ApiError answer = update_error(error);
    SCOPED_TRACE(error.to_string());
    EXPECT_GE(answer.status, 400);
    EXPECT_LT(answer.status, 500);
    EXPECT_NE(answer.status, 429);
    EXPECT_NE(answer.message.find("why"), std::string::npos);
  }
  EXPECT_EQ(update_error(Error(ErrorCode::kInvalidArgument, "why")).status, 400);
  EXPECT_EQ(update_error(Error(ErrorCode::kCancelled, "why")).status, 409);
}

}  // namespace
}  // namespace holdfast::serve
