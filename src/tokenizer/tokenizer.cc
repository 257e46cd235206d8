#include "tokenizer/tokenizer.h"

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "tokenizer/limits.h"
#include "tokenizer/tokenizer_data.h"
#include "tokenizer/utf8.h"
#include "tokenizer/word_cache.h"

namespace holdfast::tokenizer {

struct EncodeScratch::State {
  MatchState match;
  MergeScratch merge;
  WordCache words;
  std::vector<AddedTokens::Segment> segments;
  std::string prefixed;  // a piece with the space before it
  std::shared_ptr<const TokenizerData> remembers;  // whose words `words` holds
};

EncodeScratch::EncodeScratch() : state_(std::make_unique<State>()) {}
EncodeScratch::EncodeScratch(EncodeScratch&&) noexcept = default;
EncodeScratch& EncodeScratch::operator=(EncodeScratch&&) noexcept = default;
EncodeScratch::~EncodeScratch() = default;

namespace {

// A text shorter than this is encoded without a word cache when no scratch is kept.
constexpr std::size_t kCacheFromBytes = 4096;

// One call of encode.
template <typename State>
class Encoder {
 public:
  // `use_cache`: state.words holds words of `data`.
  Encoder(const TokenizerData& data, State& state, bool use_cache)
      : data_(data), state_(state), use_cache_(use_cache) {}

  Result<std::vector<std::int32_t>> run(std::string_view text, EncodeOptions options) {
    out_.reserve(text.size() / 4 + 16);
    state_.segments.clear();
    state_.match.allow(text.size());
    data_.added.split(text, options.parse_special, state_.segments);
    for (const AddedTokens::Segment& segment : state_.segments) {
      if (segment.id >= 0) {
        out_.push_back(segment.id);
      } else if (!split(0, text.substr(segment.begin, segment.end - segment.begin))) {
        return failed_->error_of(failure_);
      }
    }
    return std::move(out_);
  }

 private:
  // Takes one piece through the splits from `stage` on. False: failed_ and failure_ say why.
  bool split(std::size_t stage, std::string_view piece) {
    if (stage == data_.prefix_stage && data_.add_prefix_space && !piece.starts_with(' ')) {
      state_.prefixed.assign(1, ' ').append(piece);
      piece = state_.prefixed;
    }
    if (stage == data_.splits.size()) {
      add_word(piece);
      return true;
    }
    const Pattern& pattern = data_.splits[stage];
    std::size_t done = 0;  // everything before it has gone on
    std::size_t from = 0;
    while (from < piece.size()) {
      const Pattern::Match match = pattern.find(piece, from, state_.match);
      if (match.code <= 0) {
        if (match.code == 0) break;
        failed_ = &pattern;
        failure_ = match.code;
        return false;
      }
      if (match.begin > done && !split(stage + 1, piece.substr(done, match.begin - done))) {
        return false;
      }
      if (match.end > match.begin &&
          !split(stage + 1, piece.substr(match.begin, match.end - match.begin))) {
        return false;
      }
      done = match.end;
      from = match.end;
      if (match.end == match.begin && from < piece.size()) {
        from += next_utf8(piece.substr(from)).length;
      }
    }
    return done == piece.size() || split(stage + 1, piece.substr(done));
  }

  void add_word(std::string_view word) {
    const std::uint64_t hash = hash_bytes(word);
    const bool cached = use_cache_ && word.size() <= WordCache::kMaxWordBytes;
    if (cached) {
      if (const WordCache::Entry* entry = state_.words.find(word, hash)) {
        out_.insert(out_.end(), entry->ids.begin(), entry->ids.begin() + entry->count);
        return;
      }
    }
    const std::size_t start = out_.size();
    const std::int32_t whole = data_.ignore_merges ? data_.tokens.find_hashed(word, hash) : -1;
    if (whole >= 0) {
      out_.push_back(whole);
    } else {
      data_.merges.merge_word(word, state_.merge, out_);
    }
    const std::size_t count = out_.size() - start;
    if (cached && count <= WordCache::kMaxTokens) {
      state_.words.put(word, hash, std::span(out_).subspan(start));
    }
  }

