// Uploads that run: bodies on their way from a connection (its I/O thread) to an Upload, whose
// calls may block, on a pool of threads of their own.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "serve/http_exchange.h"

namespace holdfast::serve {

class UploadRun;

// Threads that take runs with something to do, in order. Any thread.
class UploadPool {
 public:
  explicit UploadPool(int threads);
  // What is queued is done first.
  ~UploadPool();
  UploadPool(const UploadPool&) = delete;
  UploadPool& operator=(const UploadPool&) = delete;
  void post(std::shared_ptr<UploadRun> run);

 private:
  void work();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<UploadRun>> queue_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

// One upload. Shared by the connection and the pool.
class UploadRun : public std::enable_shared_from_this<UploadRun> {
 public:
  // `owner` is woken when there is room again, or the upload wants no more, until detach().
  UploadRun(UploadPool& pool, ExchangeOwner* owner, std::unique_ptr<Upload> upload);

  // --- the connection's thread
  void data(std::string bytes);
  void finish(std::map<std::string, std::string> trailers);
  // The client is gone, unless everything has come.
  void detach();
  bool has_room() const;  // fewer than kMaxUploadAhead bytes wait
  bool stopped() const;   // data() was false

  // --- the pool: one call of the upload
  void work();

 private:
  void schedule();
  UploadPool& pool_;
  mutable std::mutex mutex_;
  ExchangeOwner* owner_;
  std::unique_ptr<Upload> upload_;  // null: it has had its last call
  std::string waiting_;
  std::map<std::string, std::string> trailers_;
  bool scheduled_ = false, finished_ = false, gone_ = false, stopped_ = false;
};

}  // namespace holdfast::serve
