// What every backend's rows are held against in tests: themselves, alone. One thread.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "experts/test_layer.h"

namespace holdfast::experts::testing {

// A row has the same bits alone and among the others, on one worker and on three. `format`: a
// config::ExpertFormat, or a scheme as gpt-oss publishes it.
template <typename Format>
void expect_independent_rows(ExpertsBackendKind kind, const Format& format,
                             const ExpertsShape& shape, const Tensors& tensors) {
  SCOPED_TRACE(experts_backend_name(kind));
  std::vector<float> expected;
  for (int workers = 1; workers <= 3; workers += 2) {
    TestLayer layer(kind, format, shape, workers);
    layer.load(tensors);
    layer.randomize_rows(34);
    ASSERT_TRUE(layer.forward(0, shape.max_rows).ok());
    const std::vector<float> together(layer.out().begin(), layer.out().end());
    if (workers == 1) expected = together;
    layer.poison_out();
    layer.set_active(1);
    for (std::int64_t r = 0; r < shape.max_rows; ++r) ASSERT_TRUE(layer.forward(r, 1).ok());
    const std::size_t bytes = together.size() * sizeof(float);
    EXPECT_EQ(std::memcmp(layer.out().data(), together.data(), bytes), 0) << workers;
    EXPECT_EQ(std::memcmp(expected.data(), together.data(), bytes), 0) << workers;
  }
}

}  // namespace holdfast::experts::testing
