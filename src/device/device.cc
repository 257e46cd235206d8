#include "device/device.h"

#include <algorithm>

#include "base/error.h"

namespace holdfast::device {
namespace {

Status check_manifest(const Graph& graph, const AddressHome& home) {
  const AddressManifest& manifest = graph.manifest();
  for (const ManifestEntry& entry : manifest.entries) {
    if (home.contains(entry.range)) continue;
    return make_error(ErrorCode::kMismatch,
                      "graph {}: node {} ({}), operand {}: {} bytes at {:#x} do not lie in one "
                      "live slot: {}; every operand of a captured kernel must be a slot of the "
                      "registry",
                      graph.label(), entry.node, manifest.nodes[entry.node], entry.role,
                      entry.range.bytes, entry.range.begin, home.describe(entry.range.begin));
  }
  return {};
}

// What is read back at a time from memory that the host cannot look into.
constexpr std::size_t kReadBackBytes = std::size_t{4} << 20;

// Shows the range to `see(offset, bytes)` piece by piece, in order, until that returns false.
template <typename See>
Status for_each_piece(Device& device, Memory range, std::vector<std::byte>& buffer, See&& see) {
  if (device.host_addressable()) {
    see(std::size_t{0}, std::span<const std::byte>(range.address, range.bytes));
    return {};
  }
  buffer.resize(kReadBackBytes);
  for (std::size_t done = 0; done < range.bytes; done += kReadBackBytes) {
    const auto piece = std::span(buffer).first(std::min(kReadBackBytes, range.bytes - done));
    HF_TRY(device.read(piece.data(), range.address + done, piece.size()));
    if (!see(done, std::span<const std::byte>(piece))) return {};
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Upload>> Device::create_upload() { return make_plain_upload(*this); }

Result<std::shared_ptr<const void>> Device::page_lock(std::span<std::byte>) {
  return make_error(ErrorCode::kUnsupported, "{} fetches no host memory", name());
}

Status Device::swap(std::byte*, std::byte*, std::size_t) {
  return make_error(ErrorCode::kUnsupported, "{} swaps no ranges by itself", name());
}

Result<std::vector<base::Digest>> Device::digests(std::span<const Memory> ranges) {
  std::vector<base::Digest> digests;
  std::vector<std::byte> buffer;
  for (const Memory& range : ranges) {
    base::TreeDigestStream stream;
    HF_TRY(for_each_piece(*this, range, buffer, [&](std::size_t, auto bytes) {
      stream.add(bytes);
      return true;
    }));
    digests.push_back(stream.digest());
  }
  return digests;
}

Result<std::vector<std::optional<std::size_t>>> Device::find_lanes(
    std::span<const LaneSearch> searches) {
  std::vector<std::optional<std::size_t>> found;
  std::vector<std::byte> buffer;
  for (const LaneSearch& search : searches) {
    std::optional<std::size_t>& first = found.emplace_back();
    HF_TRY(for_each_piece(*this, search.range, buffer, [&](std::size_t offset, auto bytes) {
      const auto at = find_lane(bytes, search.test);
      if (at) first = offset / search.test.width + *at;
      return !at.has_value();
    }));
  }
  return found;
}

Result<std::unique_ptr<Graph>> capture(Stream& stream, const AddressHome& home, std::string label,
                                       const std::function<Status()>& body) {
  if (!home.sealed()) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "capture of graph {} over a registry that is not sealed: its addresses could "
                      "still change; seal it first",
                      label);
  }
  if (stream.capturing()) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "capture of graph {} inside another capture on the same stream", label);
  }
  HF_TRY(stream.begin_capture());
  Status launched = body();
  // Whatever happened, the recording ends here, so the stream is usable again.
  auto ended = stream.end_capture(home, label);
  if (!launched.ok()) return launched.error().with_context("capture of graph " + label);
  HF_ASSIGN(std::unique_ptr<Graph> graph, std::move(ended));
  HF_TRY(check_manifest(*graph, home));
  HF_TRY(graph->check_parameters(home));
  return graph;
}

}  // namespace holdfast::device
