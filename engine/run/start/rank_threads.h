#pragma once

// The threads of a run whose ranks are threads. Nothing here waits for a thread that will never end.

#include "base/ids.h"

#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace stagecraft {

/// Threads: one starts them and waits; any may call hurry().
class RankThreads {
 public:
  using Body = std::function<void()>;
  using Make = std::function<std::thread(Body)>;

  explicit RankThreads(Make make = [](Body body) { return std::thread(std::move(body)); });
  /// Requires: wait() was called.
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  /// Throws std::system_error where no thread is to be had.
  void start(Body body);
  /// A rank has failed: the others hear of it at their next wait, and have nothing left to do.
  void hurry();
  /// Until all have ended, and their threads are joined; but `grace` at most from hurry() on. False: some
  /// hang, and use what their bodies use until the process ends.
  [[nodiscard]] bool wait(Seconds grace);

 private:
  struct State;
  Make make_;
  std::shared_ptr<State> state_;  ///< shared with the threads, which may outlive this
  std::vector<std::thread> threads_;
};

}  // namespace stagecraft
