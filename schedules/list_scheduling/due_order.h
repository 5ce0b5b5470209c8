#pragma once

// Orders in which every rank takes its forwards and input gradients as they are due, and waits for each.

#include "schedules/list_scheduling/list_scheduler.h"

#include <optional>

namespace stagecraft {

/// Forwards and input gradients in the order of the policy's priorities; a weight gradient that is due before
/// the next of them goes first. Where a rank waits for the next, a forward that is due later fills the time
/// if it is there, ends by then and leaves the memory that its stage's share leaves; then a weight gradient,
/// if `patience` percent of its time are left, or if the rank's time could not be `patient_until` otherwise. A
/// forward for which there is no memory waits until weight gradients have made room; where they cannot, what
/// is due next goes first.
///
/// `policy.share` is given. Nothing if such an order cannot go on, or as soon as its OrdersValue::step is sure to be
/// above `most`. Deterministic, like list_schedule().
[[nodiscard]] std::optional<ListSchedule> due_order_within(const Workload& workload, const KeepLimit& limit,
                                                           const Policy& policy, Ticks most);

}  // namespace stagecraft
