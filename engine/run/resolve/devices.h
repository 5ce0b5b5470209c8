#pragma once

// Which device a rank computes on.

#include "engine/config/config.h"
#include "engine/device/accelerators.h"
#include "engine/device/clocks.h"

#include <c10/core/Device.h>

#include <optional>
#include <string>

namespace stagecraft {

/// Throws InputError (`file` names the config) where the config asks for CUDA and `report` says that there is
/// none.
void check_device(const RunConfig& config, const AcceleratorReport& report, const std::string& file);
/// The same of this machine, which a config for CPUs does not ask for its GPUs: that would start CUDA.
void check_device(const RunConfig& config, const std::string& file);

/// Of the rank that is the `machine_rank`-th of this machine: its devices are given out in turn. Loads what
/// the device needs, and sets this process's switches for it (`cuda` in the config). Throws as above.
[[nodiscard]] at::Device prepare_device(const RunConfig& config, const std::string& file, int machine_rank);
/// The same device, of a config that check_device takes.
[[nodiscard]] at::Device device_of(const RunConfig& config, int machine_rank);

/// Of a machine's `machine_ranks`, those that are given this one of its GPUs.
[[nodiscard]] int ranks_on_card(at::Device device, int machine_ranks);

/// What people should know who train in bfloat16 on this processor: that it has no instructions for it, so
/// that matrix products take many times as long as in float32. Empty: it has them, and oneDNN may use them
/// (ONEDNN_MAX_CPU_ISA).
[[nodiscard]] std::string slow_bfloat16();
/// As in profiles: "cpu", or the GPU's name.
[[nodiscard]] std::string device_name(at::Device device);

/// A GPU's, where the driver tells.
[[nodiscard]] std::optional<DeviceClock> clock_of(at::Device device);

/// What the ranks' devices can compute together, of the products that the config computes in; none where that
/// is not known.
[[nodiscard]] std::optional<double> peak_flops_of(const RunConfig& config, int ranks);

}  // namespace stagecraft
