#pragma once

// Work of a device that is recorded once and then started as a whole, by one call of the host's (CUDA
// graphs): what small operators cost the host to launch is paid once.
//
// A recording holds addresses, not tensors: whoever starts it sees to it that what it reads is there, and
// that nobody needs what it writes over. Two back ends, chosen by CMake: cuda/, none/. Tests have a third
// (test/support/fake_graphs.h), which takes nothing that CUDA would not.

#include <functional>
#include <memory>

namespace stagecraft {

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Puts the work on the stream that computes.
  virtual void launch() = 0;
};

class DeviceGraphs {
 public:
  /// Memory that recordings take theirs from. What a tensor gives back goes to the pool, and a later
  /// recording may take it.
  enum class Pool : int {};

  virtual ~DeviceGraphs() = default;
  [[nodiscard]] virtual Pool make_pool() = 0;
  /// Records what `work` asks the device for, instead of doing it; tensors made in it have memory of `pool`
  /// and no values yet. Throws what `work` throws, and InternalError where the device cannot record it; then
  /// nothing was done. The recording outlives neither this object nor the memory that it names.
  [[nodiscard]] virtual std::unique_ptr<DeviceGraph> record(Pool pool, const std::function<void()>& work) = 0;
};

/// Of LibTorch's CUDA device `index`. Throws InputError where the build is without CUDA.
[[nodiscard]] std::shared_ptr<DeviceGraphs> make_device_graphs(int index);

}  // namespace stagecraft
