#pragma once

// What a small run (stored_run.h) comes to on its simulated disk: its history without times, its last state to the bit,
// and which files there are.

#include "test/support/simulated_disk.h"

#include <map>
#include <string>
#include <vector>

namespace stagecraft::test {

struct Left {
  std::vector<std::string> history;
  std::map<std::string, std::string> state;
  std::vector<std::string> files;
};

[[nodiscard]] Left left_on(SimulatedDisk& disk);

/// Of a run that was disturbed to one that was not, in words; "" for none but those that a disturbance may make.
[[nodiscard]] std::string difference(const Left& disturbed, const Left& undisturbed);

}  // namespace stagecraft::test
