#include "stagecraft/engine/transport/heartbeats/heartbeats.h"

#include "stagecraft/base/stopwatch.h"
#include "stagecraft/engine/transport/cores.h"
#include "stagecraft/engine/transport/heartbeats/beat.h"
#include "stagecraft/engine/transport/heartbeats/sockets.h"
#include "stagecraft/schedules/program/program_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <list>
#include <poll.h>
#include <random>
#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace stagecraft::transport {
namespace {

/// Between the first beats: ranks know each other before the first step.
constexpr Seconds kFirstPause{0.02};

std::string make_secret() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

}  // namespace

/// Rank 0's thread.
class Heartbeats::Host {
 public:
  Host(Heartbeats& beats, Descriptor listener, std::string secret, const HeartbeatTimes& times)
      : beats_(beats),
        listener_(std::move(listener)),
        secret_(std::move(secret)),
        times_(times),
        places_(beats.known_.size()) {}

  void run() {
    for (Seconds pause = kFirstPause; !beats_.sleep(pause); pause = std::min(pause * 2, times_.period)) {
      accept();
      for (auto& connection : strangers_) greet(connection);
      std::erase_if(strangers_, [](const auto& connection) { return !connection; });
      for (Place& place : places_) hear(place);
      tell(/*leaving=*/false);
    }
    tell(/*leaving=*/true);
  }

 private:
  struct Place {
    std::unique_ptr<Connection> connection;
    Stopwatch unheard;
    Sign sign;
  };

  void accept() {
    const std::size_t most = places_.size() + 64;  // others than ours may knock
    for (Descriptor socket = accept_one(listener_); socket.valid(); socket = accept_one(listener_)) {
      if (strangers_.size() < most) strangers_.push_back(std::make_unique<Connection>(std::move(socket)));
    }
  }

  /// A stranger becomes a guest by its hello, which is answered, and goes without one.
  void greet(std::unique_ptr<Connection>& stranger) {
    const bool open = stranger->read();
    if (stranger->received().size() >= kHelloBytes) {
      const std::optional<Rank> rank = rank_of_hello(stranger->received(), secret_);
      if (rank && rank->valid() && rank->index() < places_.size() && !places_[rank->index()].connection) {
        stranger->received().erase(0, kHelloBytes);
        Place& place = places_[rank->index()];
        place.connection = std::move(stranger);
        place.connection->send(secret_);
        place.sign.life = Sign::Life::alive;
        place.unheard.restart();
      }
      stranger.reset();
    } else if (!open) {
      stranger.reset();
    }
  }

  void hear(Place& place) {
    place.sign.silence = place.unheard.read();
    if (!place.connection) return;
    const bool open = place.connection->read();
    std::string& received = place.connection->received();
    if (!received.empty()) {
      const auto last = static_cast<std::uint8_t>(received.back());
      received.clear();
      place.unheard.restart();
      place.sign.silence = Seconds{0};
      place.sign.life = last == kGoodbye ? Sign::Life::unknown : Sign::Life::alive;
      if (last != kGoodbye) read_beat(last, place.sign);
    } else if (place.sign.life == Sign::Life::alive && place.sign.silence > times_.silent_after) {
      place.sign.life = Sign::Life::silent;
    }
    if (open) return;
    place.connection.reset();
    if (place.sign.life == Sign::Life::unknown) return;
    place.sign.life = Sign::Life::gone;
    place.unheard.restart();
  }

  void tell(bool leaving) {
    std::vector<Sign> all;
    for (const Place& place : places_) all.push_back(place.sign);
    all.front().life = leaving ? Sign::Life::unknown : Sign::Life::alive;
    all.front().silence = Seconds{0};
    read_beat(beats_.mine_, all.front());
    const std::string table = table_of(all);
    for (const Place& place : places_) {
      if (place.connection) place.connection->send(table);
    }
    beats_.learn(std::move(all));
  }

  Heartbeats& beats_;
  Descriptor listener_;
  std::string secret_;
  HeartbeatTimes times_;
  std::list<std::unique_ptr<Connection>> strangers_;
  std::vector<Place> places_;  ///< by rank; the first is this one
};

/// Another rank's thread.
class Heartbeats::Guest {
 public:
  Guest(Heartbeats& beats, Invitation invitation, const HeartbeatTimes& times)
      : beats_(beats), invitation_(std::move(invitation)), times_(times) {}

  void run() {
    Connection host = find_host();
    if (host.descriptor() < 0) return;  // nobody is known: the bounds of waits hold alone
    std::vector<Sign> known(beats_.known_.size());
    known.front().life = Sign::Life::alive;
    Stopwatch unheard;
    bool open = true;
    for (Seconds pause = kFirstPause; !beats_.sleep(pause); pause = std::min(pause * 2, times_.period)) {
      open = open && host.read();
      hear(host.received(), known, unheard);
      judge_host(open, known, unheard.read());
      beats_.learn(known);
      host.send(std::string(1, static_cast<char>(beats_.mine_.load())));
    }
    host.send(std::string(1, static_cast<char>(kGoodbye)));
  }

