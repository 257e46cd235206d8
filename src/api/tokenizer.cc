#include "holdfast/tokenizer.h"

#include <utility>

#include "api/tokenizer_impl.h"
#include "base/error.h"
#include "tokenizer/stream_decoder.h"

namespace holdfast {

namespace {

std::string path_in(const std::string& directory) {
  const bool slash = directory.empty() || directory.back() == '/';
  return directory + (slash ? "" : "/") + "tokenizer.json";
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::open(const std::string& directory) {
  HF_ASSIGN(tokenizer::Tokenizer loaded, tokenizer::Tokenizer::load(path_in(directory)));
  return std::unique_ptr<Tokenizer>(
      new Tokenizer(std::make_unique<Impl>(Impl{std::move(loaded)})));
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::open_or_absent(const std::string& directory) {
  Result<std::unique_ptr<Tokenizer>> opened = open(directory);
  if (opened.ok() || opened.error().code() != ErrorCode::kNotFound) return opened;
  return std::unique_ptr<Tokenizer>(new Tokenizer(
      std::make_unique<Impl>(Impl{tokenizer::Tokenizer::absent(path_in(directory))})));
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

std::int64_t Tokenizer::vocab_size() const {
  return std::int64_t{impl_->tokenizer.max_token_id()} + 1;
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text,
                                                    bool parse_special) const {
  return impl_->tokenizer.encode(text, {.parse_special = parse_special});
}

Result<std::string> Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  return impl_->tokenizer.decode(ids, {.skip_special = skip_special});
}

struct Tokenizer::Stream::Impl {
  tokenizer::StreamDecoder decoder;
};

Tokenizer::Stream::Stream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Stream::~Stream() = default;
Tokenizer::Stream::Stream(Stream&&) noexcept = default;

Result<std::string> Tokenizer::Stream::push(std::int32_t id) { return impl_->decoder.push(id); }
std::string Tokenizer::Stream::finish() { return impl_->decoder.finish(); }

Tokenizer::Stream Tokenizer::stream(bool skip_special) const {
  return Stream(std::make_unique<Stream::Impl>(Stream::Impl{
      tokenizer::StreamDecoder(impl_->tokenizer, {.skip_special = skip_special})}));
}

namespace api {

Status check_tokenizer_fits(const Tokenizer& tokenizer, std::int64_t vocab_size) {
  if (tokenizer.vocab_size() <= vocab_size) return {};
  return make_error(ErrorCode::kMismatch,
                    "tokenizer.json has ids up to {}, the embedding has {} rows (vocab_size of "
                    "config.json); use the tokenizer that belongs to the model",
                    tokenizer.vocab_size() - 1, vocab_size);
}

}  // namespace api
}  // namespace holdfast