  const TokenizerData& data_;
  State& state_;
  bool use_cache_;
  std::vector<std::int32_t> out_;
  const Pattern* failed_ = nullptr;
  int failure_ = 0;
};

Status check_text(std::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return make_error(ErrorCode::kResourceExhausted,
                      "the text is {} bytes long; at most {} are encoded at once", text.size(),
                      kMaxTextBytes);
  }
  if (const std::size_t bad = find_invalid_utf8(text); bad != std::string_view::npos) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the text is not UTF-8: byte {} of {} is 0x{:02x}", bad, text.size(),
                      static_cast<unsigned char>(text[bad]));
  }
  return {};
}

}  // namespace

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return make_error(ErrorCode::kNotFound, "{} does not exist", path);
  }
  if (status.type() != std::filesystem::file_type::regular) {
    return make_error(ErrorCode::kIo, "{} is not a readable regular file", path);
  }
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return make_error(ErrorCode::kIo, "{}: {}", path, error.message());
  if (bytes > kMaxJsonBytes) {
    return make_error(ErrorCode::kResourceExhausted, "{} is {} bytes long; at most {} are allowed",
                      path, bytes, kMaxJsonBytes);
  }
  std::string json(bytes, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(json.data(), static_cast<std::streamsize>(bytes))) {
    return make_error(ErrorCode::kIo, "{}: {} of {} bytes could be read", path, file.gcount(),
                      bytes);
  }
  auto tokenizer = parse(json);
  if (!tokenizer.ok()) return tokenizer.error().with_context(path);
  return tokenizer;
}

Result<Tokenizer> Tokenizer::parse(std::string_view json) {
  HF_ASSIGN(TokenizerData data, parse_tokenizer_json(json));
  return Tokenizer(std::make_shared<const TokenizerData>(std::move(data)));
}

Tokenizer Tokenizer::absent(const std::string& path) {
  TokenizerData data;
  data.absent = path;
  return Tokenizer(std::make_shared<const TokenizerData>(std::move(data)));
}

Status Tokenizer::check_present() const {
  if (data_->absent.empty()) return {};
  return make_error(ErrorCode::kUnsupported,
                    "{} does not exist, so this model takes and gives token ids and no text; give "
                    "ids (prompt_ids), or put the model's tokenizer.json there",
                    data_->absent);
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text,
                                                    EncodeOptions options) const {
  if (text.size() >= kCacheFromBytes) {
    EncodeScratch scratch;
    return encode(text, options, scratch);
  }
  HF_TRY(check_present());
  HF_TRY(check_text(text));
  EncodeScratch::State state;
  return Encoder(*data_, state, false).run(text, options);
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text, EncodeOptions options,
                                                    EncodeScratch& scratch) const {
  HF_TRY(check_present());
  HF_TRY(check_text(text));
  EncodeScratch::State& state = *scratch.state_;
  if (state.remembers != data_) {
    state.words.clear();
    state.remembers = data_;
  }
  return Encoder(*data_, state, true).run(text, options);
}

Result<std::string> Tokenizer::decode(std::span<const std::int32_t> ids,
                                      DecodeOptions options) const {
  HF_TRY(check_present());
  std::string bytes;
  for (const std::int32_t id : ids) {
    HF_ASSIGN(const std::string_view token, token_bytes(id));
    if (!options.skip_special || !is_special(id)) bytes.append(token);
  }
  std::string text;
  append_lossy_utf8(bytes, true, text);
  return text;
}

Result<std::string_view> Tokenizer::token_bytes(std::int32_t id) const {
  if (!data_->tokens.contains(id)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "token id {} has no token; the tokenizer has {} tokens with ids up to {}", id,
                      vocab_size(), max_token_id());
  }
  return data_->tokens.bytes(id);
}

std::optional<std::int32_t> Tokenizer::id_of_token(std::string_view bytes) const {
  if (const std::int32_t id = data_->added.find(bytes); id >= 0) return id;
  if (const std::int32_t id = data_->tokens.find(bytes); id >= 0) return id;
  return std::nullopt;
}

bool Tokenizer::is_special(std::int32_t id) const { return data_->added.is_special(id); }
std::size_t Tokenizer::vocab_size() const { return data_->tokens.size(); }
std::int32_t Tokenizer::max_token_id() const { return data_->tokens.max_id(); }

}  // namespace holdfast::tokenizer
