// What any server may answer to a load: the response as a parser gets it, in pieces whose size the
// input chooses; the events in its body; the JSON in them. However it is cut, the same comes out.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "loadgen/http_response.h"
#include "loadgen/outcome.h"
#include "loadgen/sse.h"

namespace {

using namespace holdfast;
using namespace holdfast::loadgen;

struct Seen {
  bool whole = false;  // the response came to its end without an error
  int status = 0;
  std::string body;
  std::vector<std::string> events;
  Outcome outcome;
};

Seen read(std::string_view bytes, std::size_t piece) {
  Seen seen;
  ResponseParser response;
  SseParser sse;
  static OutcomeReader reader;  // as all streams of a run share one
  Status failed;
  const auto event = [&](std::string_view data) {
    seen.events.emplace_back(data);
    if (data != "[DONE]" && failed.ok()) failed = reader.read_event(data, 1.0, seen.outcome);
  };
  const auto body = [&](std::string_view part) {
    seen.body += part;
    static_cast<void>(sse.push(part, event));
  };
  for (std::size_t at = 0; at < bytes.size() && !response.complete(); at += piece) {
    const std::string_view next = bytes.substr(at, piece);
    const auto taken = response.push(next, body);
    if (!taken.ok()) return seen;
    HF_ASSERT(*taken <= next.size(), "no more is taken than there is");
    HF_ASSERT(*taken == next.size() || response.complete(), "the rest is another response's");
  }
  seen.whole = response.complete() || response.end_of_connection().ok();
  seen.status = response.status();
  if (seen.whole) static_cast<void>(reader.error_text(seen.status, seen.body));
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  const Seen whole = read(bytes, std::max<std::size_t>(bytes.size(), 1));
  const Seen cut = read(bytes, 1 + data[0] % 32);
  HF_ASSERT(whole.whole == cut.whole, "where it is cut does not decide whether it is a response");
  if (!whole.whole) return 0;
  HF_ASSERT(whole.status == cut.status && whole.body == cut.body, "the same response");
  HF_ASSERT(whole.events == cut.events, "the same events");
  HF_ASSERT(whole.outcome.ids == cut.outcome.ids && whole.outcome.error == cut.outcome.error &&
                whole.outcome.spans == cut.outcome.spans, "the same outcome");
  return 0;
}