 private:
  /// An address may be another machine's here, as those of containers are: only the host knows the secret.
  Connection find_host() const {
    const bool same_machine = invitation_.machine == boot_id();
    for (const std::string& address : invitation_.addresses) {
      if (!same_machine && address.starts_with("127.")) continue;
      Connection there(connect_to(address, invitation_.port, beats_.wake_));
      if (there.descriptor() < 0) continue;
      there.send(hello(invitation_.secret, beats_.rank_));
      if (answers(there)) return there;
    }
    return Connection(Descriptor());
  }

  bool answers(Connection& host) const {
    constexpr Seconds kPatience{10};
    const std::string& secret = invitation_.secret;
    std::string& received = host.received();
    for (Stopwatch waited; waited.read() < kPatience;) {
      if (beats_.sleep(kFirstPause)) return false;
      const bool open = host.read();
      if (received.size() >= secret.size()) {
        const bool right = received.compare(0, secret.size(), secret) == 0;
        received.erase(0, secret.size());
        return right;
      }
      if (!open) return false;
    }
    return false;
  }

  /// The newest whole table counts.
  static void hear(std::string& received, std::vector<Sign>& known, Stopwatch& unheard) {
    const std::size_t size = table_bytes(known.size());
    const std::size_t whole = received.size() / size;
    if (whole == 0) return;
    known = read_table(received.substr((whole - 1) * size, size));
    received.erase(0, whole * size);
    unheard.restart();
  }

  /// What a silent host said of others is old.
  void judge_host(bool open, std::vector<Sign>& known, Seconds silence) const {
    using Life = Sign::Life;
    Sign& host = known.front();
    if (host.life == Life::unknown) {  // it said goodbye
      for (Sign& sign : known) sign.life = Life::unknown;
      return;
    }
    host.silence = silence;
    if (!open) {
      host.life = Life::gone;
    } else if (silence > times_.silent_after) {
      host.life = Life::silent;
    }
    if (host.life == Life::alive) return;
    for (std::size_t r = 1; r < known.size(); ++r) known[r].life = Life::unknown;
  }

  Heartbeats& beats_;
  Invitation invitation_;
  HeartbeatTimes times_;
};

Heartbeats::Heartbeats(Rank rank, int world)
    : rank_(rank), known_(static_cast<std::size_t>(world)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

std::unique_ptr<Heartbeats> Heartbeats::host(int world, std::string& invitation,
                                             const HeartbeatTimes& times) {
  Invitation made{.secret = make_secret(), .machine = boot_id(), .addresses = own_addresses()};
  Descriptor listener = listen_anywhere(made.port);
  std::unique_ptr<Heartbeats> beats(new Heartbeats(Rank{0}, world));
  if (!listener.valid()) return nullptr;
  const auto host = std::make_shared<Host>(*beats, std::move(listener), made.secret, times);
  if (!beats->start([host] { host->run(); })) return nullptr;
  invitation = to_text(made);
  return beats;
}

std::unique_ptr<Heartbeats> Heartbeats::guest(Rank rank, int world, const std::string& invitation,
                                              const HeartbeatTimes& times) {
  const std::optional<Invitation> accepted = invitation_from(invitation);
  if (!accepted) return nullptr;
  std::unique_ptr<Heartbeats> beats(new Heartbeats(rank, world));
  const auto guest = std::make_shared<Guest>(*beats, *accepted, times);
  return beats->start([guest] { guest->run(); }) ? std::move(beats) : nullptr;
}

bool Heartbeats::start(std::function<void()> loop) {
  if (wake_ < 0) return false;
  // Signals are for the process's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread(std::move(loop));
    pthread_setname_np(thread_.native_handle(), "heartbeat");
  } catch (const std::system_error&) {
    // No threads left: nobody is known.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread_.joinable();
}

Heartbeats::~Heartbeats() {
  const std::uint64_t one = 1;
  if (wake_ >= 0) (void)!::write(wake_, &one, sizeof one);
  if (thread_.joinable()) thread_.join();
  if (wake_ >= 0) ::close(wake_);
}

bool Heartbeats::sleep(Seconds period) const {
  pollfd wake{wake_, POLLIN, 0};
  return ::poll(&wake, 1, static_cast<int>(period.value * 1000)) > 0;
}

Sign Heartbeats::of(Rank rank) const {
  const std::lock_guard lock(mutex_);
  return known_.at(rank.index());
}

void Heartbeats::show(Phase phase, bool waits) noexcept { mine_ = beat_of(phase, waits); }

void Heartbeats::learn(std::vector<Sign> known) {
  const std::lock_guard lock(mutex_);
  known_ = std::move(known);
}

}  // namespace stagecraft::transport
