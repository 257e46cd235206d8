// The reloads whose bytes the caller pushes.
#include <utility>

#include "base/error.h"
#include "engine/push_manifest.h"
#include "engine/reloader.h"
#include "reload/plan.h"

namespace holdfast::engine {

namespace {

// A digest is of what the publisher has, and of a cast tensor nothing else is kept.
Status check_digests(const storage::Registry& registry, const reload::ReloadPlan& plan) {
  for (std::size_t i = 0; i < plan.feeds.size(); ++i) {
    const reload::ParameterFeed& feed = plan.feeds[i];
    if (!feed.cast_from || !feed.expected) continue;
    return make_error(ErrorCode::kUnsupported,
                      "tensor {} is cast as it is pushed, so its digest {} cannot be checked: "
                      "promise none, or push {}",
                      registry.parameters()[i].name, feed.expected->to_hex(),
                      tensor::dtype_name(registry.parameters()[i].dtype));
  }
  return {};
}

std::string awaited_text(const ReloadStatus& status) {
  std::string text = fmt::format("{} of {} bytes came, {} tensors are not whole: {}",
                                 status.bytes_arrived, status.bytes_expected,
                                 status.awaited_count, fmt::join(status.awaited, ", "));
  if (status.awaited_count > status.awaited.size()) text += ", ...";
  return text;
}

}  // namespace

Result<std::uint64_t> Reloader::begin_push(std::span<const TensorInfo> tensors,
                                           ReloadRequest request) {
  HF_TRY(make_room(request));
  if (thread_.joinable()) thread_.join();
  cancel_.store(false, std::memory_order_release);
  const std::int64_t deadline_ns = deadline_of(request);
  HF_ASSIGN(const auto source, make_push_source(registry_, live_, request, tensors));
  reload::PlanOptions options = request.plan;
  if (!request.digests_file.empty()) {
    HF_ASSIGN(options.expected_digests, read_digests(request.digests_file));
  }
  HF_ASSIGN(reload::ReloadPlan plan, reload::make_plan(registry_, live_, *source, options));
  HF_TRY(check_digests(registry_, plan));
  const std::string strategy(reload::commit_strategy_name(plan.strategy));
  const storage::TransactionId id = registry_.next_transaction_id();
  // One worker: the steps keep the other cores, and the pusher is the one.
  HF_ASSIGN(auto stream, registry_.device().create_stream(1));
  HF_ASSIGN(auto transaction, begin_transaction(request, id, deadline_ns, std::move(plan)));
  // From here on nothing fails.
  injector_.reset();
  deadline_ns_ = deadline_ns;
  {
    const std::lock_guard lock(mutex_);
    transaction_ = std::move(transaction);
    stream_ = std::move(stream);
    take_config(source->config());
    open_books(std::move(request), id);
    board_.expect(strategy, source->tensors());
  }
  board_.announce();
  if (!parts_.on_calling_thread) thread_ = std::thread([this] { run(); });
  return id.value;
}

// With the push lock held: whether bytes of that reload may come now.
Status Reloader::check_taking(std::uint64_t reload_id, const std::string& what) const {
  const ReloadStatus now = status();
  if (now.id != reload_id) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "{} for reload {}, which is not open: the latest is {} ({}); it came late",
                      what, reload_id, now.id, reload_phase_name(now.phase));
  }
  if (!now.pushed) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "{} for reload {}, which reads {} itself", what, reload_id, now.source);
  }
  if (now.phase == ReloadPhase::kStaging) return {};
  return make_error(ErrorCode::kFailedPrecondition,
                    "{} for reload {}, which takes nothing any more: it is {}{}{}", what,
                    reload_id, reload_phase_name(now.phase), now.error.empty() ? "" : ": ",
                    now.error);
}

// What came, counted in the dtype in which the plan expects it.
std::uint64_t Reloader::expected_bytes(const reload::Fragment& fragment,
                                       std::uint64_t bytes) const {
  const auto found = registry_.find_published(fragment.tensor);
  if (!fragment.dtype || !found) return bytes;
  const std::size_t index = found->parameter.index();
  const tensor::DType planned = transaction_->plan().feeds[index].cast_from.value_or(
      registry_.parameters()[index].dtype);
  return bytes * static_cast<std::uint64_t>(tensor::dtype_bits(planned)) /
         static_cast<std::uint64_t>(tensor::dtype_bits(*fragment.dtype));
}

Status Reloader::push_one(std::uint64_t reload_id, const reload::Fragment& fragment,
                          std::span<const std::byte> bytes) {
  const std::lock_guard push_lock(push_mutex_);
  HF_TRY(check_taking(reload_id, "bytes of tensor " + fragment.tensor));
  auto taken = transaction_->put(fragment, bytes, *stream_);
  if (taken.ok()) {
    board_.arrived(fragment.tensor, expected_bytes(fragment, bytes.size()));
  } else if (transaction_->state() == reload::TransactionState::kRolledBack) {
    const std::lock_guard lock(mutex_);
    finish(ReloadPhase::kFailed, taken.error());
  }
  return taken;
}

Status Reloader::push(std::uint64_t reload_id, const std::string& tensor,
                      std::uint64_t offset_bytes, std::span<const std::byte> bytes,
                      const std::string& dtype) {
  reload::Fragment fragment{.transaction = storage::TransactionId{reload_id},
                            .tensor = tensor,
                            .offset_bytes = offset_bytes,
                            .dtype = tensor::dtype_from_safetensors(dtype)};
  if (!dtype.empty() && !fragment.dtype) {
    return make_error(ErrorCode::kInvalidArgument, "tensor {} is pushed as dtype \"{}\"", tensor,
                      dtype);
  }
  auto taken = push_one(reload_id, fragment, bytes);
  board_.announce();
  return taken;
}

Status Reloader::stage_pushed() {
  const ReloadStatus now = status();
  if (now.bytes_arrived == 0) return make_error(ErrorCode::kCorrupt, "{}", awaited_text(now));
  const Status finished = transaction_->finish_staging(*stream_);
  if (!finished.ok()) {
    if (now.awaited_count == 0) return finished;
    return finished.error().with_context(awaited_text(now));
  }
  return transaction_->prepare();
}

Status Reloader::end_one(std::uint64_t reload_id, const std::string& version) {
  const std::lock_guard push_lock(push_mutex_);
  HF_TRY(check_taking(reload_id, "the end of the push"));
  if (!version.empty()) {
    HF_TRY(resolve_version(version));
    const std::lock_guard lock(mutex_);
    transaction_->set_label(version);
    request_.version = version;
    board_.relabel(version);
  }
  auto staged = stage_pushed();
  if (!staged.ok()) transaction_->abort(staged.error());
  stream_.reset();
  end_staging(staged);
  return staged;
}

Status Reloader::end_push(std::uint64_t reload_id, const std::string& version) {
  auto ended = end_one(reload_id, version);
  board_.announce();
  return ended;
}

}  // namespace holdfast::engine
