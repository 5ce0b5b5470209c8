#pragma once

// Ranks as threads, for tests of what needs several.

#include "engine/transport/factory.h"

#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace stagecraft::test {

/// Runs `body` on `world` threads, each with its local transport. A rank that throws fails its transport, as
/// a run does. Afterwards the first exception (by rank) is rethrown. No Catch2 assertions inside `body`: they
/// are not thread-safe.
inline void run_ranks(int world, const TransportOptions& options,
                      const std::function<void(Transport&)>& body) {
  auto transports = make_local_transports(world, options);
  std::vector<std::exception_ptr> errors(transports.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < transports.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        body(*transports[r]);
      } catch (const std::exception& error) {
        errors[r] = std::current_exception();
        transports[r]->fail(error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace stagecraft::test
