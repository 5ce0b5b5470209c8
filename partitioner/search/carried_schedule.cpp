#include "partitioner/search/carried_schedule.h"

#include "schedules/program/step_program.h"
#include "schedules/synthesis/seeds.h"

namespace stagecraft::planning {
namespace {

constexpr const char* kName = "auto";

ScheduleProgram with_orders(const ScheduleRequest& request, const Orders& orders) {
  return synchronous_program(make_header(kName, SegmentKind::train, request.placement, request.group_sizes),
                             orders, request.clip);
}

}  // namespace

Schedule carried_schedule(const ScheduleProgram& program) {
  return {.name = kName,
          .summary = {},
          .paper = {},
          .build = [orders = synthesis::orders_of(program)](const ScheduleRequest& request) {
            return with_orders(request, orders);
          }};
}

Schedule serial_schedule() {
  return {.name = kName, .summary = {}, .paper = {}, .build = [](const ScheduleRequest& request) {
            Orders orders;
            for (const std::vector<StageId>& held : request.placement.stages_by_rank()) {
              Order& order = orders.emplace_back();
              for (int mb = 0; mb < request.group_sizes.front(); ++mb) {
                for (const StageId stage : held) order.push_back({Op::forward, stage, MicroBatch{mb}});
                for (auto stage = held.rbegin(); stage != held.rend(); ++stage)
                  order.push_back({Op::backward, *stage, MicroBatch{mb}});
              }
            }
            return with_orders(request, orders);
          }};
}

}  // namespace stagecraft::planning
