#include "engine/transport/heartbeats/heartbeats.h"

#include "base/stopwatch.h"
#include "engine/transport/cores.h"
#include "engine/transport/heartbeats/beat.h"
#include "engine/transport/heartbeats/sockets.h"
#include "engine/transport/quiet_thread.h"
#include "schedules/program/program_text.h"

#include <algorithm>
#include <list>
#include <poll.h>
#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace stagecraft::transport {
namespace {

/// Between the first beats: ranks know each other before the first step.
constexpr Seconds kFirstPause{0.02};

}  // namespace

/// Rank 0's thread.
class Heartbeats::Host {
 public:
  Host(Heartbeats& beats, std::vector<Descriptor> listeners, std::string secret, const HeartbeatTimes& times)
      : beats_(beats),
        listeners_(std::move(listeners)),
        secret_(std::move(secret)),
        times_(times),
        places_(static_cast<std::size_t>(beats.world_)) {}

  void run() {
    for (Seconds pause = kFirstPause; !beats_.sleep(pause); pause = std::min(pause * 2, times_.period)) {
      accept();
      std::erase_if(strangers_, [this](Stranger& stranger) { return greet(stranger); });
      for (Place& place : places_) hear(place);
      tell(/*leaving=*/false);
    }
    tell(/*leaving=*/true);
    // Closing with beats unread would be a reset, which may overtake the last word.
    for (const Place& place : places_) {
      if (place.connection) (void)place.connection->read();
    }
  }

 private:
  struct Place {
    std::unique_ptr<Connection> connection;
    Stopwatch unheard;
    Sign sign;
  };

  /// Somebody who has not proved yet to be a guest.
  struct Stranger {
    std::unique_ptr<Connection> connection;
    std::string nonce;
    Stopwatch since;
  };

  void accept() {
    const std::size_t most = places_.size() + 64;  // others than ours may knock
    for (const Descriptor& listener : listeners_) {
      for (Descriptor socket = accept_one(listener); socket.valid(); socket = accept_one(listener)) {
        if (strangers_.size() >= most) continue;
        Stranger& stranger = strangers_.emplace_back();
        stranger.connection = std::make_unique<Connection>(std::move(socket));
        stranger.nonce = make_nonce();
        stranger.connection->send(stranger.nonce);
      }
    }
  }

  /// A stranger becomes a guest by its hello, which is answered. True: it is none any more, or goes.
  bool greet(Stranger& stranger) {
    Connection& connection = *stranger.connection;
    const bool open = connection.read();
    std::string& received = connection.received();
    if (received.size() < kHelloBytes) return !open || stranger.since.read() > times_.stranger;
    const auto guest = guest_of_hello(received, secret_, stranger.nonce);
    if (!guest || !guest->first.valid() || guest->first.index() >= places_.size()) return true;
    Place& place = places_[guest->first.index()];
    if (place.connection) return true;
    received.erase(0, kHelloBytes);
    connection.send(answer(secret_, stranger.nonce, guest->second, guest->first));
    place.connection = std::move(stranger.connection);
    place.sign.life = Sign::Life::alive;
    place.unheard.restart();
    return true;
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
  std::vector<Descriptor> listeners_;
  std::string secret_;
  HeartbeatTimes times_;
  std::list<Stranger> strangers_;
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
    std::vector<Sign> known(static_cast<std::size_t>(beats_.world_));
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
  /// An address may be another machine's here, as those of containers are: only the host has the secret.
  Connection find_host() const {
    const bool same_machine = invitation_.machine == boot_id();
    for (const auto& [address, port] : invitation_.places) {
      if (!same_machine && address.starts_with("127.")) continue;
      Connection there(connect_to(address, port, beats_.wake_));
      if (there.descriptor() >= 0 && proves(there)) return there;
    }
    return Connection(Descriptor());
  }

  /// Whether the other end is the host; it then knows that this is a guest.
  bool proves(Connection& host) const {
    const std::string& secret = invitation_.secret;
    std::string& received = host.received();
    if (!await(host, kNonceBytes)) return false;
    const std::string its_nonce = received.substr(0, kNonceBytes);
    received.erase(0, kNonceBytes);
    const std::string own_nonce = make_nonce();
    host.send(hello(secret, its_nonce, own_nonce, beats_.rank_));
    if (!await(host, kProofBytes)) return false;
    const bool right = received.substr(0, kProofBytes) == answer(secret, its_nonce, own_nonce, beats_.rank_);
    received.erase(0, kProofBytes);
    return right;
  }

  bool await(Connection& host, std::size_t bytes) const {
    constexpr Seconds kPatience{10};
    for (Stopwatch waited; waited.read() < kPatience;) {
      if (beats_.sleep(kFirstPause)) return false;
      const bool open = host.read();
      if (host.received().size() >= bytes) return true;
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
    : rank_(rank),
      world_(world),
      known_(static_cast<std::size_t>(world)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

std::shared_ptr<Heartbeats> Heartbeats::meet(Rank rank, int world, const HeartbeatMeeting& meeting) {
  if (world == 1) return nullptr;
  const Reach reach = own_reach();
  const std::vector<std::string> all = meeting.gather(to_text(reach));
  std::shared_ptr<Heartbeats> beats;
  std::string invitation;
  if (rank.value == 0) {
    std::vector<Reach> guests;
    for (std::size_t r = 1; r < all.size(); ++r) guests.push_back(reach_from(all[r]));
    beats = host(world, listening_addresses(reach, guests), invitation);
  }
  invitation = meeting.broadcast(invitation);
  return rank.value == 0 ? beats : guest(rank, world, invitation);
}

std::unique_ptr<Heartbeats> Heartbeats::host(int world, const std::vector<std::string>& addresses,
                                             std::string& invitation, const HeartbeatTimes& times) {
  Invitation made{.secret = make_nonce(), .machine = boot_id(), .places = {}};
  std::vector<Descriptor> listeners;
  for (const std::string& address : addresses) {
    std::uint16_t port = 0;
    Descriptor listener = listen_at(address, port);
    if (!listener.valid()) continue;
    listeners.push_back(std::move(listener));
    if (address != "0.0.0.0") {
      made.places.push_back({address, port});
      continue;
    }
    for (const Network& network : own_reach().networks) {
      made.places.push_back({address_text(network.address), port});
    }
    made.places.push_back({"127.0.0.1", port});
  }
  if (listeners.empty()) return nullptr;
  std::unique_ptr<Heartbeats> beats(new Heartbeats(Rank{0}, world));
  const auto host = std::make_shared<Host>(*beats, std::move(listeners), made.secret, times);
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
  try {
    thread_ = quiet_thread("heartbeat", std::move(loop));
  } catch (const std::system_error&) {
    // No threads left: nobody is known.
  }
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
