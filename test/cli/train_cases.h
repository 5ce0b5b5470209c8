#pragma once

// What tests of `train` share: a run of moments, shells and launchers around the binary, and what is to be seen
// when it refuses.

#include "base/json.h"
#include "test/support/command.h"

#include <string>
#include <vector>

namespace stagecraft::test {

/// A config of four steps of two stages, whose run_dir is the folder's `run`.
[[nodiscard]] Json tiny_run(const ScratchFolder& folder);

/// A shell's command line, without standard input.
[[nodiscard]] CommandResult shell_line(const ScratchFolder& folder, const std::string& line);

/// The same, where `{}` stands for the binary and `{{}}` for {}: for launchers, environments and signals.
[[nodiscard]] CommandResult shell(const ScratchFolder& folder, const std::string& command);

[[nodiscard]] CommandResult train(const ScratchFolder& folder, const Json& config,
                                  std::vector<std::string> more = {});

/// How many messages of the program's own, whatever launchers add.
[[nodiscard]] int messages(const std::string& err);
/// One message, which says `what`, and this code.
void check_refused(const CommandResult& result, int code, const std::string& what);

/// What mpirun needs to start ranks as root and beyond the cores: Open MPI 4's variable and that of Open MPI 5,
/// which also complains on standard error that it finds no network from this machine to itself.
inline constexpr const char* kMpirunEnvironment =
    "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
    "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe OMPI_MCA_reachable=^netlink ";

/// Ranks under mpirun, ended after a minute; the number of ranks comes next.
[[nodiscard]] std::string mpirun();

/// For the command line behind mpirun's: each rank does a line of shell first, the first rank the first one.
/// (Open MPI 5.0.7 crashes where ranks are given programs and folders of their own.)
[[nodiscard]] std::string each_rank(const ScratchFolder& folder, const std::vector<std::string>& lines);

[[nodiscard]] bool has_mpirun();

/// What the run's metrics say, times left out.
[[nodiscard]] std::vector<Json> facts(const std::string& run_dir);

}  // namespace stagecraft::test
