// WeightUpload: one HTTP body that is a safetensors file, pushed into a reload as it comes: at most
// the server's read-ahead and one element are held here. On threads of the upload pool.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serve/http.h"
#include "serve/rollout.h"

namespace holdfast::serve {

// "xxh3-128=<32 hex digits>" in the header or trailer X-Content-Digest: of the whole body. Checked
// before the tensors count; without it they are taken as they came.
inline constexpr const char* kDigestHeader = "x-content-digest";

// How an upload's tensors get into the engine, and how it ends.
struct UploadTarget {
  // Blocks. Gives the reload that the tensors of this body go to.
  std::function<Result<std::uint64_t>(const std::vector<TensorInfo>&)> open;
  // All bytes have come and are as promised; it answers.
  std::function<void(std::uint64_t reload_id, ResponderPtr responder)> complete;
  // They are not, or the client is gone: the reload must not go on. Blocks until it has ended and
  // is on record.
  std::function<void(std::uint64_t reload_id)> fail;
};

// Waits for what `start` gives to its callback on another thread. On the upload pool only.
template <typename T, typename Start>
Result<T> wait_for(const Start& start) {
  std::promise<Result<T>> promise;
  auto answer = promise.get_future();
  start([&promise](Result<T> result) { promise.set_value(std::move(result)); });
  return answer.get();
}

std::unique_ptr<Upload> make_weight_upload(EngineHost& host, UploadTarget target,
                                           const HttpRequest& request, ResponderPtr responder,
                                           std::uint64_t max_bytes);

}  // namespace holdfast::serve
