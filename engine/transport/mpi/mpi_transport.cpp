#include "engine/transport/mpi/mpi_transport.h"

#include "base/error.h"
#include "engine/transport/mpi/device_memory.h"
#include "engine/transport/mpi/mpi_bytes.h"
#include "engine/transport/mpi/mpi_check.h"
#include "engine/transport/mpi/polling.h"
#include "engine/transport/request_check.h"
#include "engine/transport/wait_error.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <exception>

namespace stagecraft::transport {
namespace {

/// Of the first `ranks` processes, which all call it.
MPI_Comm some_of_world(int ranks) {
  MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  mpi_check(MPI_Comm_group(MPI_COMM_WORLD, &all), "MPI_Comm_group");
  std::array<std::array<int, 3>, 1> range{{{0, ranks - 1, 1}}};  // first, last, stride
  mpi_check(MPI_Group_range_incl(all, 1, reinterpret_cast<int(*)[3]>(range.data()), &some),
            "MPI_Group_range_incl");
  mpi_check(MPI_Comm_create_group(MPI_COMM_WORLD, some, /*tag=*/0, &made), "MPI_Comm_create_group");
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  return made;
}

MPI_Comm make_communicator(int ranks, int world) {
  MPI_Comm copy = MPI_COMM_NULL;
  if (ranks < world) {
    copy = some_of_world(ranks);
  } else {
    mpi_check(MPI_Comm_dup(MPI_COMM_WORLD, &copy), "MPI_Comm_dup");
  }
  mpi_check(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return copy;
}

int tag_upper_bound() {
  void* value = nullptr;
  int found = 0;
  mpi_check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &found), "MPI_Comm_get_attr");
  return found != 0 ? *static_cast<int*>(value) : 32767;  // what the standard guarantees
}

}  // namespace

struct MpiTransport::MpiRequest final : Request {
  MpiSession& session;
  at::Tensor tensor;
  Tag tag;
  Rank peer;
  bool send;
  Clock::time_point begun = Clock::now();
  MPI_Request handle = MPI_REQUEST_NULL;
  bool done = false;

  MpiRequest(MpiSession& its_session, bool is_send, Rank its_peer, const Tag& its_tag, at::Tensor its_tensor)
      : session(its_session), tensor(std::move(its_tensor)), tag(its_tag), peer(its_peer), send(is_send) {}
  ~MpiRequest() override {
    if (done) return;
    if (!session.failed()) report_unfinished(session.rank(), send, tag, peer);
    session.mark_failed();
    session.keep(std::make_shared<at::Tensor>(std::move(tensor)));
  }
  MpiRequest(const MpiRequest&) = delete;
  MpiRequest& operator=(const MpiRequest&) = delete;

  bool test() {
    if (done) return true;
    int flag = 0;
    MPI_Status status;
    mpi_check(MPI_Test(&handle, &flag, &status), send ? "MPI_Test (send)" : "MPI_Test (receive)");
    done = flag != 0;
    if (done && !send) {
      const std::size_t count = received_bytes(status);
      STAGECRAFT_CHECK(count == tensor.nbytes(),
                       fmt::format("{} got {} bytes instead of {}", name_transfer(send, tag, peer), count,
                                   tensor.nbytes()));
      session.ring(peer);  // it may be waiting to be rid of it
    }
    return done;
  }
};

MpiTransport::MpiTransport(MpiSession& session, const TransportOptions& options, int ranks)
    : session_(session),
      world_(ranks),
      options_(options),
      waits_(session.rank(), options, session.heartbeats()),
      takes_device_memory_(mpi_takes_device_memory()),
      tags_(tag_upper_bound()),
      data_(make_communicator(ranks, session.world())),
      texts_(make_communicator(ranks, session.world())),
      agreements_(make_communicator(ranks, session.world())),
      alarm_(make_communicator(ranks, session.world())),
      alarm_text_(std::make_shared<std::array<char, 1024>>()) {
  mpi_check(MPI_Irecv(alarm_text_->data(), static_cast<int>(alarm_text_->size()), MPI_CHAR, MPI_ANY_SOURCE, 0,
                      alarm_, &alarm_request_),
            "MPI_Irecv");
}

MpiTransport::~MpiTransport() {
  if (session_.failed() || std::uncaught_exceptions() > 0) {
    session_.mark_failed();
    session_.keep(alarm_text_);
    for (auto& agreement : begun_) session_.keep(std::move(agreement));
    return;
  }
  MPI_Cancel(&alarm_request_);
  MPI_Wait(&alarm_request_, MPI_STATUS_IGNORE);
  MPI_Comm_free(&alarm_);
  MPI_Comm_free(&agreements_);
  MPI_Comm_free(&texts_);
  MPI_Comm_free(&data_);
}

