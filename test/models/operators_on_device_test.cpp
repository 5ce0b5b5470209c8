// What test_gpu compares on GPUs, of the CPU with itself: as many calls, and nothing that differs.

#include "test/models/operators_on_device.h"

#include "test/support/catch.h"

#include <ATen/ATen.h>

using namespace stagecraft::test;

TEST_CASE("operators on a device that is the CPU give the CPU's numbers", "[operators_on_device]") {
  at::set_num_threads(1);
  const DeviceFindings found = compare_operators(at::kCPU, STAGECRAFT_TEST_DATA "/operators/calls.jsonl");
  CHECK(found.calls > 1500);
  CHECK(found.findings == 0);
  CHECK(found.integers == 0);
  CHECK(found.not_repeatable == 0);
  CHECK_THROWS_AS(compare_operators(at::kCPU, "no/such/file"), std::runtime_error);
}
