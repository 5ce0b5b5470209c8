#include "engine/device/peak_flops.h"

#include <array>

namespace stagecraft {
namespace {

struct Row {
  const char* part_of_name;
  double float64, float32, tf32, narrow;  // 10^12 per second
};
// The first that fits counts: parts of names that contain others stand before them.
constexpr std::array kRows{
    Row{"H100 PCIe", 51, 51, 378, 756}, Row{"H100 NVL", 60, 60, 418, 835}, Row{"H100", 67, 67, 494, 989},
    Row{"H200 NVL", 60, 60, 418, 835},  Row{"H200", 67, 67, 494, 989},     Row{"A100", 19.5, 19.5, 156, 312},
};

}  // namespace

std::optional<double> peak_flops(const std::string& device, Products products) {
  constexpr double kTera = 1e12;
  for (const Row& row : kRows) {
    if (device.find(row.part_of_name) == std::string::npos) continue;
    switch (products) {
      case Products::float64:
        return row.float64 * kTera;
      case Products::float32:
        return row.float32 * kTera;
      case Products::tf32:
        return row.tf32 * kTera;
      case Products::narrow:
        return row.narrow * kTera;
    }
  }
  return std::nullopt;
}

}  // namespace stagecraft
