#include "engine/device/driver.h"

#include "engine/device/peak_flops.h"
#include "test/support/catch.h"

using namespace stagecraft;

TEST_CASE("a driver's release is read from what its kernel module says", "[driver]") {
  CHECK(driver_release(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.06  Wed Jun 26 06:46:07 UTC 2024\n"
            "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n") == "535.183.06");
  CHECK(driver_release("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  "
                       "(root@build)  Sun Jul 27 07:17:23 UTC 2025\n") == "580.65.06");
  CHECK(driver_release("").empty());
  CHECK(driver_release("GCC version:  gcc version 12.2.0 \n").empty());
}

TEST_CASE("a driver that is too old for the CUDA runtime is told, with the one it takes", "[driver]") {
  const std::string remark = driver_remark("535.183.06", 13);
  INFO(remark);
  CHECK(remark.find("driver 535.183.06 is too old: CUDA 13 needs 580 or newer") == 0);
  CHECK(driver_remark("580.65.06", 13).empty());
  CHECK(driver_remark("535.183.06", 12).empty());
  CHECK(driver_remark("", 13).empty());       // there is none: said elsewhere
  CHECK(driver_remark("400.1", 99).empty());  // a CUDA of which nothing is known
}

TEST_CASE("a GPU's peak goes by its name and by what products are computed in", "[driver]") {
  CHECK(peak_flops("NVIDIA H100 80GB HBM3", Products::narrow) == 989e12);
  CHECK(peak_flops("NVIDIA H100 PCIe", Products::narrow) == 756e12);
  CHECK(peak_flops("NVIDIA H200", Products::tf32) == 494e12);
  CHECK(peak_flops("NVIDIA A100-SXM4-40GB", Products::float32) == 19.5e12);
  CHECK_FALSE(peak_flops("NVIDIA GeForce GTX 970", Products::float32).has_value());
}
