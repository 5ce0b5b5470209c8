#include "engine/run/resolve/processes.h"

#include "base/error.h"
#include "engine/run/resolve/launcher.h"
#include "engine/transport/c10d/c10d_session.h"
#include "engine/transport/c10d/store_wire.h"
#include "engine/transport/mpi/mpi_library.h"

namespace stagecraft {
namespace {

/// What all have to say alike.
template <class Check>
void say_once(const LaunchInfo& launch, const Check& check) {
  try {
    check();
  } catch (const InputError&) {
    if (launch.rank == 0) throw;
    throw InputError("");
  }
}

}  // namespace

void require_connectable(const LaunchInfo& launch, const Together& together) {
  const bool connectable =
      launch.torch ? !together.process_group.empty() || transport::has_launcher_store() : launch.connectable;
  if (launch.world == 1 || connectable) return;
  say_once(launch, [&] {
    if (launch.torch) throw InputError(under_torchrun(launch, together.command));
    check_world(launch, 1);
  });
}

std::unique_ptr<ProcessSession> connect_processes(const LaunchInfo& launch, const Together& together) {
  std::unique_ptr<ProcessSession> session;
  if (!launch.torch) {
    session = mpi_library().connect(MpiThreads::its_own);
  } else if (together.process_group.empty()) {
    const Seconds patience = TransportOptions().start_up_timeout;
    session = std::make_unique<C10dSession>(transport::make_launcher_wire(launch, patience), patience);
  } else {
    session = std::make_unique<C10dSession>(together.process_group);
  }
  say_once(launch, [&] { check_world(launch, session->world()); });
  return session;
}

}  // namespace stagecraft
