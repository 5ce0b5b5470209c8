#pragma once

// How much of a core a thread got while it had work: its processor time over that and the time that it waited for a
// core. Less than all of it means that others run there, of whom it may know nothing: ranks in containers and namespaces
// count each the machine's cores as theirs. A thread that sleeps waits for nobody.

#include "base/ids.h"

#include <chrono>
#include <ctime>
#include <optional>
#include <sys/types.h>

namespace stagecraft {

/// Below it people are told. A quiet machine is above 0.97.
inline constexpr double kWholeCore = 0.85;
/// Of a share that is known: 0 stands for one that is not.
[[nodiscard]] constexpr bool is_part_of_a_core(double share) { return share > 0 && share < kWholeCore; }

class CoreShare {
 public:
  /// `enough`: work to tell it by. Schedulers give slices of some milliseconds, and short runs need no advice.
  explicit CoreShare(Seconds enough = Seconds{5}) : enough_(enough) {}

  /// Where some work of this thread begins.
  struct Begin {
    Seconds processor, clock;
  };
  [[nodiscard]] static Begin begin() { return {processor_time(), clock()}; }

  /// Of the thread that made `begin`, which has worked since. Always of the same thread.
  void add(const Begin& begin) {
    if (thread_ == 0) take_note_of_thread();
    processor_ += processor_time() - begin.processor;
    clock_ += clock() - begin.clock;
  }

  /// None before there was enough.
  [[nodiscard]] std::optional<double> share() const;

 private:
  static Seconds processor_time() {
    std::timespec now{};
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return Seconds{static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9};
  }
  static Seconds clock() {
    return Seconds{
        std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count()};
  }

  void take_note_of_thread();

  Seconds enough_, processor_, clock_, waited_before_;
  pid_t thread_ = 0;  ///< whose work it is; 0: none's yet
};

}  // namespace stagecraft
