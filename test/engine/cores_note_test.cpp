// Who is told that ranks on GPUs have too few cores.

#include "engine/run/show/cores_note.h"

#include "engine/device/accelerators.h"
#include "engine/run/show/products_note.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <cstdlib>
#include <string>
#include <vector>

using namespace stagecraft;
using stagecraft::test::says;
using transport::CoreCounts;

TEST_CASE("ranks on GPUs that are bound to few cores are named once, with the launcher's option",
          "[cores_note]") {
  const std::string two = few_cores_note({{16, 1}, {16, 1}});
  for (const char* part : {"rank 0 may run on 1 core of its machine's 16", "2 ranks have fewer than 4",
                           "mpirun --bind-to none", "4 cores each"})
    CHECK(says(two, part));
  const std::string second = few_cores_note({{16, 16}, {16, 3}});
  CHECK(says(second, "rank 1 may run on 3 cores of"));
  CHECK_FALSE(says(second, "fewer than"));
}

TEST_CASE("no launcher's option makes a small machine larger", "[cores_note]") {
  const std::string small = few_cores_note({{2, 2}});
  for (const char* part : {"rank 0 may run on 2 cores, which are all that its machine has", "a quota"})
    CHECK(says(small, part));
  CHECK_FALSE(says(small, "mpirun"));
}

TEST_CASE("enough cores are nobody's concern, at any size", "[cores_note]") {
  for (int machine = 1; machine <= 256; machine *= 2) {
    for (int usable = 1; usable <= machine; ++usable) {
      const CoreCounts cores = cores_from_text(cores_text({machine, usable}));
      CHECK(cores.machine == machine);
      CHECK(few_cores_note({cores, cores}).empty() == (usable >= kCoresPerGpuRank));
    }
  }
}

TEST_CASE("NCCL may leave a rank's core, unless the user said otherwise", "[cores_note]") {
  constexpr const char* kAffinity = "NCCL_IGNORE_CPU_AFFINITY";
  ::unsetenv(kAffinity);
  prepare_environment();
  const char* const set = std::getenv(kAffinity);
  CHECK(std::string(set != nullptr ? set : "") == (accelerators().compiled_in ? "1" : ""));
  ::setenv(kAffinity, "0", 1);
  prepare_environment();
  CHECK(std::string(std::getenv(kAffinity)) == "0");
  ::unsetenv(kAffinity);
}

TEST_CASE("oneDNN is named where its products are much faster, with what it costs", "[cores_note]") {
  CHECK(products_note(ProductRates{98e9, 109e9}).empty());
  CHECK(products_note(ProductRates{98e9, 0}).empty());
  const std::string said = products_note(ProductRates{40e9, 120e9});
  for (const char* part :
       {"40 GFLOP/s per core", "120 with oneDNN", "\"matrix_products\": \"onednn\"", "last bits"})
    CHECK(says(said, part));
}
