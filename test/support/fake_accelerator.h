#pragma once

// An ATen device without a GPU. Its tensors lie in the CPU's memory and its operators are the CPU's, but it
// takes what a GPU takes and no more:
//   - an operator whose tensors lie on both sides throws; a single number of the CPU's may come along;
//   - its allocator counts the bytes that are asked for, without what an operator takes for itself;
//   - what a GPU's host would have to wait for is counted: reading a number, and copies that are not told
//     that nobody waits;
//   - the device seems to be behind the host: an event is over when a later one was recorded, or when it was
//     waited for, which includes asking for it again and again.
// Operators are over when they return. Streams of LibTorch's beside the one that computes are
// test/support/fake_streams.h's, those of transports test/support/fake_device.h's.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace stagecraft::test {

[[nodiscard]] at::Device fake_accelerator();

/// How often this thread has waited, or would have on a GPU.
[[nodiscard]] std::int64_t host_waits();

/// What this thread's device, which knew no kernel and held no memory, has done for the first time or anew, each of
/// which may make a GPU's host wait for all that it has launched: "first use of aten::mm (Float, Float)" (a kernel is loaded), "512 bytes more" (the allocator has no
/// free block of that size class), "unused memory goes", "a recording is made", "a recording goes".
[[nodiscard]] const std::vector<std::string>& device_wide_waits();
void note_device_wide_wait(const std::string& why);
/// Called at each of them on this thread, where a GPU would wait. Empty: nothing.
void set_on_device_wide_wait(std::function<void()> wait);
/// Whether this thread carries out an operator of the device, with the CPU's.
[[nodiscard]] bool inside_a_device_operator();
/// Operators and copies that this thread has given to the device so far. Of tensors' lists each is one, as on a
/// GPU (there it is a few launches).
[[nodiscard]] std::int64_t device_operators();

/// Called on this thread before (true) and after each of them. Empty: nothing.
void set_around_operators(std::function<void(bool begins)> call);

/// Events of this thread's device that are recorded from now on are so much later.
void let_device_time_pass(double milliseconds);

/// From now on this thread's device is done with nothing any more, as if it waited for a rank that has died.
/// Asking it stays allowed; a host that blocks for it throws InternalError, where it would hang on a GPU.
void let_device_stick(bool stuck);

}  // namespace stagecraft::test
