// The MPI transport under mpiexec: its contract, and pipelines that equal the oracle to the bit, with as many
// stages as ranks. Every rank computes the oracle itself and judges its own layers.
//
//   mpiexec -n N test_mpi contract | equality [STRIDE] | captured | lengths [STRIDE] | tied [STRIDE] |
//   direct [STRIDE] | stragglers | huge | failure | timeout
//
// direct: both of the direct transport over MPI, on a fake device.
//
// Not a Catch2 binary: a rank that fails must take the others with it (MPI_Abort), not finish its report.

#include "base/error.h"
#include "engine/transport/direct/direct_transport.h"
#include "engine/transport/mpi/mpi_bytes.h"
#include "engine/transport/mpi/mpi_session.h"
#include "test/engine/case_list.h"
#include "test/engine/process_ranks.h"
#include "test/engine/transport_contract.h"
#include "test/support/demand.h"
#include "test/support/fake_device.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

/// Around the ring: a message that MPI is told of in blocks, as one beyond INT_MAX bytes would be.
void messages_in_blocks(const MpiSession& session, std::size_t bytes, std::size_t most) {
  const int me = session.rank().value;
  const int next = (me + 1) % session.world();
  const int previous = (me + session.world() - 1) % session.world();
  std::vector<char> sent(bytes);
  for (std::size_t i = 0; i < bytes; ++i) sent[i] = static_cast<char>(i * 31 + static_cast<std::size_t>(me));
  std::vector<char> received(bytes + 1, 'x');
  std::array<MPI_Request, 2> requests{};
  {
    const transport::MpiBytes blocks(bytes, most);
    demand(blocks.count() == 1 || bytes <= most, "a long message is one element");
    MPI_Irecv(received.data(), blocks.count(), blocks.type(), previous, 0, MPI_COMM_WORLD, requests.data());
    MPI_Isend(sent.data(), blocks.count(), blocks.type(), next, 0, MPI_COMM_WORLD, &requests[1]);
  }
  std::array<MPI_Status, 2> statuses{};
  MPI_Waitall(2, requests.data(), statuses.data());
  demand(transport::received_bytes(statuses[0]) == bytes, "all bytes of the blocks are counted");
  for (std::size_t i = 0; i < bytes; ++i) {
    const auto expected = static_cast<char>(i * 31 + static_cast<std::size_t>(previous));
    demand(received[i] == expected, fmt::format("byte {} of {} arrives", i, bytes));
  }
  demand(received[bytes] == 'x', "nothing is written behind the message");
}

