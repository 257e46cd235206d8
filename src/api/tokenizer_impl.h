// What stands behind the public Tokenizer, for the files of src/api that make or use one.
// Immutable; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "holdfast/result.h"
#include "holdfast/tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace holdfast {

struct Tokenizer::Impl {
  tokenizer::Tokenizer tokenizer;
};

namespace api {

// Whether every id of `tokenizer` has a row in an embedding of `vocab_size` rows. Fewer tokens than
// rows is usual (rows are padded). Errors: kMismatch naming both numbers.
Status check_tokenizer_fits(const Tokenizer& tokenizer, std::int64_t vocab_size);

}  // namespace api
}  // namespace holdfast
