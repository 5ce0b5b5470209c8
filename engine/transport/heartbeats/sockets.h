#pragma once

// TCP as heartbeats need it: nothing here blocks.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft::transport {

/// Owns a file descriptor; -1: none.
class Descriptor {
 public:
  explicit Descriptor(int descriptor = -1) : descriptor_(descriptor) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : descriptor_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    close();
    descriptor_ = other.release();
    return *this;
  }

  [[nodiscard]] int get() const { return descriptor_; }
  [[nodiscard]] bool valid() const { return descriptor_ >= 0; }
  void close();

 private:
  int release();
  int descriptor_;
};

/// A connection and what has been read of it and not been understood yet.
class Connection {
 public:
  explicit Connection(Descriptor socket) : socket_(std::move(socket)) {}

  [[nodiscard]] int descriptor() const { return socket_.get(); }
  /// Takes in what has come. False: the other end has closed, or the connection is broken.
  [[nodiscard]] bool read();
  [[nodiscard]] std::string& received() { return received_; }
  /// Sends `bytes` if all sent before has left; otherwise drops them: newer ones will follow.
  void send(const std::string& bytes);

 private:
  void flush();
  Descriptor socket_;
  std::string received_;
  std::string unsent_;
};

/// On a port that the system chooses, on all interfaces. Not valid where there is none.
[[nodiscard]] Descriptor listen_anywhere(std::uint16_t& port);
/// Not valid: nobody waits to be accepted.
[[nodiscard]] Descriptor accept_one(const Descriptor& listener);
/// IPv4 addresses of this machine's interfaces that are up, the loopback last.
[[nodiscard]] std::vector<std::string> own_addresses();
/// Waits for the connection for two seconds at most, or until `wake` is readable. Not valid where it fails.
[[nodiscard]] Descriptor connect_to(const std::string& address, std::uint16_t port, int wake);

}  // namespace stagecraft::transport