void contract(MpiSession& session) {
  for (const std::size_t bytes : {0, 1, 999, 1000, 1001, 4000, 70'001}) {
    messages_in_blocks(session, bytes, /*most=*/1000);
  }
  processes_keep_the_contract(
      [&](const TransportOptions& options) { return session.make_transport(options); });
  // The same without the last rank, which waits meanwhile.
  const int some = session.world() - 1;
  if (some < 1) return;
  const auto everybody = session.make_transport({.timeout = Seconds{1}});
  if (session.rank().value < some) {
    processes_keep_the_contract(
        [&](const TransportOptions& options) { return session.make_transport(options, some); });
  }
  const InPhase waiting(everybody->waits(), Phase::spare);
  everybody->barrier();
}

/// By hand, on 2 ranks: takes 4.3 GB per rank.
void huge_messages(MpiSession& session) {
  const auto transport = session.make_transport({.timeout = Seconds{300}});
  const std::int64_t bytes = (std::int64_t{1} << 31U) + 4097;
  const int me = session.rank().value;
  const Tag tag{.payload = Payload::gradient, .from = StageId{1}, .to = StageId{0}, .number = 0};
  at::Tensor sent = at::full({bytes}, 1 + me, at::kByte);
  sent[bytes - 1] = 7;
  const at::Tensor received = at::zeros({bytes}, at::kByte);
  const RequestPtr receive = transport->post_receive(Rank{1 - me}, tag, received);
  const RequestPtr send = transport->start_send(Rank{1 - me}, tag, sent);
  transport->wait(*receive);
  transport->wait(*send);
  demand(received[bytes - 1].item<int>() == 7, "the last byte arrives");
  demand(received.narrow(0, 0, bytes - 1).eq_(2 - me).all().item<bool>(), "all bytes arrive");
  transport->barrier();
  if (me == 0) fmt::print("messages of {} bytes arrived\n", bytes);
}

void equality(MpiSession& session, const std::vector<PipelineCase>& cases, std::size_t stride) {
  const auto transport = session.make_transport({.timeout = Seconds{120}, .synchronous_sends = true});
  processes_equal_the_oracle(*transport, cases, stride);
}

/// MPI is handed what is on the fake device, whose memory is the CPU's.
void direct(MpiSession& session, const std::vector<PipelineCase>& cases, std::size_t stride) {
  const TransportOptions options{.timeout = Seconds{120}, .synchronous_sends = true};
  const auto seed = static_cast<std::uint64_t>(session.rank().value) + 1;
  transport::DirectTransport transport(session.make_transport(options),
                                       std::make_shared<FakeDevice>(std::make_shared<FakeFabric>(), seed));
  for (const auto& promise : {collectives_agree, agreements_come_late, tags_match,
                              equal_tags_keep_their_order, transfers_progress, posted_sends_do_not_block}) {
    promise(transport);
  }
  large_messages_arrive(transport, std::int64_t{64} << 20U);
  if (transport.world() >= 2) background_work_goes_on(transport);
  processes_equal_the_oracle(transport, cases, stride);
}

const Tag kTag{.payload = Payload::gradient, .from = StageId{1}, .to = StageId{0}, .number = 2};

/// Rank 1 fails; the others hear of it at once, in a wait, a collective or in the middle of their work.
void failure(MpiSession& session) {
  const auto transport = session.make_transport({.timeout = Seconds{60}});
  transport->barrier();
  const auto begin = std::chrono::steady_clock::now();
  if (session.rank().value == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    transport->fail("the disk is full");
    // What a run does next: record why, then abort. Left out here, so that all others report first.
    std::this_thread::sleep_for(std::chrono::seconds(2));
    session.abort(4);
  }
  try {
    const at::Tensor tensor = at::zeros({4});
    if (session.rank().value == 0) transport->wait(*transport->post_receive(Rank{1}, kTag, tensor));
    if (session.rank().value == 2) transport->barrier();
    while (true) transport->progress();
  } catch (const PeerError& error) {
    const std::string text = error.what();
    demand(text.find("rank 1 failed: the disk is full") != std::string::npos, text);
    demand(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2), "heard too late");
    fmt::print("rank {} heard of the failure\n", session.rank().value);
    std::fflush(stdout);
  }
  std::this_thread::sleep_for(std::chrono::seconds(30));  // rank 1 ends this one
}

void timeout(MpiSession& session) {
  const auto transport = session.make_transport({.timeout = Seconds{0.5}});
  transport->barrier();
  if (session.rank().value != 0) {
    std::this_thread::sleep_for(std::chrono::seconds(30));  // a hanging rank; rank 0 ends it
    return;
  }
  try {
    const at::Tensor tensor = at::zeros({4});
    transport->wait(*transport->post_receive(Rank{1}, kTag, tensor));
  } catch (const PeerError& error) {
    fmt::print("{}\n", error.what());
    std::fflush(stdout);
    transport->fail(error.what());
  }
  session.abort(4);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "contract";
  at::set_num_threads(1);
  MpiSession session;
  try {
    if (what == "contract") {
      contract(session);
    } else if (what == "equality") {
      equality(session, covering(Cover::values, std::vector{session.world()}), 1);
    } else if (what == "captured") {
      equality(session, covering(Cover::values, captured_cases(session.world())), 1);
    } else if (what == "lengths") {
      equality(session, lengths_cases(session.world()), argc > 2 ? std::stoul(argv[2]) : 1);
    } else if (what == "tied") {
      equality(session, tied_cases(session.world()), argc > 2 ? std::stoul(argv[2]) : 1);
    } else if (what == "direct") {
      direct(session, all_cases(session.world()), argc > 2 ? std::stoul(argv[2]) : 1);
    } else if (what == "stragglers") {
      equality(session, straggler_cases(session.world()), 1);
    } else if (what == "huge") {
      huge_messages(session);
    } else if (what == "failure") {
      failure(session);
    } else {
      timeout(session);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {} of {}: {}\n", session.rank().value, session.world(), error.what());
    session.abort(1);
  }
  return 0;
}
