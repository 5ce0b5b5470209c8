#include "stagecraft/engine/transport/heartbeats/sockets.h"

#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace stagecraft::transport {
namespace {

constexpr int kFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

sockaddr* generic(sockaddr_in& address) { return reinterpret_cast<sockaddr*>(&address); }

}  // namespace

void Descriptor::close() {
  if (valid()) ::close(descriptor_);
  descriptor_ = -1;
}

int Descriptor::release() { return std::exchange(descriptor_, -1); }

bool Connection::read() {
  std::array<char, 4096> buffer;
  constexpr int kMost = 64;  // whoever sends without end is read again in the next round
  for (int turn = 0; turn < kMost; ++turn) {
    const ssize_t count = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (count > 0) {
      received_.append(buffer.data(), static_cast<std::size_t>(count));
    } else if (count < 0 && errno == EINTR) {
      continue;
    } else {
      return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    }
  }
  return true;
}

void Connection::send(const std::string& bytes) {
  flush();
  if (!unsent_.empty()) return;
  unsent_ = bytes;
  flush();
}

void Connection::flush() {
  while (!unsent_.empty()) {
    const ssize_t count = ::send(socket_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;  // full, or broken, which read() finds
    unsent_.erase(0, static_cast<std::size_t>(count));
  }
}

Descriptor listen_anywhere(std::uint16_t& port) {
  Descriptor listener(::socket(AF_INET, kFlags, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof address;
  if (!listener.valid() || ::bind(listener.get(), generic(address), size) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0 ||
      ::getsockname(listener.get(), generic(address), &size) != 0) {
    return Descriptor();
  }
  port = ntohs(address.sin_port);
  return listener;
}

Descriptor accept_one(const Descriptor& listener) {
  return Descriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> outer, loopback;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET || (one->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    std::array<char, INET_ADDRSTRLEN> text{};
    const auto* address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
    if (::inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size()) == nullptr) continue;
    ((one->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : outer).emplace_back(text.data());
  }
  ::freeifaddrs(first);
  outer.insert(outer.end(), loopback.begin(), loopback.end());
  return outer;
}

Descriptor connect_to(const std::string& address, std::uint16_t port, int wake) {
  constexpr int kPatienceMs = 2000;
  Descriptor socket(::socket(AF_INET, kFlags, 0));
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(port);
  if (!socket.valid() || ::inet_pton(AF_INET, address.c_str(), &there.sin_addr) != 1) return Descriptor();
  if (::connect(socket.get(), generic(there), sizeof there) == 0) return socket;
  if (errno != EINPROGRESS) return Descriptor();
  std::array<pollfd, 2> waits{{{socket.get(), POLLOUT, 0}, {wake, POLLIN, 0}}};
  if (::poll(waits.data(), waits.size(), kPatienceMs) <= 0 || waits[0].revents == 0) return Descriptor();
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) return Descriptor();
  return socket;
}

}  // namespace stagecraft::transport
