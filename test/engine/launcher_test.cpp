#include "engine/run/resolve/launcher.h"

#include "base/failure.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <map>

using namespace stagecraft;

namespace {

LaunchInfo launch(const std::map<std::string, std::string>& variables) {
  return detect_launch([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

template <class F>
std::string launch_refusal(const F& call) {
  try {
    call();
    return "";
  } catch (const InputError& error) {
    return error.what();
  }
}

using stagecraft::test::says;

}  // namespace

TEST_CASE("a process without launcher variables is alone", "[launcher]") {
  const LaunchInfo alone = launch({});
  CHECK_FALSE(alone.launched());
  CHECK(alone.world == 1);
  CHECK(choose_backend(Backend::automatic, alone) == Backend::local);
  CHECK(choose_backend(Backend::mpi, alone) == Backend::mpi);
}

TEST_CASE("the variables of Open MPI, MPICH and Slurm are read", "[launcher]") {
  const LaunchInfo open_mpi = launch({{"OMPI_COMM_WORLD_SIZE", "4"},
                                      {"OMPI_COMM_WORLD_RANK", "3"},
                                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
  CHECK(open_mpi.world == 4);
  CHECK(open_mpi.rank == 3);
  CHECK(open_mpi.machine_world == 2);
  CHECK(open_mpi.machine_rank == 1);
  CHECK(choose_backend(Backend::nccl, open_mpi) == Backend::mpi);
  CHECK(choose_backend(Backend::automatic, open_mpi) == Backend::mpi);
  CHECK(launch({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}}).rank == 1);
  CHECK(launch({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "5"}}).world == 8);
}

TEST_CASE("a batch script of Slurm that launches nothing is alone", "[launcher]") {
  CHECK_FALSE(launch({{"SLURM_NTASKS", "8"}}).launched());
}

TEST_CASE("a process that a program of ours asks is alone, whatever started that program", "[launcher]") {
  for (const char* said : {"", "1"}) {
    const LaunchInfo asked = launch({{"STAGECRAFT_ALONE", said},
                                     {"WORLD_SIZE", "2"},
                                     {"RANK", "1"},
                                     {"OMPI_COMM_WORLD_SIZE", "4"},
                                     {"OMPI_COMM_WORLD_RANK", "1"}});
    CHECK(asked.world == (*said == '\0' ? 4 : 1));
    CHECK(asked.launched() == (*said == '\0'));
  }
}

TEST_CASE("the largest world wins: one launcher may have started another", "[launcher]") {
  CHECK(launch({{"OMPI_COMM_WORLD_SIZE", "2"}, {"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}}).world == 2);
  CHECK(launch({{"OMPI_COMM_WORLD_SIZE", "1"}, {"SLURM_NTASKS", "3"}, {"SLURM_PROCID", "0"}}).world == 3);
}

TEST_CASE("N processes that MPI does not connect are refused", "[launcher]") {
  const LaunchInfo four = launch({{"OMPI_COMM_WORLD_SIZE", "4"}});
  CHECK(says(launch_refusal([&] { check_world(four, 1); }),
             "4 processes were launched (OMPI_COMM_WORLD_SIZE=4)"));
  CHECK(says(launch_refusal([&] { check_world(four, 2); }), "MPI connects 2"));
  CHECK(launch_refusal([&] { check_world(four, 4); }).empty());
  CHECK(launch_refusal([&] { check_world(launch({}), 1); }).empty());
}

TEST_CASE("tasks of an srun without PMI cannot be connected", "[launcher]") {
  CHECK_FALSE(launch({{"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "0"}}).connectable);
  CHECK(launch({{"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "0"}, {"PMIX_RANK", "0"}}).connectable);
  CHECK(launch({{"OMPI_COMM_WORLD_SIZE", "2"}}).connectable);
}

TEST_CASE("torchrun's processes are connected by torch.distributed alone", "[launcher]") {
  const std::map<std::string, std::string> second{
      {"WORLD_SIZE", "4"}, {"RANK", "3"}, {"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}};
  const LaunchInfo four = launch(second);
  CHECK(four.torch);
  CHECK_FALSE(four.connectable);
  CHECK(four.world == 4);
  CHECK(four.rank == 3);
  CHECK(four.machine_world == 2);
  CHECK(four.machine_rank == 1);
  CHECK(choose_backend(Backend::automatic, four) == Backend::c10d);
  CHECK(choose_backend(Backend::c10d, four) == Backend::c10d);
  CHECK(choose_backend(Backend::nccl, four) == Backend::c10d);
  CHECK(says(launch_refusal([&] { (void)choose_backend(Backend::local, four); }), "4 copies"));
  CHECK(says(launch_refusal([&] { (void)choose_backend(Backend::mpi, four); }), "MPI connects none of them"));
  CHECK(says(launch_refusal([&] { (void)choose_backend(Backend::c10d, launch({})); }),
             "torchrun did not start"));
  CHECK(says(under_torchrun(four, "train"), "`torchrun --nproc-per-node 2 -m stagecraft train ...`"));
  CHECK(says(launch_refusal([&] { check_world(four, 2); }), "the process group connects 2"));
  const LaunchInfo one = launch({{"WORLD_SIZE", "1"}, {"RANK", "0"}});
  CHECK(choose_backend(Backend::automatic, one) == Backend::local);
}

TEST_CASE("which launcher started the process, where several have left their variables", "[launcher]") {
  CHECK_FALSE(launch({{"WORLD_SIZE", "8"}}).launched());  // somebody's own variable
  // torchrun on each of srun's machines.
  CHECK(launch({{"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "1"}, {"WORLD_SIZE", "8"}, {"RANK", "5"}}).torch);
  // A script for mpirun that also tells torch.distributed.
  CHECK_FALSE(launch({{"OMPI_COMM_WORLD_SIZE", "2"}, {"WORLD_SIZE", "2"}, {"RANK", "1"}}).torch);
}

TEST_CASE("what one process does is refused to several, by one of them", "[launcher]") {
  CHECK_NOTHROW(require_alone(launch({}), "`plan`"));
  CHECK_NOTHROW(require_alone(launch({{"PMI_SIZE", "1"}}), "`plan`"));
  const LaunchInfo first = launch({{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}});
  CHECK(says(launch_refusal([&] { require_alone(first, "`plan`"); }),
             "`plan` is the work of one process, but 2 were launched (PMI_SIZE=2)"));
  CHECK_THROWS_AS(require_alone(launch({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}}), "`plan`"), InputError);
}

TEST_CASE("local ranks under a launcher of several are refused", "[launcher]") {
  const LaunchInfo two = launch({{"PMI_SIZE", "2"}});
  CHECK(says(launch_refusal([&] { (void)choose_backend(Backend::local, two); }), "2 copies"));
  CHECK(choose_backend(Backend::local, launch({{"PMI_SIZE", "1"}})) == Backend::local);
  CHECK(choose_backend(Backend::automatic, launch({{"PMI_SIZE", "1"}})) == Backend::mpi);
  CHECK(choose_backend(Backend::automatic, launch({{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}})) ==
        Backend::local);  // nothing connects it to anybody
}

TEST_CASE("a launcher variable that is no number is an error", "[launcher]") {
  CHECK(says(launch_refusal([] { (void)launch({{"PMI_SIZE", "two"}}); }), "environment variable PMI_SIZE"));
}

TEST_CASE("a rank's threads are the cores over the ranks that share them", "[launcher]") {
  CHECK(threads_per_rank({.machine = 16, .usable = 16}, 4, 1) == 4);  // ranks as threads
  CHECK(threads_per_rank({.machine = 16, .usable = 16}, 1, 4) == 4);  // processes that no launcher bound
  CHECK(threads_per_rank({.machine = 16, .usable = 4}, 1, 4) == 4);   // bound to four cores each
  CHECK(threads_per_rank({.machine = 2, .usable = 1}, 1, 2) == 1);
  CHECK(threads_per_rank({.machine = 2, .usable = 2}, 8, 1) == 1);  // never none
  CHECK(transport::count_cores().usable >= 1);
  CHECK(transport::count_cores().usable <= transport::count_cores().machine);
}

TEST_CASE("every kind of error has its exit code", "[launcher]") {
  const auto code = [](auto error) { return failure_of(std::make_exception_ptr(error)).code; };
  CHECK(code(InputError("x")) == 2);
  CHECK(code(RefusedError("x")) == 3);
  CHECK(code(PeerError("x")) == 4);
  CHECK(code(StoppedError("x")) == 75);
  CHECK(code(InternalError("x")) == 1);
  CHECK(code(7) == 1);
  CHECK(failure_of(std::make_exception_ptr(PeerError("x"))).secondary);
}

TEST_CASE("how to stop a run depends on who started it", "[launcher]") {
  CHECK(how_to_stop(launch({}), Seconds{1}).empty());
  const LaunchInfo mpirun = launch({{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "0"}});
  CHECK(says(how_to_stop(mpirun, Seconds{1}), "`kill -USR1` of mpirun"));
  CHECK(says(how_to_stop(mpirun, Seconds{1}), "TERM and Ctrl-C leave 1 s"));
  CHECK(says(how_to_stop(mpirun, {}), "leave little time"));
  const LaunchInfo srun = launch({{"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "0"}, {"PMIX_RANK", "0"}});
  CHECK(says(how_to_stop(srun, Seconds{1}), "scancel --signal=USR1"));
}
