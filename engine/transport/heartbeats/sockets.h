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
  explicit Connection(Descriptor socket);

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

/// At one of this machine's addresses, or "0.0.0.0" for all, on a port that the system chooses. Not valid where
/// there is none.
[[nodiscard]] Descriptor listen_at(const std::string& address, std::uint16_t& port);
/// Not valid: nobody waits to be accepted.
[[nodiscard]] Descriptor accept_one(const Descriptor& listener);

/// An IPv4 address of an interface that is up, and its network's mask, both as numbers.
struct Network {
  std::uint32_t address = 0, mask = 0;
  bool operator==(const Network&) const = default;
};
/// Where a process is and how it may be reached.
struct Reach {
  std::string place;              ///< kernel and network namespace: processes of one share a loopback
  std::vector<Network> networks;  ///< but the loopback
};
[[nodiscard]] Reach own_reach();
[[nodiscard]] std::string to_text(const Reach& reach);
[[nodiscard]] Reach reach_from(const std::string& text);
[[nodiscard]] std::string address_text(std::uint32_t address);
/// Where a host listens for these guests, and nobody else needs to come in: at the loopback where they are in its
/// place, at its addresses in networks that others are in as well, and everywhere ("0.0.0.0", alone) where one
/// is in none of them.
[[nodiscard]] std::vector<std::string> listening_addresses(const Reach& host,
                                                           const std::vector<Reach>& guests);

/// Waits for the connection for two seconds at most, or until `wake` is readable. Not valid where it fails.
[[nodiscard]] Descriptor connect_to(const std::string& address, std::uint16_t port, int wake);

}  // namespace stagecraft::transport
