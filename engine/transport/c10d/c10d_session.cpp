#include "engine/transport/c10d/c10d_session.h"

#include "base/error.h"
#include "base/stopwatch.h"
#include "engine/transport/c10d/c10d_transport.h"
#include "engine/transport/c10d/lines.h"
#include "engine/transport/c10d/mailbox.h"
#include "engine/transport/cores.h"
#include "engine/transport/heartbeats/heartbeats.h"
#include "engine/transport/texts.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

namespace stagecraft {

using transport::Lines;
using transport::Mailbox;
using transport::Message;

C10dSession::C10dSession(std::unique_ptr<transport::Wire> wire, Seconds patience)
    : wire_(std::move(wire)),
      left_(static_cast<std::size_t>(wire_->world()), false),
      lines_(std::make_unique<Lines>(
          *wire_, [this](Rank from, Message&& message) { take(from, std::move(message)); },
          [this](Rank peer, const std::string& why) { lose(peer, why); })) {
  lines_->start();
  try {
    talk_ = std::make_unique<transport::C10dTransport>(
        *this, TransportOptions{.timeout = patience, .start_up_timeout = patience}, world());
    talk_->waits().enter(Phase::start_up);
    const auto gather = [&](const std::string& mine) { return talk_->all_gather_text(mine); };
    const auto broadcast = [&](const std::string& text) { return talk_->broadcast(text); };
    heartbeats_ = transport::Heartbeats::meet(rank(), world(), {gather, broadcast});
    const std::vector<std::string> machines = talk_->all_gather_text(transport::boot_id());
    const auto here = std::count(machines.begin(), machines.end(), transport::boot_id());
    roomy_ = 2 * here <= transport::count_cores().usable;
  } catch (...) {
    failed_ = true;
    lines_.reset();  // its threads end before what they use
    throw;
  }
}

C10dSession::C10dSession(const std::string& group_name, Seconds patience)
    : C10dSession(transport::make_c10d_wire(group_name), patience) {}

C10dSession::~C10dSession() {
  talk_.reset();
  if (!failed_ && std::uncaught_exceptions() == 0) {
    // What the others still wait for must have left before the threads end. A rank that is gone would hold it up.
    constexpr Seconds kLongest{5};
    Message left;
    for (int r = 0; r < world(); ++r) {
      if (r != rank().value) lines_->post(Rank{r}, left);
    }
    lines_->flush(kLongest);
    await_goodbyes();
    heartbeats_.reset();
  }
  lines_.reset();
}

void C10dSession::await_goodbyes() const {
  constexpr Seconds kPatience{2};
  Stopwatch stopwatch;
  const auto all_gone = [this] {
    const std::lock_guard lock(mutex_);
    return loss_ || std::count(left_.begin(), left_.end(), true) == world() - 1;
  };
  while (!all_gone() && stopwatch.read() < kPatience)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::shared_ptr<Signs> C10dSession::heartbeats() const { return heartbeats_; }

TransportOptions C10dSession::share(const TransportOptions& own) {
  const std::string text = talk_->broadcast(transport::bytes_of(transport::numbers_of(own)));
  return transport::options_from(transport::numbers_in(text), own);
}

std::unique_ptr<Transport> C10dSession::make_transport(const TransportOptions& options, int ranks) {
  return std::make_unique<transport::C10dTransport>(*this, options, ranks);
}

Mailbox& C10dSession::next_mailbox() { return mailbox(next_++); }

Mailbox& C10dSession::mailbox(std::int32_t number) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Mailbox>& box = mailboxes_[number];
  // Another rank may have made its transport before this one.
  if (!box) box = std::make_unique<Mailbox>(number, rank(), world(), *lines_);
  return *box;
}

void C10dSession::flush(Seconds longest) { lines_->flush(longest); }

void C10dSession::take(Rank from, Message&& message) {
  if (message.kind != Message::Kind::left) return mailbox(message.transport).take(from, std::move(message));
  const std::lock_guard lock(mutex_);
  left_[from.index()] = true;
}

void C10dSession::lose(Rank peer, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (!left_[peer.index()] && !loss_) loss_ = Loss{peer, why};
}

std::optional<C10dSession::Loss> C10dSession::loss(std::optional<Rank> peer) const {
  const std::lock_guard lock(mutex_);
  if (loss_) return loss_;
  for (std::size_t r = 0; r < left_.size(); ++r) {
    const Rank rank{static_cast<std::int32_t>(r)};
    if (left_[r] && (!peer || *peer == rank)) return Loss{rank, "it has left the run"};
  }
  return std::nullopt;
}

}  // namespace stagecraft
