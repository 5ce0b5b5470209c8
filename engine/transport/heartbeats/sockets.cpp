#include "engine/transport/heartbeats/sockets.h"

#include "engine/transport/cores.h"

#include <fmt/format.h>

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sstream>
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

Connection::Connection(Descriptor socket) : socket_(std::move(socket)) {
  // A last word that waits for an acknowledgement is lost with the connection.
  const int on = 1;
  if (socket_.valid()) (void)::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

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

Descriptor listen_at(const std::string& address, std::uint16_t& port) {
  Descriptor listener(::socket(AF_INET, kFlags, 0));
  sockaddr_in here{};
  here.sin_family = AF_INET;
  socklen_t size = sizeof here;
  if (!listener.valid() || ::inet_pton(AF_INET, address.c_str(), &here.sin_addr) != 1 ||
      ::bind(listener.get(), generic(here), size) != 0 || ::listen(listener.get(), SOMAXCONN) != 0 ||
      ::getsockname(listener.get(), generic(here), &size) != 0) {
    return Descriptor();
  }
  port = ntohs(here.sin_port);
  return listener;
}

Descriptor accept_one(const Descriptor& listener) {
  return Descriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

Reach own_reach() {
  Reach reach;
  std::array<char, 256> space{};
  const ssize_t length = ::readlink("/proc/self/ns/net", space.data(), space.size());
  reach.place =
      boot_id() + "/" + std::string(space.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return reach;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_netmask == nullptr || one->ifa_addr->sa_family != AF_INET ||
        (one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) {
      continue;
    }
    const auto of = [](const sockaddr* address) {
      return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
    };
    reach.networks.push_back({of(one->ifa_addr), of(one->ifa_netmask)});
  }
  ::freeifaddrs(first);
  return reach;
}

std::string to_text(const Reach& reach) {
  std::string text = reach.place.empty() ? "?" : reach.place;
  for (const Network& network : reach.networks) text += fmt::format(" {}/{}", network.address, network.mask);
  return text;
}

Reach reach_from(const std::string& text) {
  std::istringstream words(text);
  Reach reach;
  words >> reach.place;
  Network network;
  for (char slash = 0; words >> network.address >> slash >> network.mask;) reach.networks.push_back(network);
  return reach;
}

std::string address_text(std::uint32_t address) {
  return fmt::format("{}.{}.{}.{}", address >> 24U, (address >> 16U) & 0xFFU, (address >> 8U) & 0xFFU,
                     address & 0xFFU);
}

std::vector<std::string> listening_addresses(const Reach& host, const std::vector<Reach>& guests) {
  std::vector<bool> used(host.networks.size(), false);
  bool loopback = false;
  for (const Reach& guest : guests) {
    if (guest.place == host.place) {
      loopback = true;
      continue;
    }
    bool reached = false;
    for (std::size_t i = 0; i < host.networks.size(); ++i) {
      const Network& ours = host.networks[i];
      // The same address on both machines is one that each gives itself, as bridges of containers have.
      const bool inside = std::ranges::any_of(guest.networks, [&](const Network& theirs) {
        return (theirs.address & ours.mask) == (ours.address & ours.mask);
      });
      const bool its_own = std::ranges::any_of(
          guest.networks, [&](const Network& theirs) { return theirs.address == ours.address; });
      if (inside && !its_own) used[i] = reached = true;
    }
    if (!reached) return {"0.0.0.0"};
  }
  std::vector<std::string> addresses;
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i]) addresses.push_back(address_text(host.networks[i].address));
  }
  if (loopback) addresses.emplace_back("127.0.0.1");
  return addresses;
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
