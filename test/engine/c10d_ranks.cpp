// What test/scripts/c10d_test.py loads into each of its ranks, which are processes of Python with a group of Gloo's.

#include "base/error.h"
#include "engine/run/start/train.h"
#include "engine/transport/c10d/c10d_session.h"
#include "engine/transport/c10d/store_wire.h"
#include "test/engine/process_ranks.h"
#include "test/engine/transport_contract.h"
#include "test/support/demand.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

/// Of all time, also that of a process that was stopped.
class Clock {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

const Tag kTag{.payload = Payload::gradient, .from = StageId{1}, .to = StageId{0}, .number = 2};
constexpr std::int64_t kLong = 1 << 20;

/// A barrier that all others have left before rank 1 does: what it does next is heard behind it.
void meet(Transport& transport) {
  transport.barrier();
  const at::Tensor word = at::zeros({1});
  if (transport.rank() != Rank{1}) return transport.wait(*transport.post_send(Rank{1}, kTag, word));
  for (int r = 0; r < transport.world(); ++r) {
    if (r != 1) transport.wait(*transport.post_receive(Rank{r}, kTag, word));
  }
}

/// What a rank waits for that rank 1 never does.
void wait_for_rank_1(Transport& transport) {
  const at::Tensor tensor = at::zeros({kLong});
  if (transport.rank() == Rank{0}) return transport.wait(*transport.post_receive(Rank{1}, kTag, tensor));
  if (transport.rank() == Rank{2}) return transport.barrier();
  while (true) transport.progress();
}

/// Prints what this rank hears of the others' end, and after how long.
void print_what_is_heard(Transport& transport) {
  const Clock clock;
  try {
    wait_for_rank_1(transport);
  } catch (const PeerError& error) {
    fmt::print("rank {} after {:.1f} s: {}\n", transport.rank().value, clock.seconds(), error.what());
  }
}

void failure(C10dSession& session) {
  const auto transport = session.make_transport({.timeout = Seconds{60}});
  meet(*transport);
  if (session.rank() == Rank{1}) return transport->fail("the disk is full");
  print_what_is_heard(*transport);
}

/// Rank 1 goes by a signal, in the middle of a long transfer to it.
void signalled(C10dSession& session, int signal, Seconds timeout) {
  const auto transport = session.make_transport({.timeout = timeout});
  meet(*transport);
  if (session.rank() == Rank{1}) {
    const RequestPtr receive =
        transport->post_receive(Rank{0}, kTag, at::zeros({std::int64_t{64} << 20U}, at::kByte));
    std::fflush(stdout);
    kill(getpid(), signal);
    sleep(60);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const at::Tensor tensor = at::zeros({std::int64_t{64} << 20U}, at::kByte);
  RequestPtr send;
  if (session.rank() == Rank{0}) send = transport->post_send(Rank{1}, kTag, tensor);
  print_what_is_heard(*transport);
}

/// The process goes on, and never does what is waited for.
void hanging(C10dSession& session) {
  const auto transport = session.make_transport({.timeout = Seconds{1}});
  meet(*transport);
  if (session.rank() == Rank{1}) {
    std::this_thread::sleep_for(std::chrono::seconds(3));
    return session.mark_failed();
  }
  print_what_is_heard(*transport);
}

/// Microseconds one way, and how fast a long tensor is.
void speed(C10dSession& session) {
  const auto transport = session.make_transport({.timeout = Seconds{60}});
  const int me = session.rank().value;
  for (const std::int64_t bytes : {4L, 1L << 14, 1L << 16, 1L << 20, 1L << 26}) {
    const int rounds = bytes > (1 << 20) ? 10 : 500;
    const at::Tensor tensor = at::zeros({bytes}, at::kByte);
    const at::Tensor answer = at::zeros({bytes}, at::kByte);
    transport->barrier();
    const Clock clock;
    for (int i = 0; i < rounds; ++i) {
      const RequestPtr receive = transport->post_receive(Rank{1 - me}, kTag, answer);
      if (me == 1) transport->wait(*receive);
      const RequestPtr send = transport->post_send(Rank{1 - me}, kTag, tensor);
      if (me == 0) transport->wait(*receive);
      transport->wait(*send);
    }
    const double one_way = clock.seconds() / rounds / 2;
    if (me == 0) {
      fmt::print("{:>9} bytes: {:8.1f} us one way, {:5.2f} GB/s\n", bytes, one_way * 1e6,
                 static_cast<double>(bytes) / one_way / 1e9);
    }
  }
}

/// The user's group and two pipelines' at once.
void both(const std::string& one, const std::string& other) {
  std::vector<std::exception_ptr> errors(2);
  std::vector<std::thread> threads;
  for (const std::size_t i : {0U, 1U}) {
    threads.emplace_back([&, i] {
      try {
        C10dSession session(i == 0 ? one : other);
        const auto transport = session.make_transport({.timeout = Seconds{60}});
        for (int round = 0; round < 20; ++round) tags_match(*transport);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

/// The run of a config, as `python -m stagecraft train` begins it.
void train_config(const std::string& config, const std::string& group) {
  TrainRequest request;
  request.config = config;
  request.process_group = group;
  TrainOutput output;
  output.note = [](const std::string& text) { fmt::print("{}\n", text); };
  output.report_exception = [] {
    try {
      throw;
    } catch (const std::exception& error) {
      fmt::print("{}\n", error.what());
    }
    std::fflush(stdout);
  };
  demand(train(request, output).trained, "nothing was trained");
}

/// Of a group that Python made, or over the store that the environment names.
std::unique_ptr<C10dSession> session_over(const std::string& group) {
  constexpr Seconds kPatience{60};
  if (group != "store") return std::make_unique<C10dSession>(group);
  return std::make_unique<C10dSession>(transport::make_launcher_wire(detect_launch(), kPatience), kPatience);
}

void run(const std::string& what, const std::string& group, const std::string& argument) {
  if (what == "both") return both(group, argument);
  if (what == "train") return train_config(argument, group);
  const std::unique_ptr<C10dSession> its = session_over(group);
  C10dSession& session = *its;
  const auto make = [&](const TransportOptions& options) { return session.make_transport(options); };
  const auto compare = [&](const std::vector<PipelineCase>& cases) {
    processes_equal_the_oracle(*make({.timeout = Seconds{120}, .synchronous_sends = true}), cases,
                               std::stoul(argument));
  };
  if (what == "contract") return processes_keep_the_contract(make);
  if (what == "equality") return compare(all_cases(session.world()));
  if (what == "tied") return compare(tied_cases(session.world()));
  if (what == "failure") return failure(session);
  if (what == "killed") return signalled(session, SIGKILL, Seconds{60});
  if (what == "stopped") return signalled(session, SIGSTOP, Seconds{4});
  if (what == "hanging") return hanging(session);
  if (what == "speed") return speed(session);
  throw InternalError("no such case: " + what);
}

}  // namespace

/// One rank's part of a case; 0, or 1 after printing what is wrong.
extern "C" __attribute__((visibility("default"))) int stagecraft_c10d_rank(const char* what,
                                                                           const char* group,
                                                                           const char* argument) {
  int code = 0;
  try {
    run(what, group, argument);
  } catch (const std::exception& error) {
    fmt::print("wrong: {}\n", error.what());
    code = 1;
  }
  std::fflush(stdout);
  return code;
}
