#include "serve/weight_upload.h"

#include <utility>

#include "base/digest.h"
#include "base/error.h"
#include "serve/control_support.h"
#include "serve/safetensors_stream.h"

namespace holdfast::serve {
namespace {

constexpr std::string_view kDigestPrefix = "xxh3-128=";

class WeightUpload final : public Upload {
 public:
  WeightUpload(EngineHost& host, UploadTarget target, std::string promised,
               ResponderPtr responder, std::uint64_t max_bytes)
      : host_(host),
        target_(std::move(target)),
        promised_(std::move(promised)),
        responder_(std::move(responder)),
        max_bytes_(max_bytes),
        stream_({.on_header = [this](const auto& tensors) { return on_header(tensors); },
                 .on_bytes =
                     [this](const TensorInfo& tensor, std::uint64_t offset,
                            std::span<const std::byte> bytes) {
                       return host_.push(*reload_, tensor.name, offset, bytes, tensor.dtype);
                     }}) {}

  bool data(std::span<const std::byte> bytes) override {
    const Status taken = take(bytes);
    if (taken.ok()) return true;
    end_badly(taken.error());
    return false;
  }

  void finish(const std::map<std::string, std::string>& trailers) override {
    const auto trailer = trailers.find(kDigestHeader);
    if (trailer != trailers.end()) promised_ = trailer->second;
    Status whole = stream_.finish();
    if (whole.ok()) whole = check_digest();
    if (!whole.ok()) return end_badly(whole.error());
    target_.complete(*reload_, std::move(responder_));
  }

  void gone() override {
    if (reload_) target_.fail(*reload_);
  }

 private:
  Status take(std::span<const std::byte> bytes) {
    if (bytes.size() > max_bytes_ - stream_.bytes_fed()) {
      return make_error(ErrorCode::kResourceExhausted,
                        "the upload is longer than {} bytes (max_upload_bytes)", max_bytes_);
    }
    digest_.add(bytes);
    return stream_.feed(bytes);
  }

  Status on_header(const std::vector<TensorInfo>& tensors) {
    HF_ASSIGN(reload_, target_.open(tensors));
    return {};
  }

  Status check_digest() const {
    if (promised_.empty()) return {};
    const std::string_view text = promised_;
    const auto promised = text.starts_with(kDigestPrefix)
                              ? base::digest_from_hex(text.substr(kDigestPrefix.size()))
                              : std::nullopt;
    if (!promised) {
      return make_error(ErrorCode::kInvalidArgument,
                        "X-Content-Digest is \"{}\", expected {}<32 hex digits>", promised_,
                        kDigestPrefix);
    }
    if (*promised == digest_.digest()) return {};
    return make_error(ErrorCode::kCorrupt, "the body has digest {}, X-Content-Digest promised {}",
                      digest_.digest().to_hex(), promised->to_hex());
  }

  void end_badly(const Error& error) {
    if (reload_) target_.fail(*reload_);
    ApiError answer = update_error(error);
    if (error.code() == ErrorCode::kResourceExhausted) answer.status = 413;
    if (error.code() == ErrorCode::kNotFound) answer.status = 409;
    reply_error(*responder_, answer);
  }

  EngineHost& host_;
  const UploadTarget target_;
  std::string promised_;
  ResponderPtr responder_;
  const std::uint64_t max_bytes_;
  base::DigestStream digest_;
  std::optional<std::uint64_t> reload_;
  SafetensorsStream stream_;
};

}  // namespace

std::unique_ptr<Upload> make_weight_upload(EngineHost& host, UploadTarget target,
                                           const HttpRequest& request, ResponderPtr responder,
                                           std::uint64_t max_bytes) {
  const auto header = request.headers.find(kDigestHeader);
  return std::make_unique<WeightUpload>(
      host, std::move(target), header == request.headers.end() ? std::string() : header->second,
      std::move(responder), max_bytes);
}

}  // namespace holdfast::serve
