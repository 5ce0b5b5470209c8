// What is said where a config asks for a device that is not there. (What computes on one is
// accelerator_test.cpp's.)

#include "engine/run/resolve/devices.h"

#include "base/error.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <cstdlib>
#include <string>

using namespace stagecraft;
using stagecraft::test::says;

namespace {

std::string device_refusal(const RunConfig& config, const AcceleratorReport& report) {
  try {
    check_device(config, report, "run.json");
    return "";
  } catch (const InputError& error) {
    return error.what();
  }
}

AcceleratorReport machine(bool compiled_in, std::size_t devices, const std::string& remark = "") {
  AcceleratorReport report;
  report.compiled_in = compiled_in;
  report.devices.resize(devices);
  report.remark = remark;
  return report;
}

}  // namespace

TEST_CASE("a config that asks for CUDA is told why there is none", "[devices]") {
  RunConfig config;
  CHECK(device_refusal(config, machine(false, 0)).empty());
  config.device = DeviceKind::cuda;
  CHECK(device_refusal(config, machine(true, 1)).empty());
  const std::string without = device_refusal(config, machine(false, 0));
  for (const char* part : {"run.json: /device", "this build is without CUDA", "\"cpu\""})
    CHECK(says(without, part));
  const std::string none = device_refusal(config, machine(true, 0, "no NVIDIA driver"));
  for (const char* part : {"run.json: /device", "no CUDA device: no NVIDIA driver", "stagecraft doctor"})
    CHECK(says(none, part));
}

TEST_CASE("a run on the CPU has its transport to itself", "[devices]") {
  CHECK(prepare_device(RunConfig{}, "run.json", 3) == at::Device(at::kCPU));
  CHECK(device_name(at::kCPU) == "cpu");
}

TEST_CASE("bfloat16 without instructions for it is warned of", "[devices]") {
  ::setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1);
  CHECK(says(slow_bfloat16(), "bf16 is emulated here: "));
  ::setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", 1);
  const std::string named = slow_bfloat16();
  ::unsetenv("ONEDNN_MAX_CPU_ISA");
  CHECK(named == slow_bfloat16());
}
