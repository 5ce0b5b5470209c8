#include "engine/transport/mpi/futex_signals.h"

#include "engine/transport/mpi/mpi_check.h"

#include <climits>

#include <ctime>
#include <linux/futex.h>
#include <new>
#include <sys/syscall.h>
#include <unistd.h>

namespace stagecraft::transport {

FutexSignals::FutexSignals(MPI_Comm machine) {
  constexpr MPI_Aint kCacheLine = 64;
  mpi_check(MPI_Comm_split_type(machine, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &neighbours_),
            "MPI_Comm_split_type");
  void* memory = nullptr;
  mpi_check(MPI_Win_allocate_shared(kCacheLine, 1, MPI_INFO_NULL, neighbours_, &memory, &window_),
            "MPI_Win_allocate_shared");
  mine_ = new (memory) Bell(0);
  int world = 1, rank = 0, count = 1;
  mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &world), "MPI_Comm_size");
  mpi_check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  mpi_check(MPI_Comm_size(neighbours_, &count), "MPI_Comm_size");
  std::vector<int> ranks(static_cast<std::size_t>(count));
  // Nobody rings before all have come here, so before all bells are made.
  mpi_check(MPI_Allgather(&rank, 1, MPI_INT, ranks.data(), 1, MPI_INT, neighbours_), "MPI_Allgather");
  bells_.resize(static_cast<std::size_t>(world));
  for (int i = 0; i < count; ++i) {
    MPI_Aint size = 0;
    int unit = 0;
    void* bell = nullptr;
    mpi_check(MPI_Win_shared_query(window_, i, &size, &unit, static_cast<void*>(&bell)),
              "MPI_Win_shared_query");
    bells_[static_cast<std::size_t>(ranks[static_cast<std::size_t>(i)])] = static_cast<Bell*>(bell);
  }
}

FutexSignals::~FutexSignals() {
  MPI_Win_free(&window_);
  MPI_Comm_free(&neighbours_);
}

void FutexSignals::ring(Rank rank) noexcept {
  Bell* bell = bells_[rank.index()];
  if (bell == nullptr || bell == mine_) return;
  bell->fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::uint32_t FutexSignals::heard() const { return mine_->load(std::memory_order_acquire); }

void FutexSignals::listen(std::uint32_t heard, std::chrono::nanoseconds longest) const {
  constexpr long kNanoseconds = 1'000'000'000;
  const timespec time{longest.count() / kNanoseconds, longest.count() % kNanoseconds};
  syscall(SYS_futex, mine_, FUTEX_WAIT, heard, &time, nullptr, 0);
}

}  // namespace stagecraft::transport
