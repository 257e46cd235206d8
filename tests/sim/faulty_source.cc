#include "faulty_source.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"

namespace holdfast::sim {

using reload::SourceTensor;
using tensor::DType;

FaultySource::FaultySource(std::unique_ptr<reload::Source> inner, std::string directory,
                           std::optional<SourceFault> fault, const SourceHooks& hooks, bool& fired)
    : inner_(std::move(inner)),
      directory_(std::move(directory)),
      fault_(fault),
      hooks_(hooks),
      fired_(fired),
      config_(inner_->config()) {
  for (const SourceTensor& tensor : inner_->tensors()) {
    inner_index_.push_back(tensors_.size());
    tensors_.push_back(tensor);
  }
  if (fault_) forge_manifest();
}

void FaultySource::forge_manifest() {
  const std::size_t chosen = fault_->choice % tensors_.size();
  SourceTensor& tensor = tensors_[chosen];
  const auto at = static_cast<std::ptrdiff_t>(chosen);
  fired_ = true;
  switch (fault_->kind) {
    case FaultKind::kTensorMissing:
      tensors_.erase(tensors_.begin() + at);
      inner_index_.erase(inner_index_.begin() + at);
      return;
    case FaultKind::kTensorUnknown:
      tensors_.push_back(tensor);
      tensors_.back().name += "_extra";
      inner_index_.push_back(chosen);
      return;
    case FaultKind::kTensorTwice:
      tensors_.push_back(SourceTensor(tensor));
      inner_index_.push_back(chosen);
      return;
    case FaultKind::kWrongDtype:
      tensor.dtype = tensor.dtype == DType::kU8 ? DType::kBF16 : DType::kU8;
      return;
    case FaultKind::kWrongShape: tensor.shape = tensor::Shape{tensor.shape[0] + 1}; return;
    case FaultKind::kWrongConfig:
      if (fault_->choice % 2 == 0) config_.swiglu.limit += 0.5f;
      if (fault_->choice % 2 == 1) config_.rope.theta += 1;
      return;
    default: fired_ = false;
  }
}

bool FaultySource::due(FaultKind kind) const {
  return fault_ && fault_->kind == kind && reads_ >= fault_->at_read;
}

std::string FaultySource::chosen_file() const {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files.at(fault_->choice % files.size());
}

Status FaultySource::strike_before() {
  if (due(FaultKind::kSourceDies)) {
    fired_ = true;
    return make_error(ErrorCode::kIo, "simulated: the source died at read {}", fault_->at_read);
  }
  if (fired_) return {};
  if (due(FaultKind::kStallUntilCancel)) {
    fired_ = true;
    hooks_.abort();
  }
  if (due(FaultKind::kStallUntilDeadline)) {
    fired_ = true;
    hooks_.pass_deadline();
  }
  if (due(FaultKind::kFileReplaced)) {
    fired_ = true;
    const std::string file = chosen_file();
    std::filesystem::copy_file(file, file + ".new");
    std::filesystem::rename(file + ".new", file);
  }
  if (due(FaultKind::kFileTruncated)) {
    fired_ = true;
    const std::string file = chosen_file();
    const std::uint64_t bytes = std::filesystem::file_size(file);
    std::filesystem::resize_file(file, (fault_->choice >> 8) % bytes);
  }
  return {};
}

void FaultySource::spoil(std::size_t index, std::uint64_t offset, std::span<std::byte> to) {
  const SourceTensor& tensor = tensors_[index];
  const bool is_bf16 = tensor.dtype == DType::kBF16 && offset % 2 == 0 && to.size() % 2 == 0;
  const bool is_nan = due(FaultKind::kNanInWeights);
  if (is_bf16 && (is_nan || due(FaultKind::kInfinityInWeights))) {
    const std::size_t element = (fault_->choice >> 8) % (to.size() / 2);
    to[2 * element] = is_nan ? std::byte{0xC1} : std::byte{0x80};
    to[2 * element + 1] = fault_->choice % 2 == 0 ? std::byte{0x7F} : std::byte{0xFF};
    fired_ = true;
  }
  if (due(FaultKind::kGarbageBytes)) {
    // The lowest bit of an even byte: no mantissa becomes a NaN, no exponent leaves its range.
    const std::size_t byte = (fault_->choice >> 8) % to.size();
    to[byte - byte % 2] ^= std::byte{1};
    fired_ = true;
  }
  if (due(FaultKind::kE8M0Nan) && tensor.name.ends_with("_scales")) {
    to[(fault_->choice >> 8) % to.size()] = std::byte{0xFF};
    fired_ = true;
  }
}

Status FaultySource::read(std::size_t index, std::uint64_t offset, std::span<std::byte> to) {
  hooks_.on_read(reads_);
  HF_TRY(strike_before());
  if (due(FaultKind::kShortRead) && !fired_) {
    fired_ = true;
    const std::size_t bytes = (fault_->choice >> 8) % to.size();
    HF_TRY(inner_->read(inner_index_[index], offset, to.first(bytes)));
    return make_error(ErrorCode::kIo, "simulated: {} of {} bytes came", bytes, to.size());
  }
  HF_TRY(inner_->read(inner_index_[index], offset, to));
  if (!fired_) spoil(index, offset, to);
  ++reads_;
  return {};
}

}  // namespace holdfast::sim
