#include "engine/transport/mpi/mpi_session.h"

#include "base/error.h"
#include "engine/transport/cores.h"
#include "engine/transport/heartbeats/heartbeats.h"
#include "engine/transport/mpi/futex_signals.h"
#include "engine/transport/mpi/mpi_check.h"
#include "engine/transport/mpi/mpi_transport.h"
#include "engine/transport/mpi/quiet_abort.h"
#include "engine/transport/waits.h"

#include <climits>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <functional>
#include <new>
#include <sched.h>
#include <string>
#include <vector>

namespace stagecraft {
namespace {

using transport::mpi_check;

/// The same for all processes under one kernel, in whatever containers or network namespaces: these make
/// hosts of their own to MPI, but share the processors.
int kernel_number() {
  return static_cast<int>(std::hash<std::string>{}(transport::boot_id()) & static_cast<std::size_t>(INT_MAX));
}

/// Whether the ranks of this machine outnumber the processors in the union of their affinity masks: launchers
/// pin each rank to processors of its own, so one rank's mask alone says nothing.
bool ranks_outnumber_processors(MPI_Comm machine) {
  int ranks = 1;
  mpi_check(MPI_Comm_size(machine, &ranks), "MPI_Comm_size");
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (sched_getaffinity(0, sizeof mine, &mine) != 0) CPU_SET(0, &mine);
  cpu_set_t all;
  CPU_ZERO(&all);
  mpi_check(MPI_Allreduce(&mine, &all, sizeof mine, MPI_BYTE, MPI_BOR, machine), "MPI_Allreduce");
  return ranks > CPU_COUNT(&all);
}

/// Texts lose their last words where they are longer than MPI is asked to send.
using Text = std::array<char, 1024>;
Text shortened(std::string words) {
  Text text{};
  if (words.size() >= text.size()) words.resize(words.rfind(' ', text.size() - 1));
  std::copy(words.begin(), words.end(), text.begin());
  return text;
}

std::shared_ptr<transport::Heartbeats> start_heartbeats(Rank rank, int world) {
  constexpr int kBytes = std::tuple_size_v<Text>;
  const auto gather = [&](const std::string& mine) {
    const Text text = shortened(mine);
    std::vector<Text> all(rank.value == 0 ? static_cast<std::size_t>(world) : 0);
    mpi_check(MPI_Gather(text.data(), kBytes, MPI_CHAR, all.data(), kBytes, MPI_CHAR, 0, MPI_COMM_WORLD),
              "MPI_Gather");
    std::vector<std::string> texts;
    for (const Text& one : all) texts.emplace_back(one.data());
    return texts;
  };
  const auto broadcast = [&](const std::string& words) {
    Text text = shortened(words);
    mpi_check(MPI_Bcast(text.data(), kBytes, MPI_CHAR, 0, MPI_COMM_WORLD), "MPI_Bcast");
    return std::string(text.data());
  };
  return transport::Heartbeats::meet(rank, world, {gather, broadcast});
}

}  // namespace

MpiSession::MpiSession(MpiThreads threads) {
  int provided = 0;
  setenv("UCX_DEBUG_SIGNO", "0", 0);  // an MPI that loads UCX only now must leave SIGHUP to the run
  // Only the thread of the session calls MPI; the process has others.
  const int wanted = threads == MpiThreads::in_turn ? MPI_THREAD_SERIALIZED : MPI_THREAD_FUNNELED;
  mpi_check(MPI_Init_thread(nullptr, nullptr, wanted, &provided), "MPI_Init_thread");
  if (provided < wanted)
    throw PeerError("this MPI may be called by one thread alone, and ranks of Python have their own");
  if (provided < MPI_THREAD_FUNNELED) throw PeerError("this MPI allows no threads beside it");
  mpi_check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  int rank = 0;
  mpi_check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &world_), "MPI_Comm_size");
  rank_ = Rank{rank};
  MPI_Comm machine = MPI_COMM_NULL;
  mpi_check(MPI_Comm_split(MPI_COMM_WORLD, kernel_number(), 0, &machine), "MPI_Comm_split");
  if (ranks_outnumber_processors(machine)) signals_ = std::make_unique<transport::FutexSignals>(machine);
  mpi_check(MPI_Comm_free(&machine), "MPI_Comm_free");
  heartbeats_ = start_heartbeats(rank_, world_);
}

MpiSession::~MpiSession() {
  if (failed_ || std::uncaught_exceptions() > 0) {
    // MPI's progress may still touch this memory until the process is gone: leaked on purpose.
    (void)new (std::nothrow) std::vector<std::shared_ptr<void>>(std::move(kept_));
    (void)signals_.release();
    (void)new (std::nothrow)
        std::shared_ptr<void>(std::move(heartbeats_));  // no goodbye: the others hear the process end
    return;
  }
  heartbeats_.reset();
  signals_.reset();
  MPI_Finalize();
}

TransportOptions MpiSession::share(const TransportOptions& own) {
  std::vector<double> numbers = transport::numbers_of(own);
  mpi_check(MPI_Bcast(numbers.data(), static_cast<int>(numbers.size()), MPI_DOUBLE, 0, MPI_COMM_WORLD),
            "MPI_Bcast");
  return transport::options_from(numbers, own);
}

std::unique_ptr<Transport> MpiSession::make_transport(const TransportOptions& options, int ranks) {
  return std::make_unique<transport::MpiTransport>(*this, options, ranks);
}

std::shared_ptr<Signs> MpiSession::heartbeats() const { return heartbeats_; }

void MpiSession::ring(Rank peer) noexcept {
  if (signals_) signals_->ring(peer);
}

void MpiSession::end_others(int exit_code) noexcept { transport::quiet_abort(exit_code); }

}  // namespace stagecraft
