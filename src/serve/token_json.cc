#include "serve/token_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <set>
#include <sstream>

#include "serve/json_reader.h"

namespace holdfast::serve {
namespace {

static_assert(std::endian::native == std::endian::little, "arrays are sent as they lie in memory");

std::vector<std::int16_t> all_routed(const Choice& choice) {
  std::vector<std::int16_t> all;
  if (choice.detail) all = choice.detail->routed_experts;
  all.insert(all.end(), choice.routed_experts.begin(), choice.routed_experts.end());
  return all;
}

std::string_view bytes_of(const void* data, std::size_t bytes) {
  return {static_cast<const char*>(data), bytes};
}

}  // namespace

std::string TokenNames::text(std::int32_t id) const {
  const Result<std::string> text = tokenizer_.decode(std::span(&id, 1));
  // An id of the model's padded vocabulary that the tokenizer does not know.
  return text.ok() ? *text : std::string();
}

std::string TokenNames::id_name(std::int32_t id) { return fmt::format("token_id:{}", id); }

std::vector<TokenLogprob> with_token(std::int32_t id, float logprob,
                                     std::span<const TokenLogprob> top) {
  std::vector<TokenLogprob> all = {{.id = id, .logprob = logprob}};
  for (const TokenLogprob& each : top) {
    if (each.id != id) all.push_back(each);
  }
  return all;
}

// ------------------------------------------------------------------------------ completions

void LogprobColumns::add(std::int32_t id, Row row) {
  row.name = names_.name(id);
  row.offset = offset_;
  offset_ += count_characters(row.name);
  rows_.push_back(std::move(row));
}

void LogprobColumns::add_prompt(const Choice& choice) {
  for (std::size_t i = 0; i < choice.prompt_ids.size(); ++i) {
    Row row;
    if (i > 0 && i - 1 < choice.prompt_logprobs.size()) {
      row.has_logprob = true;
      row.logprob = choice.prompt_logprobs[i - 1];
      const bool has_top = choice.detail && i - 1 < choice.detail->top.size();
      row.top = with_token(choice.prompt_ids[i], row.logprob,
                           has_top ? std::span<const TokenLogprob>(choice.detail->top[i - 1])
                                   : std::span<const TokenLogprob>());
    }
    add(choice.prompt_ids[i], std::move(row));
  }
}

void LogprobColumns::add_tokens(const Choice& choice, std::size_t first) {
  for (std::size_t i = first; i < choice.tokens.size(); ++i) {
    const Token& token = choice.tokens[i];
    add(token.id, {.has_logprob = true,
                   .logprob = token.logprob,
                   .top = with_token(token.id, token.logprob, choice.top[i])});
  }
}

void LogprobColumns::write(JsonWriter& out) {
  out.begin_object().key("tokens").begin_array();
  for (const Row& row : rows_) out.value(row.name);
  out.end_array().key("token_logprobs").begin_array();
  for (const Row& row : rows_) row.has_logprob ? out.logprob(row.logprob) : out.null();
  out.end_array().key("top_logprobs").begin_array();
  for (const Row& row : rows_) {
    if (!row.has_logprob) {
      out.null();
      continue;
    }
    out.begin_object();
    std::set<std::string> seen;  // tokens of different bytes can have one name
    for (const TokenLogprob& each : row.top) {
      const std::string name = names_.name(each.id);
      if (seen.insert(name).second) out.key(name).logprob(each.logprob);
    }
    out.end_object();
  }
  out.end_array().key("text_offset").begin_array();
  for (const Row& row : rows_) out.value(row.offset);
  out.end_array().end_object();
  rows_.clear();
}

void write_prompt_logprobs(JsonWriter& out, const Choice& choice, const TokenNames& names) {
  out.begin_array().null();
  const auto entry = [&](std::int32_t id, float logprob, std::int32_t rank) {
    out.key(std::to_string(id)).begin_object().key("logprob").logprob(logprob);
    out.field("rank", rank).field("decoded_token", names.name(id)).end_object();
  };
  for (std::size_t i = 0; i < choice.prompt_logprobs.size(); ++i) {
    const std::int32_t id = choice.prompt_ids[i + 1];
    const bool has_rank = choice.detail && i < choice.detail->ranks.size();
    out.begin_object();
    entry(id, choice.prompt_logprobs[i], has_rank ? choice.detail->ranks[i] : 0);
    if (choice.detail && i < choice.detail->top.size()) {
      const auto& top = choice.detail->top[i];
      for (std::size_t rank = 0; rank < top.size(); ++rank) {
        if (top[rank].id != id) {
          entry(top[rank].id, top[rank].logprob, static_cast<std::int32_t>(rank) + 1);
        }
      }
    }
    out.end_object();
  }
  out.end_array();
}

// ------------------------------------------------------------------------------ routed experts

RoutingShape routing_shape(const std::string& model_directory) {
  std::ifstream file(model_directory + "/config.json", std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  JsonDocument document;
  RoutingShape shape;
  if (!file || JsonDocument::parse(content.str(), document)) return shape;
  for (const auto& [name, value] : document.root().members()) {
    const std::int64_t number = value.integer().value_or(0);
    if (name == "num_hidden_layers") shape.layers = number;
    if (name == "num_experts_per_tok" || name == "experts_per_token") {
      shape.experts_per_token = number;
    }
  }
  return shape;
}

std::string routed_experts_npy(const Choice& choice, const RoutingShape& shape) {
  const std::vector<std::int16_t> all = all_routed(choice);
  const auto row = static_cast<std::size_t>(shape.layers * shape.experts_per_token);
  std::string header = fmt::format(
      "{{'descr': '<i2', 'fortran_order': False, 'shape': ({}, {}, {}), }}",
      row == 0 ? 0 : all.size() / row, shape.layers, shape.experts_per_token);
  // Magic, version and length are 10 bytes; the whole is a multiple of 64 that ends with a newline.
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() & 255);
  bytes += static_cast<char>(header.size() >> 8);
  bytes += header;
  bytes += bytes_of(all.data(), all.size() * sizeof(std::int16_t));
  return base64(bytes);
}

std::string routed_experts_int32(const Choice& choice) {
  const std::vector<std::int16_t> all = all_routed(choice);
  const std::vector<std::int32_t> wide(all.begin(), all.end());
  return base64(bytes_of(wide.data(), wide.size() * sizeof(std::int32_t)));
}

}  // namespace holdfast::serve
