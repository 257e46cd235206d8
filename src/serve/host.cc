#include "serve/host.h"

#include <utility>

#include "serve/host_loop.h"

namespace holdfast::serve {
namespace {

std::int64_t unix_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

}  // namespace

EngineHost::EngineHost(std::unique_ptr<HostLoop> loop) : loop_(std::move(loop)) {}
EngineHost::~EngineHost() = default;

Result<std::unique_ptr<EngineHost>> EngineHost::open(EngineOptions options,
                                                     HostObserver observer) {
  HF_ASSIGN(auto loop, HostLoop::open(std::move(options), std::move(observer)));
  return std::unique_ptr<EngineHost>(new EngineHost(std::move(loop)));
}

// --- requests

void EngineHost::submit(Request request, Sink sink,
                        std::function<void(Result<RequestId>)> accepted) {
  loop_->post([request = std::move(request), sink = std::move(sink),
               accepted = std::move(accepted)](HostLoop& loop) mutable {
    loop.submit(std::move(request), std::move(sink), accepted);
  });
}

void EngineHost::cancel(RequestId request) {
  loop_->post([request](HostLoop& loop) {
    static_cast<void>(loop.engine().cancel(request));  // one that has ended is unknown
  });
}

void EngineHost::cancel_all(std::function<void(std::size_t)> done) {
  loop_->post([done = std::move(done)](HostLoop& loop) { done(loop.cancel_all()); });
}

// --- pausing

void EngineHost::pause(PauseMode mode, std::function<void()> done) {
  loop_->post([mode, done = std::move(done)](HostLoop& loop) mutable {
    loop.pause(mode, std::move(done));
  });
}

void EngineHost::resume(std::function<void(Status)> done) {
  loop_->post([done = std::move(done)](HostLoop& loop) { done(loop.resume()); });
}

void EngineHost::sleep(std::function<void()> done) {
  loop_->post([done = std::move(done)](HostLoop& loop) {
    loop.sleep();
    done();
  });
}

void EngineHost::wake(std::function<void()> done) {
  loop_->post([done = std::move(done)](HostLoop& loop) {
    loop.wake_up();
    done();
  });
}

// --- reloads

void EngineHost::reload(std::string directory, ReloadOptions options,
                        std::function<void(Result<std::uint64_t>)> begun,
                        std::function<void(Result<ReloadReport>)> done) {
  loop_->post([directory = std::move(directory), options = std::move(options),
               begun = std::move(begun), done = std::move(done)](HostLoop& loop) mutable {
    loop.make_room(options.replace_open);
    const std::int64_t now = unix_ms();
    const Status started = loop.engine().begin_reload(directory, options);
    if (!started.ok()) return begun(started.error());
    const std::uint64_t id = loop.engine().reload_status().id;
    loop.expect_reload({.id = id,
                        .began_unix_ms = now,
                        .done = std::move(done)});
    begun(id);
  });
}

void EngineHost::begin_push(std::vector<TensorInfo> tensors, ReloadOptions options,
                            std::function<void(Result<std::uint64_t>)> begun,
                            std::function<void(Result<ReloadReport>)> done) {
  loop_->post([tensors = std::move(tensors), options = std::move(options),
               begun = std::move(begun), done = std::move(done)](HostLoop& loop) mutable {
    loop.make_room(options.replace_open);
    const std::int64_t now = unix_ms();
    const Result<std::uint64_t> id = loop.engine().begin_push(std::move(tensors), options);
    if (id.ok()) {
      loop.expect_reload({.id = *id,
                          .began_unix_ms = now,
                          .done = std::move(done)});
    }
    begun(id);
  });
}

Status EngineHost::push(std::uint64_t reload_id, const std::string& tensor,
                        std::uint64_t offset_bytes, std::span<const std::byte> bytes,
                        const std::string& dtype) {
  return loop_->engine().push(reload_id, tensor, offset_bytes, bytes, dtype);
}

Status EngineHost::end_push(std::uint64_t reload_id, const std::string& version) {
  return loop_->engine().end_push(reload_id, version);
}

void EngineHost::abort_reload(std::uint64_t reload_id, std::function<void(Status)> done) {
  loop_->post([reload_id, done = std::move(done)](HostLoop& loop) {
    done(loop.abort_reload(reload_id));
  });
}

void EngineHost::set_version(std::string version, std::function<void()> done) {
  loop_->post([version = std::move(version), done = std::move(done)](HostLoop& loop) mutable {
    loop.set_version(std::move(version));
    done();
  });
}

void EngineHost::post(std::function<void(Engine&)> task) {
  loop_->post([task = std::move(task)](HostLoop& loop) { task(loop.engine()); });
}

void EngineHost::drain(std::function<void()> done) {
  loop_->post([done = std::move(done)](HostLoop& loop) mutable { loop.drain(std::move(done)); });
}

// --- what it is

HostSnapshot EngineHost::snapshot() const { return loop_->snapshot(); }
Status EngineHost::check_loadable(std::span<const TensorInfo> tensors) const {
  return loop_->engine().check_loadable(tensors);
}
ReloadStatus EngineHost::reload_status() const { return loop_->engine().reload_status(); }
const Tokenizer& EngineHost::tokenizer() const { return loop_->engine().tokenizer(); }
std::int64_t EngineHost::max_context() const { return loop_->engine().max_context(); }
std::int64_t EngineHost::vocab_size() const { return loop_->vocab_size(); }
std::vector<std::int32_t> EngineHost::eos_token_ids() const { return loop_->eos_token_ids(); }
const std::string& EngineHost::model_directory() const { return loop_->model_directory(); }

}  // namespace holdfast::serve
