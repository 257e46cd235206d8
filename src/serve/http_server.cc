#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "base/error.h"
#include "serve/http_connection.h"

namespace holdfast::serve {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Above max_connections this many more are told so; others are closed without a word.
constexpr std::size_t kMaxRefused = 64;
constexpr int kAcceptPauseMs = 100;  // after accept found no free file descriptor

Result<std::vector<tcp::endpoint>> resolve(asio::io_context& context, const HttpListener& config) {
  if (config.address == "localhost") {
    return std::vector{tcp::endpoint(asio::ip::address_v4::loopback(), config.port)};
  }
  error_code error;
  const asio::ip::address address = asio::ip::make_address(config.address, error);
  if (!error) return std::vector{tcp::endpoint(address, config.port)};
  tcp::resolver resolver(context);
  const auto found = resolver.resolve(config.address, std::to_string(config.port),
                                      tcp::resolver::passive, error);
  if (error || found.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the {} listener's address \"{}\" is no address and no known host: {}",
                      config.name, config.address, error.message());
  }
  return std::vector{found.begin()->endpoint()};
}

// A bound port: accepts, and gives each connection to a worker in turn. On the first worker's
// thread.
class Acceptor {
 public:
  Acceptor(HttpShared& shared, BoundListener& listener,
           std::vector<std::unique_ptr<Worker>>& workers)
      : shared_(shared),
        listener_(listener),
        workers_(workers),
        acceptor_(workers.front()->context),
        pause_(workers.front()->context) {}

  Status open() {
    HF_ASSIGN(const auto endpoints, resolve(workers_.front()->context, listener_.config));
    error_code error;
    const tcp::endpoint& endpoint = endpoints.front();
    acceptor_.open(endpoint.protocol(), error);
    if (!error && endpoint.address().is_v6()) {
      acceptor_.set_option(asio::ip::v6_only(false), error);
    }
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (!error) listener_.port = acceptor_.local_endpoint(error).port();
    if (!error) return {};
    return make_error(ErrorCode::kIo, "cannot listen on {}:{} for the {} listener: {}",
                      listener_.config.address, listener_.config.port, listener_.config.name,
                      error.message());
  }

  void accept() {
    Worker& worker = *workers_[next_++ % workers_.size()];
    auto connection = std::make_shared<Connection>(shared_, listener_, worker);
    tcp::socket& socket = connection->socket();
    acceptor_.async_accept(socket, [this, &worker, connection](const error_code& error) {
      if (!acceptor_.is_open()) return connection->discard();
      if (!error) {
        adopt(worker, connection);
        return accept();
      }
      connection->discard();
      // Out of file descriptors, or a client that left at once: the former needs time to pass.
      pause_.expires_after(std::chrono::milliseconds(kAcceptPauseMs));
      pause_.async_wait([this](const error_code& stopped) {
        if (!stopped && acceptor_.is_open()) accept();
      });
    });
  }

  void close() {
    error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel();
  }

 private:
  void adopt(Worker& worker, std::shared_ptr<Connection> connection) {
    const std::size_t most = shared_.options.limits.max_connections;
    const std::size_t count = listener_.connections.fetch_add(1);
    asio::post(worker.context, [&worker, connection = std::move(connection), count, most] {
      worker.connections.insert(connection);
      if (count >= most + kMaxRefused || worker.ended) return connection->close();
      connection->start(count >= most);
    });
  }

  HttpShared& shared_;
  BoundListener& listener_;
  std::vector<std::unique_ptr<Worker>>& workers_;
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  std::size_t next_ = 0;
};

class AsioServer final : public HttpServer {
 public:
  explicit AsioServer(Options options) {
    shared_.options = std::move(options);
    const int io_threads = std::max(1, shared_.options.io_threads);
    for (int i = 0; i < io_threads; ++i) workers_.push_back(std::make_unique<Worker>());
  }

  ~AsioServer() override {
    shared_.stopping = true;
    for (auto& worker : workers_) {
      asio::post(worker->context, [this, &worker = *worker] {
        if (&worker == workers_.front().get()) close_acceptors();
        worker.ended = true;
        const auto connections = worker.connections;  // closing takes them out
        for (const auto& connection : connections) connection->close();
      });
    }
    // Each loop ends by itself once nothing is left to wait for.
    guards_.clear();
    for (std::thread& thread : threads_) thread.join();
    uploads_.reset();
  }

  Status open(std::vector<HttpListener> listeners) {
    for (HttpListener& config : listeners) {
      HF_ASSERT(config.router != nullptr, "a listener has a router");
      listeners_.push_back(std::make_unique<BoundListener>());
      listeners_.back()->router = config.router;
      listeners_.back()->config = std::move(config);
      acceptors_.push_back(std::make_unique<Acceptor>(shared_, *listeners_.back(), workers_));
      HF_TRY(acceptors_.back()->open());
    }
    uploads_ = std::make_unique<UploadPool>(std::max(1, shared_.options.upload_threads));
    shared_.uploads = uploads_.get();
    for (auto& worker : workers_) {
      guards_.push_back(asio::make_work_guard(worker->context));
      threads_.emplace_back([&worker = *worker] { worker.context.run(); });
    }
    asio::post(workers_.front()->context, [this] {
      for (auto& acceptor : acceptors_) acceptor->accept();
    });
    return {};
  }

  std::uint16_t port(std::string_view name) const override {
    for (const auto& listener : listeners_) {
      if (listener->config.name == name) return listener->port;
    }
    return 0;
  }

  std::size_t connections() const override {
    std::size_t count = 0;
    for (const auto& listener : listeners_) count += listener->connections;
    return count;
  }

  void use(std::string_view name, const Router& router) override {
    for (const auto& listener : listeners_) {
      if (listener->config.name == name) listener->router = &router;
    }
  }

  void begin_drain() override { shared_.stopping = true; }
  std::size_t pending() const override { return shared_.pending; }

  void stop_accepting() override {
    shared_.stopping = true;
    for (auto& worker : workers_) {
      asio::post(worker->context, [this, &worker = *worker] {
        if (&worker == workers_.front().get()) close_acceptors();
        const auto connections = worker.connections;
        for (const auto& connection : connections) connection->close_if_idle();
      });
    }
  }

 private:
  void close_acceptors() {
    for (auto& acceptor : acceptors_) acceptor->close();
  }

  HttpShared shared_;
  std::vector<std::unique_ptr<BoundListener>> listeners_;
  std::unique_ptr<UploadPool> uploads_;
  std::vector<std::unique_ptr<Worker>> workers_;  // the acceptors and connections stand on these
  std::vector<std::unique_ptr<Acceptor>> acceptors_;
  std::vector<asio::executor_work_guard<asio::io_context::executor_type>> guards_;
  std::vector<std::thread> threads_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(std::vector<HttpListener> listeners,
                                                      Options options) {
  auto server = std::make_unique<AsioServer>(std::move(options));
  HF_TRY(server->open(std::move(listeners)));
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace holdfast::serve
