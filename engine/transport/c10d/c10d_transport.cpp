#include "engine/transport/c10d/c10d_transport.h"

#include "base/error.h"
#include "engine/transport/heartbeats/heartbeats.h"
#include "engine/transport/request_check.h"
#include "engine/transport/spin.h"
#include "engine/transport/texts.h"
#include "engine/transport/wait_error.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <cstdint>
#include <utility>

namespace stagecraft::transport {
namespace {

/// Time for the reason to come. That of the lost rank itself came before its connection broke, in the same order as
/// it was sent; but the rank may have left for another one's, whose words are still on their way.
constexpr Seconds kLossGrace{0.5};
/// Time for a failure's reason to leave.
constexpr Seconds kAlarm{0.5};

}  // namespace

struct C10dTransport::C10dRequest final : Request {
  C10dRequest(C10dSession& its_session, std::shared_ptr<C10dHalf> begun)
      : session(its_session), half(std::move(begun)) {}
  ~C10dRequest() override {
    if (half->over) return;
    if (!session.failed()) report_unfinished(session.rank(), half->send, half->tag, half->peer);
    session.mark_failed();
    session.keep(std::move(half));
  }
  C10dRequest(const C10dRequest&) = delete;
  C10dRequest& operator=(const C10dRequest&) = delete;

  [[nodiscard]] bool over() const {
    if (!half->over.load(std::memory_order_acquire)) return false;
    STAGECRAFT_CHECK(half->refusal.empty(), fmt::format("rank {}: {}", session.rank().value, half->refusal));
    return true;
  }

