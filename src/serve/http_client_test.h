// A blocking HTTP client for tests, as raw as they need it. One thread each.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

namespace holdfast::serve {

// What came back: status line, header (lower case), body without its framing.
struct Answer {
  int status = 0;
  std::string header, body;
  bool has(std::string_view text) const { return header.find(text) != std::string::npos; }
};

class RawClient {
 public:
  // `receive_bytes`: the size of the socket's receive buffer, 0 for the system's.
  explicit RawClient(std::uint16_t port, int receive_bytes = 0) {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_bytes > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return connected_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  // The client is killed: the server sees a reset.
  void reset() {
    const linger hard{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }
  void half_close() { shutdown(fd_, SHUT_WR); }
  // False: the server has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }
  // As much as can be sent without waiting for the server to read.
  std::size_t send_what_fits(std::string_view bytes) {
    std::size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t count = ::send(fd_, bytes.data() + sent, bytes.size() - sent,
                                   MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count <= 0) break;
      sent += static_cast<std::size_t>(count);
    }
    return sent;
  }
  // At least one more byte into buffer(). False: the server has closed, or was silent for a minute.
  bool receive() {
    char bytes[65536];
    pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&wait, 1, 60'000) <= 0) return false;
    const ssize_t count = recv(fd_, bytes, sizeof bytes, 0);
    if (count <= 0) return false;
    buffer_.append(bytes, static_cast<std::size_t>(count));
    return true;
  }
  // At most `count` bytes, which are forgotten. False: the server has closed.
  bool receive_some(std::size_t count) {
    char bytes[4096];
    return recv(fd_, bytes, std::min(count, sizeof bytes), 0) > 0;
  }
  // Until `text` is in buffer(); then takes everything up to its end.
  std::optional<std::string> receive_until(std::string_view text) {
    std::size_t at = 0;
    while ((at = buffer_.find(text)) == std::string::npos) {
      if (!receive()) return std::nullopt;
    }
    std::string taken = buffer_.substr(0, at + text.size());
    buffer_.erase(0, at + text.size());
    return taken;
  }
  std::optional<std::string> receive_bytes(std::size_t count) {
    while (buffer_.size() < count) {
      if (!receive()) return std::nullopt;
    }
    std::string taken = buffer_.substr(0, count);
    buffer_.erase(0, count);
    return taken;
  }
  // One whole answer; status 0 when the server closed before.
  Answer answer(bool without_body = false) {
    Answer answer;
    const auto header = receive_until("\r\n\r\n");
    if (!header) return answer;
    answer.header = *header;
    for (char& c : answer.header) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    answer.status = std::atoi(answer.header.c_str() + 9);
    if (without_body) return answer;
    const std::size_t length = answer.header.find("content-length: ");
    if (length != std::string::npos) {
      answer.body = receive_bytes(static_cast<std::size_t>(
                                      std::atoll(answer.header.c_str() + length + 16)))
                        .value_or("(cut)");
    } else if (answer.has("transfer-encoding: chunked")) {
      answer.body = chunks();
    }
    return answer;
  }
  // The chunks of a body up to the last one; ends with "(cut)" when the server closed before.
  std::string chunks() {
    std::string body;
    while (const auto line = receive_until("\r\n")) {
      const std::size_t size = std::strtoull(line->c_str(), nullptr, 16);
      const auto chunk = receive_bytes(size + 2);
      if (!chunk) break;
      if (size == 0) return body;
      body += chunk->substr(0, size);
    }
    return body + "(cut)";
  }
  // Whether the server has closed once everything that it sent has been read.
  bool closed() {
    while (receive()) {
    }
    char byte = 0;
    return recv(fd_, &byte, 1, MSG_DONTWAIT) == 0 || errno != EAGAIN;
  }
  std::string& buffer() { return buffer_; }

 private:
  int fd_ = -1;
  bool connected_ = false;
  std::string buffer_;
};

}  // namespace holdfast::serve
