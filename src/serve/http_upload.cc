#include "serve/http_upload.h"

#include <utility>

namespace holdfast::serve {

UploadPool::UploadPool(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

UploadPool::~UploadPool() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void UploadPool::post(std::shared_ptr<UploadRun> run) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(run));
  }
  changed_.notify_one();
}

void UploadPool::work() {
  while (true) {
    std::shared_ptr<UploadRun> run;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      run = std::move(queue_.front());
      queue_.pop_front();
    }
    run->work();
  }
}

UploadRun::UploadRun(UploadPool& pool, ExchangeOwner* owner, std::unique_ptr<Upload> upload)
    : pool_(pool), owner_(owner), upload_(std::move(upload)) {}

// With the mutex held: at most one thread of the pool is in work().
void UploadRun::schedule() {
  if (std::exchange(scheduled_, true)) return;
  pool_.post(shared_from_this());
}

void UploadRun::data(std::string bytes) {
  const std::lock_guard lock(mutex_);
  if (stopped_ || bytes.empty()) return;
  if (waiting_.empty()) {
    waiting_ = std::move(bytes);
  } else {
    waiting_ += bytes;
  }
  schedule();
}

void UploadRun::finish(std::map<std::string, std::string> trailers) {
  const std::lock_guard lock(mutex_);
  finished_ = true;
  trailers_ = std::move(trailers);
  schedule();
}

void UploadRun::detach() {
  const std::lock_guard lock(mutex_);
  owner_ = nullptr;
  if (finished_ || stopped_) return;
  gone_ = true;
  waiting_.clear();
  schedule();
}

bool UploadRun::has_room() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size() < kMaxUploadAhead;
}

bool UploadRun::stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

void UploadRun::work() {
  std::string bytes;
  bool gone = false, finished = false;
  {
    const std::lock_guard lock(mutex_);
    bytes.swap(waiting_);
    gone = gone_;
    finished = finished_ && bytes.empty();
    if (owner_ != nullptr) owner_->wake();  // there is room
  }
  // upload_ is touched by the one thread that is in here.
  bool stop = false;
  if (upload_ != nullptr) {
    if (gone) {
      upload_->gone();
    } else if (finished) {
      upload_->finish(trailers_);
    } else {
      stop = !upload_->data(std::as_bytes(std::span(bytes)));
    }
  }
  if (gone || finished || stop) upload_.reset();
  const std::lock_guard lock(mutex_);
  scheduled_ = false;
  if (stop) {
    stopped_ = true;
    waiting_.clear();
    if (owner_ != nullptr) owner_->wake();
  }
  if (upload_ != nullptr && (gone_ || finished_ || !waiting_.empty())) schedule();
}

}  // namespace holdfast::serve
