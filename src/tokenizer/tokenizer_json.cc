// parse_tokenizer_json: one pass over simdjson's document, straight into the tables.
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/limits.h"
#include "tokenizer/tokenizer_data.h"

namespace holdfast::tokenizer {
namespace {

namespace dom = simdjson::dom;

// The pattern that ByteLevel applies with use_regex (GPT-2's encoder.py).
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string_view kind_of(dom::element value) {
  switch (value.type()) {
    case dom::element_type::ARRAY: return "an array";
    case dom::element_type::OBJECT: return "an object";
    case dom::element_type::STRING: return "a string";
    case dom::element_type::BOOL: return "a boolean";
    case dom::element_type::NULL_VALUE: return "null";
    default: return "a number";
  }
}

Error wrong_type(std::string_view where, std::string_view wanted, dom::element value) {
  return make_error(ErrorCode::kCorrupt, "{} must be {}; it is {}", where, wanted, kind_of(value));
}

Error unsupported(std::string_view where, std::string_view what, std::string_view known) {
  return make_error(ErrorCode::kUnsupported, "{} {} is not supported; known: {}", where, what,
                    known);
}

// An object whose keys have been checked: each known, none twice.
class Fields {
 public:
  static Result<Fields> of(dom::element value, std::string where,
                           std::initializer_list<std::string_view> known) {
    dom::object object;
    if (value.get(object) != simdjson::SUCCESS) return wrong_type(where, "an object", value);
    std::unordered_set<std::string_view> seen;
    for (const auto [key, field] : object) {
      if (!seen.insert(key).second) {
        return make_error(ErrorCode::kCorrupt, "{} has the key \"{}\" twice", where, key);
      }
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        return unsupported(where, fmt::format("key \"{}\"", key),
                           fmt::format("{}", fmt::join(known, ", ")));
      }
    }
    return Fields(object, std::move(where));
  }

  const std::string& where() const { return where_; }
  std::string path(std::string_view key) const { return fmt::format("{}.{}", where_, key); }

  // False for an absent key and for null.
  bool has(std::string_view key) const {
    dom::element value;
    return object_.at_key(key).get(value) == simdjson::SUCCESS && !value.is_null();
  }
  Result<dom::element> get(std::string_view key) const {
    dom::element value;
    if (object_.at_key(key).get(value) != simdjson::SUCCESS) {
      return make_error(ErrorCode::kCorrupt, "{} has no \"{}\"", where_, key);
    }
    return value;
  }
  Result<bool> boolean(std::string_view key, bool absent) const {
    if (!has(key)) return absent;
    HF_ASSIGN(const dom::element value, get(key));
    bool flag = false;
    if (value.get(flag) != simdjson::SUCCESS) return wrong_type(path(key), "a boolean", value);
    return flag;
  }
  Result<std::string_view> string(std::string_view key) const {
    HF_ASSIGN(const dom::element value, get(key));
    std::string_view text;
    if (value.get(text) != simdjson::SUCCESS) return wrong_type(path(key), "a string", value);
    return text;
  }
  Result<dom::array> array(std::string_view key) const {
    HF_ASSIGN(const dom::element value, get(key));
    dom::array items;
    if (value.get(items) != simdjson::SUCCESS) return wrong_type(path(key), "an array", value);
    return items;
  }

