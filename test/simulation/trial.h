#pragma once

// What the simulation tries with a seed. A trial throws Wrong where it sees what should never be.

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>

namespace stagecraft::test {

struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Trial {
  std::string name;                   ///< the kind of trial, and the schedule
  std::map<std::string, int> seen{};  ///< what happened, by kind
  std::uint64_t trace = 0;            ///< a hash of all that was decided: the same for the same seed
};

/// A run on a disk, in one process after another: each is disturbed, then one is left alone. It ends with the bits of
/// a run that was never disturbed. `forgetful`: the disk loses what was synced, which has to be noticed now and then.
[[nodiscard]] Trial hurt_run(std::uint64_t seed, bool forgetful = false);

/// Workers over a transport with shrunk limits, compared with the oracle; or one of them ends, and all others hear of it.
[[nodiscard]] Trial narrow_pipeline(std::uint64_t seed);

}  // namespace stagecraft::test
