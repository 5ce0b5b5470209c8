#include "engine/device/driver.h"

#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <regex>

namespace stagecraft {

std::string driver_release(const std::string& text) {
  // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build ..."
  static const std::regex pattern(R"(NVRM version:[^\n]*?\s(\d{3,4}(?:\.\d+)+)\s)");
  std::smatch found;
  return std::regex_search(text, found, pattern) ? found[1].str() : "";
}

std::string driver_remark(const std::string& release, int cuda_major) {
  static const std::map<int, int> least{{11, 450}, {12, 525}, {13, 580}};
  const auto needed = least.find(cuda_major);
  if (release.empty() || needed == least.end() || std::atoi(release.c_str()) >= needed->second) return "";
  return fmt::format(
      "driver {} is too old: CUDA {} needs {} or newer. Update the driver, or build with an older CUDA",
      release, cuda_major, needed->second);
}

}  // namespace stagecraft