RequestPtr MpiTransport::post_receive(Rank from, const Tag& tag, const at::Tensor& into) {
  check_transfer(*this, /*send=*/false, tag, from, into);
  const int code = tags_.encode(tag);
  const MpiBytes bytes(into.nbytes());
  auto request = std::make_unique<MpiRequest>(session_, /*is_send=*/false, from, tag, into);
  mpi_check(MPI_Irecv(into.mutable_data_ptr(), bytes.count(), bytes.type(), from.value, code, data_,
                      &request->handle),
            "MPI_Irecv");
  return request;
}

RequestPtr MpiTransport::start_send(Rank to, const Tag& tag, const at::Tensor& tensor) {
  RequestPtr request = post_send(to, tag, tensor);
  if (options_.synchronous_sends) wait(*request);
  return request;
}

RequestPtr MpiTransport::post_send(Rank to, const Tag& tag, const at::Tensor& tensor) {
  check_transfer(*this, /*send=*/true, tag, to, tensor);
  const int code = tags_.encode(tag);
  const MpiBytes bytes(tensor.nbytes());
  auto request = std::make_unique<MpiRequest>(session_, /*is_send=*/true, to, tag, tensor);
  const auto start = options_.synchronous_sends ? MPI_Issend : MPI_Isend;
  mpi_check(
      start(tensor.const_data_ptr(), bytes.count(), bytes.type(), to.value, code, data_, &request->handle),
      "MPI_Isend");
  session_.ring(to);
  return request;
}

bool MpiTransport::test(Request& request) { return dynamic_cast<MpiRequest&>(request).test(); }

void MpiTransport::wait(Request& request) {
  auto& transfer = dynamic_cast<MpiRequest&>(request);
  poll([&] { return transfer.test(); },
       [&] { return name_transfer(transfer.send, transfer.tag, transfer.peer); }, transfer.begun);
}

void MpiTransport::progress() {
  waits_.pulse().beat();
  // Layers may take a microsecond, and a look at MPI takes a part of one: transfers lose nothing by one look
  // in ten.
  constexpr std::chrono::microseconds kBetweenLooks(10);
  if (!background_) {
    const Clock::time_point now = Clock::now();
    if (now - looked_ < kBetweenLooks) return;
    looked_ = now;
  }
  // Any test moves all of MPI's transfers; this one also hears of failures.
  listen([] { return std::string("its work"); });
  if (background_) background_();
}

void MpiTransport::listen(const std::function<std::string()>& what) {
  if (alarm_request_ == MPI_REQUEST_NULL) throw PeerError("another rank failed before");
  int flag = 0;
  MPI_Status status;
  mpi_check(MPI_Test(&alarm_request_, &flag, &status), "MPI_Test (failures)");
  if (flag == 0) return;
  session_.mark_failed();
  const std::string reason(alarm_text_->data(), strnlen(alarm_text_->data(), alarm_text_->size()));
  const std::string text =
      gave_up(rank(), what(), Rank{status.MPI_SOURCE}, reason.empty() ? reason : reason.substr(1));
  if (reason.starts_with(kMeets)) throw MeetAgainError(text);
  throw PeerError(text);
}

void MpiTransport::poll(const std::function<bool()>& done, const std::function<std::string()>& what,
                        Clock::time_point begun) {
  constexpr int kListenEvery = 16;
  Wait wait(waits_, begun);
  Polling polling(session_.signals());
  for (int turn = 1;; ++turn) {
    polling.poll();
    if (done()) return;
    if (background_) background_();
    polling.pause();
    if (turn % kListenEvery != 0) continue;
    listen(what);
    wait.check(what);
  }
}

void MpiTransport::alarm(const std::string& reason) noexcept {
  session_.mark_failed();
  try {
    const auto text = std::make_shared<std::string>(reason.substr(0, alarm_text_->size()));
    session_.keep(text);
    std::vector<MPI_Request> sends;
    for (int peer = 0; peer < world(); ++peer) {
      if (peer == rank().value) continue;
      sends.emplace_back();
      if (MPI_Isend(text->data(), static_cast<int>(text->size()), MPI_CHAR, peer, 0, alarm_, &sends.back()) !=
          MPI_SUCCESS) {
        sends.pop_back();
      }
    }
    // Short messages leave at once; the grace is for a peer whose queue is full, or that is gone.
    const auto until = Clock::now() + std::chrono::milliseconds(500);
    int all = 0;
    while (all == 0 && Clock::now() < until) {
      if (MPI_Testall(static_cast<int>(sends.size()), sends.data(), &all, MPI_STATUSES_IGNORE) !=
          MPI_SUCCESS) {
        break;
      }
    }
  } catch (...) {
    // The others run into their timeouts, or the launcher ends them.
  }
}

}  // namespace stagecraft::transport