 private:
  Fields(dom::object object, std::string where) : object_(object), where_(std::move(where)) {}
  dom::object object_;
  std::string where_;
};

// The "type" of a component object.
Result<std::string_view> type_of(dom::element component, std::string_view where) {
  dom::object object;
  if (component.get(object) != simdjson::SUCCESS) return wrong_type(where, "an object", component);
  dom::element type;
  std::string_view name;
  if (object.at_key("type").get(type) != simdjson::SUCCESS) {
    return make_error(ErrorCode::kCorrupt, "{} has no \"type\"", where);
  }
  if (type.get(name) != simdjson::SUCCESS) return wrong_type(where, "of a \"type\" string", type);
  return name;
}

// The parts of a component that may be a Sequence, in order.
Result<std::vector<dom::element>> flatten(dom::element component, std::string where,
                                          std::string_view list_key) {
  HF_ASSIGN(const std::string_view type, type_of(component, where));
  if (type != "Sequence") return std::vector<dom::element>{component};
  HF_ASSIGN(const Fields fields, Fields::of(component, std::move(where), {"type", list_key}));
  HF_ASSIGN(const dom::array items, fields.array(list_key));
  std::vector<dom::element> parts;
  for (const dom::element item : items) parts.push_back(item);
  return parts;
}

class Reader {
 public:
  Result<TokenizerData> read(dom::element document) {
    HF_ASSIGN(const Fields top,
              Fields::of(document, "tokenizer.json",
                         {"version", "truncation", "padding", "added_tokens", "normalizer",
                          "pre_tokenizer", "post_processor", "decoder", "model"}));
    for (const std::string_view key : {"normalizer", "truncation", "padding"}) {
      if (!top.has(key)) continue;
      HF_ASSIGN(const dom::element value, top.get(key));
      const auto type = type_of(value, key);
      return unsupported(top.path(key), type.ok() ? fmt::format("\"{}\"", *type) : "setting",
                         "null");
    }
    HF_ASSIGN(const dom::element model, top.get("model"));
    HF_TRY(read_model(model));
    if (top.has("added_tokens")) {
      HF_ASSIGN(const dom::array added, top.array("added_tokens"));
      HF_TRY(read_added(added));
    }
    HF_ASSIGN(const dom::element pre_tokenizer, top.get("pre_tokenizer"));
    HF_TRY(read_pre_tokenizer(pre_tokenizer));
    HF_ASSIGN(const dom::element decoder, top.get("decoder"));
    HF_TRY(check_decoder(decoder));
    if (top.has("post_processor")) {
      HF_ASSIGN(const dom::element post_processor, top.get("post_processor"));
      HF_TRY(check_post_processor(post_processor));
    }
    return std::move(data_);
  }

