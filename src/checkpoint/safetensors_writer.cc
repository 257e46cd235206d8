#include <fcntl.h>
#include <simdjson.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>

#include "base/error.h"
#include "checkpoint/safetensors.h"

namespace holdfast::checkpoint {
namespace {

constexpr std::size_t kHeaderAlignment = 8;

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

Status check_name(const std::string& name, std::set<std::string_view>& seen) {
  const bool named = !name.empty() && name.size() <= kMaxTensorNameBytes &&
                     name != "__metadata__" && simdjson::validate_utf8(name.data(), name.size());
  if (!named) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a tensor's name is \"{}\", expected 1 to {} bytes of UTF-8 that are not "
                      "__metadata__",
                      name.substr(0, kMaxTensorNameBytes), kMaxTensorNameBytes);
  }
  if (!seen.insert(name).second) {
    return make_error(ErrorCode::kInvalidArgument, "tensor {} is given twice", name);
  }
  return {};
}

Status check_size(const TensorToWrite& tensor) {
  HF_ASSIGN(const std::size_t bytes, tensor::byte_size(tensor.dtype, tensor.shape));
  if (bytes != tensor.data.size()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "tensor {}: {} of shape {} takes {} bytes, {} are given", tensor.name,
                      tensor::dtype_name(tensor.dtype), tensor.shape.to_string(), bytes,
                      tensor.data.size());
  }
  return {};
}

std::string header_text(std::span<const TensorEntry> tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  const auto begin_field = [&text](std::string_view key) {
    if (text.size() > 1) text += ',';
    append_json_string(text, key);
    text += ':';
  };
  if (!metadata.empty()) {
    begin_field("__metadata__");
    char separator = '{';
    for (const auto& [key, value] : metadata) {
      text += separator;
      append_json_string(text, key);
      text += ':';
      append_json_string(text, value);
      separator = ',';
    }
    text += '}';
  }
  for (const TensorEntry& tensor : tensors) {
    begin_field(tensor.name);
    std::string shape = tensor.shape.to_string();
    shape.erase(std::remove(shape.begin(), shape.end(), ' '), shape.end());
    text += fmt::format(R"({{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                        tensor::safetensors_dtype_name(tensor.dtype), shape, tensor.begin,
                        tensor.end);
  }
  text += '}';
  while (text.size() % kHeaderAlignment != 0) text += ' ';
  return text;
}

// A file beside `path` that becomes `path` on commit and vanishes otherwise.
class PendingFile {
 public:
  static Result<PendingFile> create(const std::string& path) {
    std::string temporary = path + ".XXXXXX";
    FileDescriptor fd(::mkstemp(temporary.data()));
    if (fd.get() < 0) return os_error(path, "cannot create a file beside it", errno);
    PendingFile pending(path, std::move(temporary), std::move(fd));
    // mkstemp makes the file private to its owner; a checkpoint is for other programs too.
    if (::fchmod(pending.fd_.get(), 0644) != 0) return os_error(path, "cannot set its mode", errno);
    return pending;
  }
  PendingFile(PendingFile&& other) noexcept
      : path_(std::move(other.path_)),
        temporary_(std::exchange(other.temporary_, {})),
        fd_(std::move(other.fd_)) {}
  ~PendingFile() {
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }

  Status write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t done = ::write(fd_.get(), bytes.data(), bytes.size());
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) return os_error(path_, "cannot write", errno);
      bytes = bytes.subspan(static_cast<std::size_t>(done));
    }
    return {};
  }

  Status commit() {
    if (::fsync(fd_.get()) != 0) return os_error(path_, "cannot flush", errno);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
      return os_error(path_, "cannot rename the finished file", errno);
    }
    temporary_.clear();
    // The new name is durable only once its directory is.
    const std::filesystem::path above = std::filesystem::path(path_).parent_path();
    const std::string directory = above.empty() ? std::string(".") : above.string();
    const FileDescriptor parent(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (parent.get() < 0 || ::fsync(parent.get()) != 0) {
      return os_error(directory, "cannot flush", errno);
    }
    return {};
  }

 private:
  PendingFile(std::string path, std::string temporary, FileDescriptor fd)
      : path_(std::move(path)), temporary_(std::move(temporary)), fd_(std::move(fd)) {}

  std::string path_;
  std::string temporary_;
  FileDescriptor fd_;
};

}  // namespace

Result<std::vector<std::byte>> make_safetensors_head(
    const std::string& path, std::span<const TensorEntry> tensors,
    const std::map<std::string, std::string>& metadata) {
  std::set<std::string_view> seen;
  for (const TensorEntry& tensor : tensors) {
    const auto status = check_name(tensor.name, seen);
    if (!status.ok()) return status.error().with_context(path);
  }
  const std::string text = header_text(tensors, metadata);
  const std::uint64_t length = text.size();
  std::vector<std::byte> head(sizeof(length) + text.size());
  std::memcpy(head.data(), &length, sizeof(length));
  std::memcpy(head.data() + sizeof(length), text.data(), text.size());
  // The reader's own verdict: what holdfast writes, holdfast must open (alignment, names, sizes).
  const std::uint64_t data_bytes = tensors.empty() ? 0 : tensors.back().end;
  const auto readable = parse_safetensors_header(head, head.size() + data_bytes, path);
  if (!readable.ok()) return Error(ErrorCode::kInvalidArgument, readable.error().message());
  return head;
}

Status write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                         const std::map<std::string, std::string>& metadata) {
  std::vector<TensorEntry> entries;
  std::uint64_t end = 0;
  for (const TensorToWrite& tensor : tensors) {
    const auto status = check_size(tensor);
    if (!status.ok()) return status.error().with_context(path);
    const std::uint64_t begin = end;
    end += tensor.data.size();
    entries.push_back({tensor.name, tensor.dtype, tensor.shape, begin, end});
  }
  HF_ASSIGN(const std::vector<std::byte> head, make_safetensors_head(path, entries, metadata));
  HF_ASSIGN(PendingFile file, PendingFile::create(path));
  HF_TRY(file.write(head));
  for (const TensorToWrite& tensor : tensors) HF_TRY(file.write(tensor.data));
  return file.commit();
}

}  // namespace holdfast::checkpoint
