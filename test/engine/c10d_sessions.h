#pragma once

// Ranks of c10d as threads of one process, over whatever wire a test gives them.

#include "engine/transport/c10d/c10d_session.h"

#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace stagecraft::test {

/// Runs `body` on a thread per rank; rethrows the first exception (by rank).
inline void run_as_ranks(int world, const std::function<void(Rank)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(world));
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < errors.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        body(Rank{static_cast<std::int32_t>(r)});
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

using WireOf = std::function<std::unique_ptr<transport::Wire>(Rank)>;

/// The same with a session each.
inline void run_sessions(int world, const WireOf& wire, const std::function<void(C10dSession&)>& body) {
  run_as_ranks(world, [&](Rank rank) {
    C10dSession session(wire(rank), Seconds{30});
    body(session);
  });
}

/// The same with a transport each, which a rank that throws fails.
inline void run_transports(int world, const WireOf& wire, const TransportOptions& options,
                           const std::function<void(Transport&)>& body) {
  run_sessions(world, wire, [&](C10dSession& session) {
    const auto transport = session.make_transport(options);
    try {
      body(*transport);
    } catch (const std::exception& error) {
      transport->fail(error.what());
      throw;
    }
  });
}

}  // namespace stagecraft::test
