// ScriptedServer: an HTTP server for tests that says exactly what it is told, cut where it is told
// to. A thread for each connection; the script runs on it and may block.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>

#include <cstdlib>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

namespace holdfast::loadgen {

class ScriptedServer {
 public:
  struct Seen {
    std::string method, path, header, body;
    int on_connection = 0;  // requests on this connection before
  };
  class Writer {
   public:
    explicit Writer(boost::asio::ip::tcp::socket& socket) : socket_(socket) {}
    // False: the client is gone.
    bool write(const std::string& text) {
      boost::system::error_code error;
      boost::asio::write(socket_, boost::asio::buffer(text), error);
      return !error;
    }
    // Blocks until the client closes.
    void wait_for_close() {
      boost::system::error_code error;
      char byte = 0;
      while (!error) boost::asio::read(socket_, boost::asio::buffer(&byte, 1), error);
    }

   private:
    boost::asio::ip::tcp::socket& socket_;
  };
  // Answers one request. False: the connection is closed.
  using Script = std::function<bool(const Seen&, Writer&)>;

  explicit ScriptedServer(Script script)
      : script_(std::move(script)),
        acceptor_(io_, {boost::asio::ip::address_v4::loopback(), 0}),
        accepting_([this] { accept(); }) {}

  ~ScriptedServer() {
    boost::system::error_code ignored;
    // Wakes the blocked accept; closing alone would not.
    ::shutdown(acceptor_.native_handle(), SHUT_RDWR);
    accepting_.join();
    {
      const std::lock_guard lock(mutex_);
      for (auto& connection : connections_) {
        connection.socket.shutdown(boost::asio::ip::tcp::socket::shutdown_both, ignored);
      }
    }
    for (auto& connection : connections_) connection.thread.join();
  }

  std::string url() const {
    return "http://127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
  }

 private:
  struct Connection {
    explicit Connection(boost::asio::ip::tcp::socket from) : socket(std::move(from)) {}
    boost::asio::ip::tcp::socket socket;
    std::thread thread;
  };

  void accept() {
    while (true) {
      boost::system::error_code error;
      boost::asio::ip::tcp::socket socket(io_);
      acceptor_.accept(socket, error);
      if (error) return;
      socket.set_option(boost::asio::ip::tcp::no_delay(true));
      const std::lock_guard lock(mutex_);
      Connection& connection = connections_.emplace_back(std::move(socket));
      connection.thread = std::thread([this, &connection] { serve(connection.socket); });
    }
  }

  void serve(boost::asio::ip::tcp::socket& socket) {
    boost::system::error_code error;
    std::string buffer;
    Writer writer(socket);
    for (int count = 0;; ++count) {
      boost::asio::read_until(socket, boost::asio::dynamic_buffer(buffer), "\r\n\r\n", error);
      if (error) return;
      const std::size_t end = buffer.find("\r\n\r\n") + 4;
      Seen seen{.method = {}, .path = {}, .header = buffer.substr(0, end), .body = {},
                .on_connection = count};
      const std::size_t space = seen.header.find(' ');
      seen.method = seen.header.substr(0, space);
      seen.path = seen.header.substr(space + 1, seen.header.find(' ', space + 1) - space - 1);
      std::size_t length = 0;
      const std::size_t field = seen.header.find("Content-Length: ");
      if (field != std::string::npos) {
        length = std::strtoul(seen.header.c_str() + field + 16, nullptr, 10);
      }
      if (buffer.size() < end + length) {
        boost::asio::read(socket, boost::asio::dynamic_buffer(buffer),
                          boost::asio::transfer_exactly(end + length - buffer.size()), error);
        if (error) return;
      }
      seen.body = buffer.substr(end, length);
      buffer.erase(0, end + length);
      if (!script_(seen, writer)) {
        socket.shutdown(boost::asio::ip::tcp::socket::shutdown_both, error);
        return;
      }
    }
  }

  Script script_;
  boost::asio::io_context io_;
  boost::asio::ip::tcp::acceptor acceptor_;
  std::mutex mutex_;
  std::list<Connection> connections_;
  std::thread accepting_;
};

}  // namespace holdfast::loadgen
