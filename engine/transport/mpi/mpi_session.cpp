#include "engine/transport/mpi/mpi_session.h"

#include "base/error.h"
#include "engine/transport/cores.h"
#include "engine/transport/heartbeats/heartbeats.h"
#include "engine/transport/heartbeats/sockets.h"
#include "engine/transport/mpi/futex_signals.h"
#include "engine/transport/mpi/mpi_check.h"

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

/// Collective. Rank 0 invites, the others come; null where that cannot be.
std::shared_ptr<transport::Heartbeats> start_heartbeats(Rank rank, int world) {
  if (world == 1) return nullptr;
  using Text = std::array<char, 1024>;  // texts lose their last words where they are longer
  const auto put = [](std::string words, Text& text) {
    if (words.size() >= text.size()) words.resize(words.rfind(' ', text.size() - 1));
    std::copy(words.begin(), words.end(), text.begin());
  };
  const transport::Reach reach = transport::own_reach();
  Text text{};
  put(to_text(reach), text);
  std::vector<Text> all(rank.value == 0 ? static_cast<std::size_t>(world) : 0);
  const int bytes = static_cast<int>(text.size());
  mpi_check(MPI_Gather(text.data(), bytes, MPI_CHAR, all.data(), bytes, MPI_CHAR, 0, MPI_COMM_WORLD),
            "MPI_Gather");
  std::shared_ptr<transport::Heartbeats> beats;
  if (rank.value == 0) {
    std::vector<transport::Reach> guests;
    for (std::size_t r = 1; r < all.size(); ++r) guests.push_back(transport::reach_from(all[r].data()));
    std::string invitation;
    beats = transport::Heartbeats::host(world, listening_addresses(reach, guests), invitation);
    text = {};
    put(invitation, text);
  }
  mpi_check(MPI_Bcast(text.data(), static_cast<int>(text.size()), MPI_CHAR, 0, MPI_COMM_WORLD), "MPI_Bcast");
  return rank.value == 0 ? beats : transport::Heartbeats::guest(rank, world, text.data());
}

}  // namespace

MpiSession::MpiSession() {
  int provided = 0;
  setenv("UCX_DEBUG_SIGNO", "0", 0);  // an MPI that loads UCX only now must leave SIGHUP to the run
  // Only the thread of the session calls MPI; the process has others.
  mpi_check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
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

TransportOptions MpiSession::share(const TransportOptions& own) const {
  std::array<double, 4> values{own.timeout.value, own.synchronous_sends ? 1.0 : 0.0,
                               own.start_up_timeout.value, own.save_timeout.value};
  mpi_check(MPI_Bcast(values.data(), static_cast<int>(values.size()), MPI_DOUBLE, 0, MPI_COMM_WORLD),
            "MPI_Bcast");
  return {.timeout = Seconds{values[0]},
          .synchronous_sends = values[1] != 0,
          .start_up_timeout = Seconds{values[2]},
          .save_timeout = Seconds{values[3]},
          .text_piece = own.text_piece};
}

std::shared_ptr<Signs> MpiSession::heartbeats() const { return heartbeats_; }

void MpiSession::ring(Rank peer) noexcept {
  if (signals_) signals_->ring(peer);
}

void MpiSession::abort(int exit_code) noexcept {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

}  // namespace stagecraft
