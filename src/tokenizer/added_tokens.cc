#include "tokenizer/added_tokens.h"

#include <algorithm>
#include <iterator>

#include "tokenizer/utf8.h"

namespace holdfast::tokenizer {
namespace {

std::vector<AddedToken> with_normalized(const std::vector<AddedToken>& tokens, bool normalized) {
  std::vector<AddedToken> chosen;
  std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(chosen),
               [&](const AddedToken& token) { return token.normalized == normalized; });
  return chosen;
}

// How many bytes of white space `text` ends with.
std::size_t trailing_white_space(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    std::size_t begin = end - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!is_white_space(next_utf8(text.substr(begin, end - begin)).code_point)) break;
    end = begin;
  }
  return text.size() - end;
}

std::size_t leading_white_space(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = next_utf8(text.substr(at));
    if (!is_white_space(step.code_point)) break;
    at += step.length;
  }
  return at;
}

void split_with(const AddedTokenMatcher& matcher, std::string_view text, bool parse_special,
                std::vector<AddedTokens::Segment>& out) {
  std::size_t done = 0;  // everything before it is in `out`
  for (std::size_t from = 0;;) {
    const AddedTokenMatcher::Match match = matcher.find(text, from);
    if (match.token == nullptr) break;
    from = match.end;
    if (match.token->special && !parse_special) continue;
    if (match.begin < done) continue;  // inside the white space that the last token took
    std::size_t begin = match.begin;
    std::size_t end = match.end;
    if (match.token->lstrip) {
      begin -= trailing_white_space(text.substr(done, begin - done));
    }
    if (match.token->rstrip) end += leading_white_space(text.substr(end));
    if (begin > done) out.push_back({done, begin, -1});
    out.push_back({begin, end, match.token->id});
    done = end;
  }
  if (done < text.size()) out.push_back({done, text.size(), -1});
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_) {
    begins_[static_cast<unsigned char>(token.content[0])] = true;
  }
}

const AddedToken* AddedTokenMatcher::longest_at(std::string_view text) const {
  auto low = tokens_.begin();
  auto high = tokens_.end();
  const AddedToken* longest = nullptr;
  // Invariant: [low, high) are the tokens that begin with the first `length` bytes of the text; a
  // token of exactly that length sorts first.
  for (std::size_t length = 0; length < text.size() && low != high; ++length) {
    const auto byte_at = [length](const AddedToken& token) {
      return length < token.content.size() ? static_cast<unsigned char>(token.content[length]) : -1;
    };
    const int wanted = static_cast<unsigned char>(text[length]);
    low = std::partition_point(low, high,
                               [&](const AddedToken& token) { return byte_at(token) < wanted; });
    high = std::partition_point(low, high,
                                [&](const AddedToken& token) { return byte_at(token) <= wanted; });
    if (low != high && low->content.size() == length + 1) longest = &*low;
  }
  return longest;
}

AddedTokenMatcher::Match AddedTokenMatcher::find(std::string_view text, std::size_t offset) const {
  if (tokens_.empty()) return {};
  for (std::size_t i = offset; i < text.size(); ++i) {
    if (!begins_[static_cast<unsigned char>(text[i])]) continue;
    if (const AddedToken* token = longest_at(text.substr(i))) {
      return {token, i, i + token->content.size()};
    }
  }
  return {};
}

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens)
    : raw_(with_normalized(tokens, false)), normalized_(with_normalized(tokens, true)) {
  for (const AddedToken& token : tokens) {
    if (!token.special) continue;
    const auto index = static_cast<std::size_t>(token.id);
    if (index >= special_.size()) special_.resize(index + 1);
    special_[index] = true;
  }
}

void AddedTokens::split(std::string_view text, bool parse_special,
                        std::vector<Segment>& out) const {
  const std::size_t first = out.size();
  split_with(raw_, text, parse_special, out);
  if (normalized_.empty()) return;
  const std::vector<Segment> segments(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
  out.resize(first);
  for (const Segment& segment : segments) {
    if (segment.id >= 0) {
      out.push_back(segment);
      continue;
    }
    const std::size_t start = out.size();
    split_with(normalized_, text.substr(segment.begin, segment.end - segment.begin), parse_special,
               out);
    for (std::size_t i = start; i < out.size(); ++i) {
      out[i].begin += segment.begin;
      out[i].end += segment.begin;
    }
  }
}

bool AddedTokens::is_special(std::int32_t id) const {
  return id >= 0 && static_cast<std::size_t>(id) < special_.size() &&
         special_[static_cast<std::size_t>(id)];
}

std::int32_t AddedTokens::find(std::string_view content) const {
  for (const AddedTokenMatcher* matcher : {&raw_, &normalized_}) {
    const AddedTokenMatcher::Match match = matcher->find(content, 0);
    if (match.token != nullptr && match.begin == 0 && match.end == content.size()) {
      return match.token->id;
    }
  }
  return -1;
}

}  // namespace holdfast::tokenizer
