// The MPI transport under mpiexec: its contract, and pipelines that equal the oracle to the bit, with as many
// stages as ranks. Every rank computes the oracle itself and judges its own layers.
//
//   mpiexec -n N test_mpi contract | equality [STRIDE] | direct [STRIDE] | stragglers | failure | timeout
//
// direct: both of the direct transport over MPI, on a fake device.
//
// Not a Catch2 binary: a rank that fails must take the others with it (MPI_Abort), not finish its report.

#include "engine/transport/direct/direct_transport.h"
#include "engine/transport/factory.h"
#include "schedules/base/error.h"
#include "test/engine/case_list.h"
#include "test/engine/transport_contract.h"
#include "test/support/fake_device.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

void demand(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

void contract(MpiSession& session) {
  for (const bool synchronous : {false, true}) {
    const auto transport = make_mpi_transport(
        session, {.timeout = Seconds{60}, .synchronous_sends = synchronous, .text_piece = 1000});
    collectives_agree(*transport);
    texts_are_gathered(*transport);
    // With ranks in a ring that all send first, only posted receives let synchronous sends return.
    tags_match(*transport);
    equal_tags_keep_their_order(*transport);
    transfers_progress(*transport);
    large_messages_arrive(*transport, std::int64_t{64} << 20U);
    if (synchronous && transport->world() >= 2) synchronous_sends_block(*transport);
    posted_sends_do_not_block(*transport);
    if (transport->world() >= 2) background_work_goes_on(*transport);
    transport->barrier();
  }
  const auto transport = make_mpi_transport(
      session, {.timeout = Seconds{0.7}, .start_up_timeout = Seconds{60}, .save_timeout = Seconds{60}});
  transport->waits().enter(Phase::start_up);
  transport->barrier();  // ranks come here when they come
  transport->waits().enter(Phase::step);
  phases_have_bounds(*transport);
}

void equality(MpiSession& session, Transport& transport, const std::vector<PipelineCase>& cases,
              std::size_t stride) {
  std::size_t runs = 0;
  for (std::size_t i = stride == 1 ? 0 : static_cast<std::size_t>(session.world()); i < cases.size();
       i += stride) {
    const Setting setting(cases[i]);
    const Outcome outcome = run_rank(setting, transport);
    const std::string found = difference(outcome, oracle_of(setting), transport.rank().value == 0);
    demand(found.empty(), fmt::format("{}: {}", cases[i].name(), found));
    ++runs;
  }
  transport.barrier();
  if (session.rank().value == 0) {
    fmt::print("{} runs over {} MPI ranks compared with the oracle\n", runs, session.world());
  }
}

void equality(MpiSession& session, const std::vector<PipelineCase>& cases, std::size_t stride) {
  const auto transport = make_mpi_transport(session, {.timeout = Seconds{120}, .synchronous_sends = true});
  equality(session, *transport, cases, stride);
}

/// MPI is handed what is on the fake device, whose memory is the CPU's.
void direct(MpiSession& session, const std::vector<PipelineCase>& cases, std::size_t stride) {
  const TransportOptions options{.timeout = Seconds{120}, .synchronous_sends = true};
  const auto seed = static_cast<std::uint64_t>(session.rank().value) + 1;
  transport::DirectTransport transport(make_mpi_transport(session, options),
                                       std::make_shared<FakeDevice>(std::make_shared<FakeFabric>(), seed));
  for (const auto& promise : {collectives_agree, tags_match, equal_tags_keep_their_order, transfers_progress,
                              posted_sends_do_not_block}) {
    promise(transport);
  }
  large_messages_arrive(transport, std::int64_t{64} << 20U);
  if (transport.world() >= 2) background_work_goes_on(transport);
  equality(session, transport, cases, stride);
}

const Tag kTag{
    .payload = Payload::gradient, .from = StageId{1}, .to = StageId{0}, .micro_batch = MicroBatch{2}};

/// Rank 1 fails; the others hear of it at once, in a wait, a collective or in the middle of their work.
void failure(MpiSession& session) {
  const auto transport = make_mpi_transport(session, {.timeout = Seconds{60}});
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
  const auto transport = make_mpi_transport(session, {.timeout = Seconds{0.5}});
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
      equality(session, all_cases(session.world()), argc > 2 ? std::stoul(argv[2]) : 1);
    } else if (what == "direct") {
      direct(session, all_cases(session.world()), argc > 2 ? std::stoul(argv[2]) : 1);
    } else if (what == "stragglers") {
      equality(session, straggler_cases(session.world()), 1);
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