 private:
  Status read_model(dom::element model) {
    HF_ASSIGN(const std::string_view type, type_of(model, "tokenizer.json.model"));
    if (type != "BPE") {
      return unsupported("tokenizer.json.model", fmt::format("type \"{}\"", type), "BPE");
    }
    HF_ASSIGN(const Fields fields,
              Fields::of(model, "tokenizer.json.model",
                         {"type", "dropout", "unk_token", "continuing_subword_prefix",
                          "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges",
                          "vocab", "merges"}));
    if (fields.has("dropout")) return unsupported(fields.where(), "dropout", "null");
    for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!fields.has(key)) continue;
      HF_ASSIGN(const std::string_view text, fields.string(key));
      if (!text.empty()) return unsupported(fields.path(key), fmt::format("\"{}\"", text), "null");
    }
    HF_ASSIGN(const bool byte_fallback, fields.boolean("byte_fallback", false));
    if (byte_fallback) return unsupported(fields.where(), "byte_fallback true", "false");
    HF_ASSIGN(data_.ignore_merges, fields.boolean("ignore_merges", false));
    HF_ASSIGN(const dom::element vocab, fields.get("vocab"));
    HF_TRY(read_vocab(vocab));
    HF_ASSIGN(const dom::array merges, fields.array("merges"));
    return read_merges(merges);
  }

  Status read_vocab(dom::element vocab) {
    dom::object object;
    if (vocab.get(object) != simdjson::SUCCESS) {
      return wrong_type("tokenizer.json.model.vocab", "an object", vocab);
    }
    data_.tokens.reserve(object.size(), 8 * object.size());
    std::unordered_set<std::string_view> outside;  // texts outside the byte alphabet
    std::string bytes;
    for (const auto [text, value] : object) {
      std::int64_t id = -1;
      if (value.get(id) != simdjson::SUCCESS) {
        return make_error(ErrorCode::kCorrupt,
                          "vocab: the id of token \"{}\" is {}, not an integer that fits", text,
                          kind_of(value));
      }
      bytes.clear();
      Status added;
      if (append_token_bytes(text, bytes)) {
        added = data_.tokens.add(id, bytes);
      } else if (outside.insert(text).second) {
        added = data_.tokens.add_unreachable(id, text);
      } else {
        added = make_error(ErrorCode::kCorrupt, "the key is there twice");
      }
      if (!added.ok()) return added.error().with_context(fmt::format("vocab: \"{}\"", text));
    }
    return set_byte_ids();
  }

  Status set_byte_ids() {
    std::array<std::int32_t, 256> ids{};
    for (std::size_t byte = 0; byte < ids.size(); ++byte) {
      const char text = static_cast<char>(byte);
      ids[byte] = data_.tokens.find({&text, 1});
      const bool in_utf8 = byte < 0xC0 || (byte >= 0xC2 && byte <= 0xF4);
      if (ids[byte] < 0 && in_utf8) {
        return make_error(ErrorCode::kUnsupported,
                          "vocab: no token for byte 0x{:02x}, so that not every text could be "
                          "encoded; a byte-level vocabulary needs all bytes of UTF-8",
                          byte);
      }
    }
    data_.merges.set_byte_ids(ids);
    return {};
  }

  Status read_merges(dom::array merges) {
    data_.merges.reserve(merges.size());
    for (const dom::element merge : merges) {
      if (data_.merges.size() == kMaxMerges) {
        return make_error(ErrorCode::kResourceExhausted, "merges: more than {}", kMaxMerges);
      }
      std::array<std::string_view, 2> pair;
      HF_TRY(split_merge(merge, pair));
      std::array<std::int32_t, 2> ids{};
      bytes_.clear();
      for (std::size_t side = 0; side < 2; ++side) {
        const std::size_t start = bytes_.size();
        const bool in_alphabet = append_token_bytes(pair[side], bytes_);
        ids[side] = in_alphabet ? data_.tokens.find(std::string_view(bytes_).substr(start)) : -1;
        if (ids[side] < 0) return unknown_token(pair, pair[side]);
      }
      const std::int32_t merged = data_.tokens.find(bytes_);
      if (merged < 0) return unknown_token(pair, fmt::format("{}{}", pair[0], pair[1]));
      HF_TRY(data_.merges.add(ids[0], ids[1], merged));
    }
    return {};
  }

  Error unknown_token(const std::array<std::string_view, 2>& pair, std::string_view token) const {
    return make_error(ErrorCode::kCorrupt,
                      "merge {} (\"{}\" \"{}\") names token \"{}\", which the vocabulary lacks",
                      data_.merges.size(), pair[0], pair[1], token);
  }

  // A merge is "left right" or ["left", "right"].
  Status split_merge(dom::element merge, std::array<std::string_view, 2>& pair) const {
    const auto bad = [&] {
      return make_error(ErrorCode::kCorrupt,
                        "merge {} is {}; it must be \"left right\" or [\"left\", \"right\"]",
                        data_.merges.size(), kind_of(merge));
    };
    std::string_view text;
    if (merge.get(text) == simdjson::SUCCESS) {
      const std::size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != text.npos) return bad();
      pair = {text.substr(0, space), text.substr(space + 1)};
      return {};
    }
    dom::array sides;
    if (merge.get(sides) != simdjson::SUCCESS || sides.size() != 2) return bad();
    std::size_t side = 0;
    for (const dom::element value : sides) {
      if (value.get(pair[side++]) != simdjson::SUCCESS) return bad();
    }
    return {};
  }

  Status read_added(dom::array items) {
    std::vector<AddedToken> added;
    std::unordered_map<std::string, std::int32_t> by_content;
    std::unordered_set<std::int32_t> ids;
    for (const dom::element item : items) {
      if (added.size() == kMaxAddedTokens) {
        return make_error(ErrorCode::kResourceExhausted, "added_tokens: more than {}",
                          kMaxAddedTokens);
      }
      HF_ASSIGN(AddedToken token, read_added_token(item, added.size()));
      const auto [other, is_new] = by_content.emplace(token.content, token.id);
      if (!is_new) {
        return make_error(ErrorCode::kCorrupt, "added tokens {} and {} are both \"{}\"",
                          other->second, token.id, token.content);
      }
      if (!ids.insert(token.id).second) {
        return make_error(ErrorCode::kCorrupt, "added_tokens: id {} is given twice", token.id);
      }
      HF_TRY(place_added(token));
      added.push_back(std::move(token));
    }
    data_.added = AddedTokens(added);
    return {};
  }

  Result<AddedToken> read_added_token(dom::element item, std::size_t index) const {
    HF_ASSIGN(const Fields fields,
              Fields::of(item, fmt::format("added_tokens[{}]", index),
                         {"id", "content", "single_word", "lstrip", "rstrip", "normalized",
                          "special"}));
    AddedToken token;
    HF_ASSIGN(const dom::element id, fields.get("id"));
    std::int64_t value = -1;
    if (id.get(value) != simdjson::SUCCESS || value < 0 || value > kMaxTokenId) {
      return make_error(ErrorCode::kCorrupt, "{} must be an integer in 0..{}", fields.path("id"),
                        kMaxTokenId);
    }
    token.id = static_cast<std::int32_t>(value);
    HF_ASSIGN(token.content, fields.string("content"));
    if (token.content.empty() || token.content.size() > kMaxAddedTokenBytes) {
      return make_error(ErrorCode::kCorrupt, "{} is {} bytes long; 1 to {} are allowed",
                        fields.path("content"), token.content.size(), kMaxAddedTokenBytes);
    }
    HF_ASSIGN(const bool single_word, fields.boolean("single_word", false));
    if (single_word) return unsupported(fields.where(), "single_word true", "false");
    HF_ASSIGN(token.lstrip, fields.boolean("lstrip", false));
    HF_ASSIGN(token.rstrip, fields.boolean("rstrip", false));
    HF_ASSIGN(token.special, fields.boolean("special", false));
    HF_ASSIGN(token.normalized, fields.boolean("normalized", !token.special));
    return token;
  }

  // An added token may be in the vocabulary too, then under the same id.
  Status place_added(const AddedToken& token) {
    std::string bytes;
    if (!append_token_bytes(token.content, bytes)) bytes = token.content;
    if (data_.tokens.contains(token.id)) {
      if (data_.tokens.bytes(token.id) == bytes) return {};
      return make_error(ErrorCode::kMismatch,
                        "added token \"{}\" has id {}, which is another token of the vocabulary",
                        token.content, token.id);
    }
    if (const std::int32_t other = data_.tokens.find(bytes); other >= 0) {
      return make_error(ErrorCode::kMismatch,
                        "added token \"{}\" has id {}, but the vocabulary has it as {}",
                        token.content, token.id, other);
    }
    return data_.tokens.add_unreachable(token.id, token.content);
  }

  Status read_pre_tokenizer(dom::element component) {
    const std::string where = "tokenizer.json.pre_tokenizer";
    HF_ASSIGN(const std::vector<dom::element> parts, flatten(component, where, "pretokenizers"));
    bool byte_level = false;
    for (const dom::element part : parts) {
      HF_ASSIGN(const std::string_view type, type_of(part, where));
      if (byte_level) {
        return unsupported(where, fmt::format("\"{}\" after ByteLevel", type), "ByteLevel last");
      }
      if (type == "Split") {
        HF_TRY(read_split(part));
      } else if (type == "ByteLevel") {
        HF_TRY(read_byte_level(part));
        byte_level = true;
      } else {
        return unsupported(where, fmt::format("\"{}\"", type), "Sequence, Split, ByteLevel");
      }
    }
    if (!byte_level) return unsupported(where, "without ByteLevel", "ByteLevel last");
    return {};
  }

  Status add_split(std::string_view pattern) {
    if (data_.splits.size() == kMaxSplitStages) {
      return make_error(ErrorCode::kResourceExhausted, "pre_tokenizer: more than {} patterns",
                        kMaxSplitStages);
    }
    HF_ASSIGN(Pattern compiled, Pattern::compile(pattern));
    data_.splits.push_back(std::move(compiled));
    return {};
  }

  Status read_split(dom::element part) {
    HF_ASSIGN(const Fields fields, Fields::of(part, "pre_tokenizer Split",
                                              {"type", "pattern", "behavior", "invert"}));
    HF_ASSIGN(const std::string_view behavior, fields.string("behavior"));
    if (behavior != "Isolated") {
      return unsupported(fields.path("behavior"), fmt::format("\"{}\"", behavior), "Isolated");
    }
    // With Isolated, matches and what lies between them are pieces alike: invert changes nothing.
    HF_TRY(fields.boolean("invert", false));
    HF_ASSIGN(const dom::element pattern, fields.get("pattern"));
    HF_ASSIGN(const Fields kind, Fields::of(pattern, fields.path("pattern"), {"Regex"}));
    HF_ASSIGN(const std::string_view regex, kind.string("Regex"));
    return add_split(regex);
  }

  Status read_byte_level(dom::element part) {
    HF_ASSIGN(const Fields fields,
              Fields::of(part, "pre_tokenizer ByteLevel",
                         {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    HF_ASSIGN(data_.add_prefix_space, fields.boolean("add_prefix_space", true));
    HF_ASSIGN(const bool use_regex, fields.boolean("use_regex", true));
    data_.prefix_stage = data_.splits.size();
    return use_regex ? add_split(kByteLevelPattern) : Status{};
  }

  Status check_decoder(dom::element component) const {
    const std::string where = "tokenizer.json.decoder";
    HF_ASSIGN(const std::vector<dom::element> parts, flatten(component, where, "decoders"));
    for (const dom::element part : parts) {
      HF_ASSIGN(const std::string_view type, type_of(part, where));
      if (type != "ByteLevel" || parts.size() != 1) {
        return unsupported(where, fmt::format("\"{}\"", type), "one ByteLevel");
      }
    }
    return parts.empty() ? Status(unsupported(where, "without parts", "one ByteLevel")) : Status{};
  }

  // Post-processors move offsets and add template tokens; neither changes what encode returns.
  Status check_post_processor(dom::element component) const {
    const std::string where = "tokenizer.json.post_processor";
    HF_ASSIGN(const std::vector<dom::element> parts, flatten(component, where, "processors"));
    for (const dom::element part : parts) {
      HF_ASSIGN(const std::string_view type, type_of(part, where));
      if (type != "ByteLevel" && type != "TemplateProcessing") {
        return unsupported(where, fmt::format("\"{}\"", type),
                           "Sequence, ByteLevel, TemplateProcessing");
      }
    }
    return {};
  }

  TokenizerData data_;
  std::string bytes_;
};

}  // namespace

Result<TokenizerData> parse_tokenizer_json(std::string_view json) {
  if (json.empty() || json.size() > kMaxJsonBytes) {
    return make_error(ErrorCode::kResourceExhausted,
                      "tokenizer.json is {} bytes long; 1 to {} are allowed", json.size(),
                      kMaxJsonBytes);
  }
  dom::parser parser;
  dom::element document;
  simdjson::error_code error = parser.allocate(json.size(), kMaxJsonDepth);
  // parse copies the text to give it the padding that simdjson reads beyond the end.
  if (error == simdjson::SUCCESS) error = parser.parse(json.data(), json.size()).get(document);
  if (error == simdjson::DEPTH_ERROR) {
    return make_error(ErrorCode::kCorrupt, "tokenizer.json is nested deeper than {}",
                      kMaxJsonDepth);
  }
  if (error != simdjson::SUCCESS) {
    return make_error(ErrorCode::kCorrupt, "tokenizer.json ({} bytes) is not JSON: {}", json.size(),
                      simdjson::error_message(error));
  }
  return Reader().read(document);
}

}  // namespace holdfast::tokenizer
