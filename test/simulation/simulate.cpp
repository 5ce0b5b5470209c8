// One seed after another, for scripts/campaign.sh simulation: reads seeds from standard input, one per line, and answers
// each with a line of JSON: {"name", "seen", "trace"} or {"wrong"}.
//   simulate [--forgetful]    disks lose what was synced (campaign_test.py sees that this is found)

#include "base/json.h"
#include "models/tensors/libtorch_error.h"
#include "test/simulation/trial.h"

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <sys/personality.h>
#include <unistd.h>

namespace {

using namespace stagecraft;

/// Addresses are the same in each process: what depends on them does not differ from run to run.
void fix_addresses(char** words) {
  const int now = ::personality(0xffffffff);
  if (now < 0 || (now & ADDR_NO_RANDOMIZE) != 0) return;
  if (::personality(static_cast<unsigned long>(now) | ADDR_NO_RANDOMIZE) >= 0)
    ::execv("/proc/self/exe", words);
}

Json answer(std::uint64_t seed, bool forgetful) {
  try {
    const test::Trial trial =
        seed % 2 == 0 ? test::hurt_run(seed / 2, forgetful) : test::narrow_pipeline(seed / 2);
    return {{"name", trial.name}, {"seen", trial.seen}, {"trace", trial.trace}};
  } catch (const std::exception& error) {
    return {{"wrong", error.what()}};
  }
}

}  // namespace

int main(int count, char** words) {
  fix_addresses(words);
  const bool forgetful = count > 1 && std::string(words[1]) == "--forgetful";
  ::setenv("OMP_NUM_THREADS", "1", 1);
  at::set_num_threads(1);
  (void)at::ones({8, 8}).mm(
      at::ones({8, 8}));  // libraries load what they need before the first process is forked
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << answer(std::stoull(line), forgetful).dump() << std::endl;
  }
}
