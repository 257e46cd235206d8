#include "holdfast/tensor_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"

namespace holdfast {
namespace {

// Values are stored as they lie in memory, and the format is little-endian.
static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 62;
constexpr std::size_t kHeaderAlignment = 8;  // the data section begins at a multiple of it

struct Extent {
  std::string name;
  std::uint64_t begin = 0;  // bytes, from the start of the data section
  std::uint64_t elements = 0;
  std::uint64_t written = 0;
};

Result<std::uint64_t> element_count(const TensorFileEntry& entry) {
  std::uint64_t count = 1;
  for (const std::int64_t dimension : entry.shape) {
    if (dimension < 0) {
      return make_error(ErrorCode::kInvalidArgument, "tensor {}: dimension {} is negative",
                        entry.name, dimension);
    }
    if (__builtin_mul_overflow(count, static_cast<std::uint64_t>(dimension), &count) ||
        count > kMaxFileBytes / sizeof(float)) {
      return make_error(ErrorCode::kInvalidArgument, "tensor {}: more than {} bytes", entry.name,
                        kMaxFileBytes);
    }
  }
  return count;
}

struct Layout {
  std::string header;  // with its length in front, padded
  std::vector<Extent> extents;
  std::uint64_t data_bytes = 0;
};

Result<Layout> lay_out(const std::vector<TensorFileEntry>& entries) {
  if (entries.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "a tensor file needs at least one tensor");
  }
  Layout layout;
  std::set<std::string_view> names;
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  for (const TensorFileEntry& entry : entries) {
    if (!names.insert(entry.name).second || entry.name == "__metadata__") {
      return make_error(ErrorCode::kInvalidArgument, "tensor {} stands twice, or is reserved",
                        entry.name);
    }
    HF_ASSIGN(const std::uint64_t elements, element_count(entry));
    const std::uint64_t begin = layout.data_bytes;
    layout.data_bytes += elements * sizeof(float);
    if (layout.data_bytes > kMaxFileBytes) {
      return make_error(ErrorCode::kInvalidArgument, "tensor {}: the file has more than {} bytes",
                        entry.name, kMaxFileBytes);
    }
    header[entry.name] = {{"dtype", "F32"},
                          {"shape", entry.shape},
                          {"data_offsets", {begin, layout.data_bytes}}};
    layout.extents.push_back({entry.name, begin, elements, 0});
  }
  std::string json = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  json.append((kHeaderAlignment - json.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  const std::uint64_t length = json.size();
  layout.header.resize(sizeof(length));
  std::memcpy(layout.header.data(), &length, sizeof(length));
  layout.header += json;
  return layout;
}

Error os_error(const std::string& path, int code) {
  return make_error(code == ENOSPC ? ErrorCode::kResourceExhausted : ErrorCode::kIo, "{}: {}",
                    path, std::strerror(code));
}

}  // namespace

struct TensorFileWriter::Impl {
  std::string path, temporary;
  int fd = -1;
  std::uint64_t data_begin = 0;
  std::vector<Extent> extents;

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (fd >= 0) ::close(fd);
    if (!temporary.empty()) ::unlink(temporary.c_str());
  }

  Status store(std::uint64_t offset, const char* bytes, std::size_t count) const {
    while (count > 0) {
      const ssize_t n = ::pwrite(fd, bytes, count, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return os_error(path, errno);
      bytes += n;
      offset += static_cast<std::uint64_t>(n);
      count -= static_cast<std::size_t>(n);
    }
    return {};
  }
};

TensorFileWriter::TensorFileWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TensorFileWriter::~TensorFileWriter() = default;

Result<std::unique_ptr<TensorFileWriter>> TensorFileWriter::create(
    const std::string& path, const std::vector<TensorFileEntry>& entries) {
  HF_ASSIGN(Layout layout, lay_out(entries));
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  std::string temporary = fmt::format("{}.{}.tmp", path, ::getpid());
  impl->fd = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (impl->fd < 0) return os_error(path, errno);
  impl->temporary = std::move(temporary);
  impl->data_begin = layout.header.size();
  impl->extents = std::move(layout.extents);
  const std::uint64_t file_bytes = impl->data_begin + layout.data_bytes;
  if (const int code = ::posix_fallocate(impl->fd, 0, static_cast<off_t>(file_bytes)); code != 0) {
    return os_error(path, code);
  }
  HF_TRY(impl->store(0, layout.header.data(), layout.header.size()));
  return std::unique_ptr<TensorFileWriter>(new TensorFileWriter(std::move(impl)));
}

Status TensorFileWriter::write(std::size_t index, std::uint64_t first,
                               std::span<const float> values) {
  if (index >= impl_->extents.size()) {
    return make_error(ErrorCode::kInvalidArgument, "{}: tensor {} of {}", impl_->path, index,
                      impl_->extents.size());
  }
  Extent& extent = impl_->extents[index];
  if (first > extent.elements || values.size() > extent.elements - first) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: tensor {}: elements {} to {} were given, it has {}", impl_->path,
                      extent.name, first, first + values.size(), extent.elements);
  }
  const std::uint64_t offset = impl_->data_begin + extent.begin + first * sizeof(float);
  HF_TRY(impl_->store(offset, reinterpret_cast<const char*>(values.data()), values.size_bytes()));
  extent.written += values.size();
  return {};
}

Status TensorFileWriter::finish() {
  for (const Extent& extent : impl_->extents) {
    if (extent.written >= extent.elements) continue;
    return make_error(ErrorCode::kFailedPrecondition,
                      "{}: tensor {}: {} of its {} elements were written", impl_->path,
                      extent.name, extent.written, extent.elements);
  }
  if (::fsync(impl_->fd) != 0) return os_error(impl_->path, errno);
  const int fd = std::exchange(impl_->fd, -1);
  if (::close(fd) != 0) return os_error(impl_->path, errno);
  if (::rename(impl_->temporary.c_str(), impl_->path.c_str()) != 0) {
    return os_error(impl_->path, errno);
  }
  impl_->temporary.clear();
  return {};
}

}  // namespace holdfast
