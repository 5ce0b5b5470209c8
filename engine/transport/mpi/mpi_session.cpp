#include "engine/transport/mpi/mpi_session.h"

#include "engine/transport/mpi/mpi_check.h"
#include "schedules/base/error.h"

#include <array>
#include <cstdlib>
#include <exception>
#include <sched.h>

namespace stagecraft {
namespace {

using transport::mpi_check;

/// Whether the ranks of this machine outnumber the processors in the union of their affinity masks: launchers
/// pin each rank to processors of its own, so one rank's mask alone says nothing.
bool ranks_outnumber_processors() {
  MPI_Comm machine = MPI_COMM_NULL;
  mpi_check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine),
            "MPI_Comm_split_type");
  int ranks = 1;
  mpi_check(MPI_Comm_size(machine, &ranks), "MPI_Comm_size");
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (sched_getaffinity(0, sizeof mine, &mine) != 0) CPU_SET(0, &mine);
  cpu_set_t all;
  CPU_ZERO(&all);
  mpi_check(MPI_Allreduce(&mine, &all, sizeof mine, MPI_BYTE, MPI_BOR, machine), "MPI_Allreduce");
  mpi_check(MPI_Comm_free(&machine), "MPI_Comm_free");
  return ranks > CPU_COUNT(&all);
}

}  // namespace

MpiSession::MpiSession() {
  int provided = 0;
  // Only the thread of the session calls MPI; the process has others.
  mpi_check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED) throw PeerError("this MPI allows no threads beside it");
  mpi_check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  int rank = 0;
  mpi_check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &world_), "MPI_Comm_size");
  rank_ = Rank{rank};
  crowded_ = ranks_outnumber_processors();
}

MpiSession::~MpiSession() {
  if (failed_ || std::uncaught_exceptions() > 0) {
    // MPI's progress may still touch this memory until the process is gone: leaked on purpose.
    (void)new std::vector<std::shared_ptr<void>>(std::move(kept_));
    return;
  }
  MPI_Finalize();
}

TransportOptions MpiSession::share(const TransportOptions& own) const {
  std::array<double, 2> values{own.timeout.value, own.synchronous_sends ? 1.0 : 0.0};
  mpi_check(MPI_Bcast(values.data(), static_cast<int>(values.size()), MPI_DOUBLE, 0, MPI_COMM_WORLD),
            "MPI_Bcast");
  return {Seconds{values[0]}, values[1] != 0};
}

void MpiSession::abort(int exit_code) noexcept {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

}  // namespace stagecraft