  C10dSession& session;
  std::shared_ptr<C10dHalf> half;
};

C10dTransport::C10dTransport(C10dSession& session, const TransportOptions& options, int ranks)
    : session_(session),
      world_(ranks),
      options_(options),
      mailbox_(session.next_mailbox()),
      waits_(session.rank(), options, session.heartbeats()) {
  mailbox_.meet(ranks);
}

bool C10dTransport::carries_tensors() const { return session_.carries_tensors(); }

RequestPtr C10dTransport::begin(bool send, bool texts, Rank peer, const Tag& tag, const at::Tensor& tensor) {
  check_transfer(*this, send, tag, peer, tensor);
  auto half = std::make_shared<C10dHalf>();
  half->send = send;
  half->texts = texts;
  half->peer = peer;
  half->tag = tag;
  half->tensor = tensor;
  half->begun = std::chrono::steady_clock::now();
  mailbox_.begin(half);
  return std::make_unique<C10dRequest>(session_, std::move(half));
}

RequestPtr C10dTransport::post_receive(Rank from, const Tag& tag, const at::Tensor& into) {
  return begin(/*send=*/false, /*texts=*/false, from, tag, into);
}

RequestPtr C10dTransport::start_send(Rank to, const Tag& tag, const at::Tensor& tensor) {
  RequestPtr request = post_send(to, tag, tensor);
  if (options_.synchronous_sends) wait(*request);
  return request;
}

RequestPtr C10dTransport::post_send(Rank to, const Tag& tag, const at::Tensor& tensor) {
  return begin(/*send=*/true, /*texts=*/false, to, tag, tensor);
}

bool C10dTransport::test(Request& request) { return dynamic_cast<C10dRequest&>(request).over(); }

void C10dTransport::wait(Request& request) {
  const auto& transfer = dynamic_cast<C10dRequest&>(request);
  const C10dHalf& half = *transfer.half;
  poll([&] { return transfer.over(); }, [&] { return name_transfer(half.send, half.tag, half.peer); },
       half.peer, half.begun);
}

void C10dTransport::progress() {
  waits_.pulse().beat();
  listen([] { return std::string("its work"); });
  if (background_) background_();
}

void C10dTransport::listen(const What& what) {
  const std::optional<Mailbox::Failure> failure = mailbox_.failure();
  if (!failure) return;
  session_.mark_failed();
  const std::string text = gave_up(rank(), what(), failure->rank, failure->reason);
  if (failure->meets) throw MeetAgainError(text);
  throw PeerError(text);
}

void C10dTransport::poll(const std::function<bool()>& done, const What& what, std::optional<Rank> peer,
                         std::chrono::steady_clock::time_point begun) {
  if (done()) return;
  if (session_.roomy() && spin(done, background_)) return;
  Wait wait(waits_, begun);
  std::optional<Stopwatch> lost;
  while (true) {
    const std::uint64_t events = mailbox_.events();
    if (done()) return;
    listen(what);
    if (background_) background_();
    mailbox_.sleep(events, background_ ? kPollingSlice : kSlice);
    if (done()) return;
    wait.check(what);
    const auto loss = session_.loss(peer);
    if (!loss) continue;
    if (!lost) lost.emplace();
    if (lost->read() > kLossGrace) {
      session_.mark_failed();
      const std::shared_ptr<Signs> signs = session_.heartbeats();
      const Sign sign = signs ? signs->of(loss->rank) : Sign();
      const bool gone = sign.life == Sign::Life::gone;
      throw PeerError(gone ? gave_up_silent(rank(), what(), loss->rank, sign)
                           : gave_up(rank(), what(), loss->rank, loss->why));
    }
  }
}

void C10dTransport::alarm(const std::string& reason, bool meets) noexcept {
  session_.mark_failed();
  try {
    mailbox_.tell_failure(reason, meets);
    session_.flush(kAlarm);
  } catch (...) {
    // The others run into their timeouts.
  }
}

std::vector<std::string> C10dTransport::exchange(const std::string& what, const std::string& mine) {
  const std::uint32_t number = collectives_++;
  mailbox_.bring(number, what, mine);
  std::optional<std::vector<std::string>> result;
  const auto done = [&] {
    if (!result) result = mailbox_.take_result(number);
    return result.has_value();
  };
  poll(
      done, [&] { return what; }, {}, std::chrono::steady_clock::now());
  return *std::move(result);
}

void C10dTransport::barrier() { (void)exchange("barrier", ""); }

std::vector<std::vector<double>> C10dTransport::all_gather(const std::vector<double>& mine) {
  std::vector<std::vector<double>> all;
  for (const std::string& part : exchange("all_gather", bytes_of(mine))) all.push_back(numbers_in(part));
  return all;
}

std::vector<std::string> C10dTransport::all_gather_text(const std::string& mine) {
  return exchange("all_gather_text", mine);
}

std::string C10dTransport::broadcast(const std::string& text) {
  return std::move(exchange("broadcast", rank() == Rank{0} ? text : std::string()).front());
}

void C10dTransport::gather_text(Rank to, const std::string& mine,
                                const std::function<void(Rank from, const std::string& text)>& take) {
  std::string text;
  if (rank() != to) {
    text = mine;
    return pass_text(/*send=*/true, to, text);
  }
  for (int r = 0; r < world(); ++r) {
    if (Rank{r} == to) {
      take(to, mine);
      continue;
    }
    pass_text(/*send=*/false, Rank{r}, text);
    take(Rank{r}, text);
  }
}

void C10dTransport::pass_text(bool send, Rank peer, std::string& text) {
  struct Memory {
    std::uint64_t size = 0;
    std::string text;
  };
  // Held by the transfers as well, should a wait fail.
  const auto memory = std::make_shared<Memory>(Memory{text.size(), std::move(text)});
  const auto what = [&] {
    return fmt::format("{} a text {} rank {}", send ? "send of" : "receive of", send ? "to" : "from",
                       peer.value);
  };
  const auto pass = [&](void* bytes, std::size_t size) {
    const at::Tensor piece = at::from_blob(
        bytes, {static_cast<std::int64_t>(size)}, [memory](void*) {}, at::kByte);
    // Texts between two ranks meet by their order.
    const RequestPtr request = begin(send, /*texts=*/true, peer, Tag{}, piece);
    const auto& transfer = dynamic_cast<const C10dRequest&>(*request);
    poll([&] { return transfer.over(); }, what, peer, transfer.half->begun);
  };
  pass(&memory->size, sizeof memory->size);
  memory->text.resize(memory->size);
  each_piece(memory->text, options_.text_piece, pass);
  text = std::move(memory->text);
}

void C10dTransport::begin_agreement(int mine) { mailbox_.agree(begun_++, mine); }

int C10dTransport::finish_agreement() {
  STAGECRAFT_CHECK(finished_ < begun_, "an agreement is begun before it is finished");
  const std::uint32_t number = finished_++;
  std::optional<int> most;
  const auto done = [&] {
    if (!most) most = mailbox_.take_agreed(number);
    return most.has_value();
  };
  poll(
      done, [] { return std::string("agreement of all ranks"); }, {}, std::chrono::steady_clock::now());
  return *most;
}

}  // namespace stagecraft::transport
