#include "checkpoint/safetensors.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "base/error.h"

namespace holdfast::checkpoint {
namespace {

// The header is read, not looked at through the mapping: a file that shrinks meanwhile is then an
// error and no fault.
Result<std::vector<std::byte>> read_head(const OpenedFile& file, const std::string& path) {
  constexpr std::uint64_t kLengthBytes = 8;
  std::vector<std::byte> head(static_cast<std::size_t>(
      std::min(kLengthBytes, file.identity.bytes)));
  HF_TRY(read_exactly(file.fd.get(), 0, head, path));
  if (head.size() < kLengthBytes) return head;
  std::uint64_t length = 0;
  std::memcpy(&length, head.data(), kLengthBytes);
  // parse_safetensors_header refuses such lengths; don't allocate for them.
  if (length > kMaxHeaderBytes || length > file.identity.bytes - kLengthBytes) return head;
  head.resize(static_cast<std::size_t>(kLengthBytes + length));
  HF_TRY(read_exactly(file.fd.get(), 0, head, path));
  return head;
}

}  // namespace

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::open(const std::string& path) {
  HF_ASSIGN(OpenedFile opened, open_regular(path));
  HF_ASSIGN(const std::vector<std::byte> head, read_head(opened, path));
  HF_ASSIGN(SafetensorsHeader header,
            parse_safetensors_header(head, opened.identity.bytes, path));
  const auto bytes = static_cast<std::size_t>(opened.identity.bytes);
  void* address = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, opened.fd.get(), 0);
  if (address == MAP_FAILED) return os_error(path, "cannot map", errno);

  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->path_ = path;
  file->mapping_ = {static_cast<const std::byte*>(address), bytes};
  file->opened_ = std::move(opened);
  file->header_ = std::move(header);
  const auto& tensors = file->header_.tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    file->index_by_name_.emplace(tensors[i].name, i);
  }
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_.empty()) return;
  ::munmap(const_cast<std::byte*>(mapping_.data()), mapping_.size());
}

const TensorEntry* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_by_name_.find(name);
  return found == index_by_name_.end() ? nullptr : &header_.tensors[found->second];
}

std::span<const std::byte> SafetensorsFile::data(const TensorEntry& entry) const {
  HF_ASSERT(entry.begin <= entry.end && entry.end <= mapping_.size() - header_.data_begin,
            "the entry is not of this file");
  return mapping_.subspan(static_cast<std::size_t>(header_.data_begin + entry.begin),
                          static_cast<std::size_t>(entry.end - entry.begin));
}

Status SafetensorsFile::read(const TensorEntry& entry, std::uint64_t offset,
                             std::span<std::byte> to) const {
  const std::uint64_t bytes = entry.end - entry.begin;
  if (offset > bytes || to.size() > bytes - offset) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: tensor {} has {} bytes, asked for {} from byte {}", path_, entry.name,
                      bytes, to.size(), offset);
  }
  const std::uint64_t from = header_.data_begin + entry.begin + offset;
  auto status = read_exactly(opened_.fd.get(), from, to, path_);
  if (status.ok()) return {};
  return status.error().with_context(fmt::format("tensor {}", entry.name));
}

Status SafetensorsFile::check_unchanged() const {
  const auto now = identify(path_);
  if (!now.ok()) return Error(ErrorCode::kIo, now.error().message());
  if (*now == opened_.identity) return {};
  return make_error(ErrorCode::kIo,
                    "{}: replaced or changed since it was opened: inode {}, {} bytes, mtime {} ns; "
                    "now inode {}, {} bytes, mtime {} ns",
                    path_, opened_.identity.inode, opened_.identity.bytes,
                    opened_.identity.mtime_ns, now->inode, now->bytes, now->mtime_ns);
}

}  // namespace holdfast::checkpoint
