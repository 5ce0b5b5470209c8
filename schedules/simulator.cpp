#include "schedules/simulator.h"

#include "schedules/base/error.h"
#include "schedules/simulator/instructions.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <tuple>

namespace stagecraft {

using simulator::Collective;
using simulator::Instruction;
using simulator::Instructions;
using simulator::Route;
using simulator::Seat;
using enum simulator::Account;
using enum simulator::Part;

namespace {

Bytes payload_bytes(const CostTable& costs, const Route& route) {
  switch (route.payload) {
    case Payload::activation:
      return costs.stages[route.to.index()].input;
    case Payload::gradient:
      return costs.stages[route.to.index()].output;
    case Payload::loss:
      break;
  }
  return costs.loss;
}

/// ceil(log2(n)) for n >= 1.
int rounds(std::size_t n) { return static_cast<int>(std::bit_width(n - 1)); }

double agree_seconds(const CostTable& costs, const std::vector<Rank>& members) {
  double latency = 0;
  for (const Rank member : members) {
    // The links of a hierarchy: the outermost level that holds all members is on the way from one of them to
    // any that is far enough.
    if (member != members.front())
      latency = std::max(latency, costs.network.between(members.front(), member).latency.value);
  }
  return 2 * rounds(members.size()) * latency;
}

double reduce_seconds(const CostTable& costs, const Collective& collective) {
  const std::size_t width = collective.members.size();
  if (width < 2) return 0;
  const double bytes = static_cast<double>(costs.stages[collective.stage.index()].parameters.value);
  const double steps = 2.0 * static_cast<double>(width - 1);
  double slowest = 0;
  for (std::size_t i = 0; i < width; ++i) {
    const Link link = costs.network.between(collective.members[i], collective.members[(i + 1) % width]);
    slowest = std::max(slowest, steps / static_cast<double>(width) * bytes / link.bytes_per_second +
                                    steps * link.latency.value);
  }
  return slowest;
}

std::vector<std::string> rank_names(const Placement& placement, std::size_t ranks) {
  std::vector<std::string> names;
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::vector<StageId> stages = placement.stages_of(Rank{r});
    std::string held;
    for (const StageId stage : stages) held += fmt::format("{}{}", held.empty() ? "" : ", ", stage.value);
    names.push_back(fmt::format("rank {}: stage{} {}", r, stages.size() == 1 ? "" : "s", held));
  }
  return names;
}

}  // namespace

class Simulator::Impl {
 public:
  explicit Impl(const LoweredProgram& program)
      : program_(program),
        code_(simulator::flatten(program)),
        compute_seconds_(code_.seats.size() * part_count),
        route_seconds_(code_.routes.size()),
        collective_seconds_(code_.collectives.size()),
        clock_(program.ranks.size()),
        accounts_(program.ranks.size() * account_count),
        posted_(code_.transfer_route.size()),
        arrived_(code_.transfer_route.size()),
        lane_free_(code_.lanes) {
    result_.ranks.resize(program.ranks.size());
    for (const auto& actions : program.ranks) actions_ += actions.size();
  }

  const Simulation& run(const CostTable& costs, bool free_links, Timeline* timeline) {
    price(costs, free_links);
    std::fill(clock_.begin(), clock_.end(), 0.0);
    std::fill(accounts_.begin(), accounts_.end(), 0.0);
    std::fill(lane_free_.begin(), lane_free_.end(), 0.0);
    if (timeline == nullptr) {
      pass<false>(nullptr);
    } else {
      timeline->rank_names = rank_names(program_.placement, program_.ranks.size());
      timeline->events.clear();
      pass<true>(timeline);
      std::stable_sort(timeline->events.begin(), timeline->events.end(), [](const Event& a, const Event& b) {
        return std::tie(a.rank, a.begin) < std::tie(b.rank, b.begin);
      });
    }
    conclude();
    return result_;
  }

  [[nodiscard]] std::size_t actions() const { return actions_; }

 private:
  void price(const CostTable& costs, bool free_links) {
    STAGECRAFT_CHECK(costs.stages.size() == static_cast<std::size_t>(program_.placement.stages()),
                     fmt::format("a cost table of {} stages for a program of {}", costs.stages.size(),
                                 program_.placement.stages()));
    STAGECRAFT_CHECK(costs.speed.empty() || costs.speed.size() >= program_.ranks.size(),
                     fmt::format("{} speeds for {} ranks", costs.speed.size(), program_.ranks.size()));
    for (std::size_t i = 0; i < code_.seats.size(); ++i) {
      const Seat& seat = code_.seats[i];
      const StageCosts& stage = costs.stages[seat.stage.index()];
      const double speed = costs.speed_of(seat.rank);
      double* parts = &compute_seconds_[i * part_count];
      parts[forward_part] = stage.forward.value / speed;
      parts[backward_part] = (stage.backward_input + stage.backward_weight).value / speed;
      parts[input_part] = stage.backward_input.value / speed;
      parts[weight_part] = stage.backward_weight.value / speed;
      parts[step_part] = stage.step.value / speed;
    }
    for (std::size_t i = 0; i < code_.routes.size(); ++i) {
      const Route& route = code_.routes[i];
      route_seconds_[i] =
          free_links
              ? 0
              : costs.network.between(route.sender, route.receiver).time(payload_bytes(costs, route)).value;
    }
    for (std::size_t i = 0; i < code_.collectives.size(); ++i) {
      const Collective& collective = code_.collectives[i];
      collective_seconds_[i] = free_links                        ? 0
                               : collective.op == Op::agree_norm ? agree_seconds(costs, collective.members)
                                                                 : reduce_seconds(costs, collective);
    }
  }

  template <bool kRecord>
  void pass(Timeline* timeline) {
    const auto record = [&](std::int32_t rank, std::int32_t place, Event::Lane lane, double begin,
                            double end) {
      if constexpr (kRecord) {
        const Action& action =
            program_.ranks[static_cast<std::size_t>(rank)][static_cast<std::size_t>(place)];
        timeline->events.push_back(
            Event{Rank{rank}, lane, action, Seconds{begin}, Seconds{end}, step_of(action)});
      }
    };
    for (const Instruction& instruction : code_.order) {
      const auto rank = static_cast<std::size_t>(instruction.rank);
      const auto operand = static_cast<std::size_t>(instruction.operand);
      double& now = clock_[rank];
      const auto book = [&](double until) {
        accounts_[rank * account_count + instruction.account] += until - now;
        now = until;
      };
      switch (instruction.kind) {
        case Instruction::Kind::compute: {
          const double begin = now;
          book(begin + compute_seconds_[operand]);
          record(instruction.rank, instruction.place, Event::Lane::compute, begin, now);
          break;
        }
        case Instruction::Kind::post:
          posted_[operand] = now;
          break;
        case Instruction::Kind::send: {
          const auto route = static_cast<std::size_t>(code_.transfer_route[operand]);
          double& lane = lane_free_[static_cast<std::size_t>(code_.routes[route].lane)];
          const double begin = std::max({now, posted_[operand], lane});
          lane = begin + route_seconds_[route];
          arrived_[operand] = lane;
          if (lane > begin) record(instruction.rank, instruction.place, Event::Lane::send, begin, lane);
          break;
        }
        case Instruction::Kind::wait:
          if (arrived_[operand] > now) {
            const double begin = now;
            book(arrived_[operand]);
            record(instruction.rank, instruction.place, Event::Lane::compute, begin, now);
          }
          break;
        case Instruction::Kind::collective: {
          const Collective& collective = code_.collectives[operand];
          double end = 0;
          for (const Rank member : collective.members) end = std::max(end, clock_[member.index()]);
          end += collective_seconds_[operand];
          for (std::size_t i = 0; i < collective.members.size(); ++i) {
            const Rank member = collective.members[i];
            double& clock = clock_[member.index()];
            accounts_[member.index() * account_count + wait_other] += end - clock;
            if (end > clock) record(member.value, collective.places[i], Event::Lane::compute, clock, end);
            clock = end;
          }
          break;
        }
      }
    }
  }

  void conclude() {
    const double makespan = clock_.empty() ? 0 : *std::max_element(clock_.begin(), clock_.end());
    double busy = 0;
    for (std::size_t r = 0; r < clock_.size(); ++r) {
      const double* account = &accounts_[r * account_count];
      RankTimes& times = result_.ranks[r];
      times.forward = Seconds{account[forward]};
      times.backward = Seconds{account[backward]};
      times.step = Seconds{account[step]};
      times.wait_activation = Seconds{account[wait_activation]};
      times.wait_gradient = Seconds{account[wait_gradient]};
      times.wait_send = Seconds{account[wait_send]};
      times.wait_other = Seconds{account[wait_other]};
      times.idle_end = Seconds{makespan - clock_[r]};
      busy += times.busy().value;
    }
    result_.makespan = Seconds{makespan};
    result_.bubble = makespan > 0 ? 1 - busy / static_cast<double>(clock_.size()) / makespan : 0;
  }

  /// The optimizer step an action belongs to, counted from the segment's start.
  [[nodiscard]] int step_of(const Action& action) const {
    if (action.group.valid()) return action.group.value;
    if (action.tag.payload == Payload::loss && is_transfer(action.op)) return action.tag.micro_batch.value;
    const MicroBatch micro_batch = is_transfer(action.op) ? action.tag.micro_batch : action.micro_batch;
    return micro_batch.valid() ? program_.group_of(micro_batch).value : 0;
  }

  const LoweredProgram& program_;
  const Instructions code_;
  std::size_t actions_ = 0;
  // From the costs, seconds.
  std::vector<double> compute_seconds_;  // per seat and part
  std::vector<double> route_seconds_;
  std::vector<double> collective_seconds_;
  // Of the run under way, seconds.
  std::vector<double> clock_;     // per rank
  std::vector<double> accounts_;  // per rank and account
  std::vector<double> posted_;    // per transfer; written before it is read, as the order is topological
  std::vector<double> arrived_;   // per transfer; likewise
  std::vector<double> lane_free_;
  Simulation result_;
};

Simulator::Simulator(const LoweredProgram& program) : impl_(std::make_unique<Impl>(program)) {}
Simulator::~Simulator() = default;
Simulator::Simulator(Simulator&&) noexcept = default;
Simulator& Simulator::operator=(Simulator&&) noexcept = default;

const Simulation& Simulator::run(const CostTable& costs, Timeline* timeline) {
  return impl_->run(costs, false, timeline);
}
const Simulation& Simulator::run_free_links(const CostTable& costs) {
  return impl_->run(costs, true, nullptr);
}
std::size_t Simulator::actions() const { return impl_->actions(); }

Simulation simulate(const LoweredProgram& program, const CostTable& costs, Timeline* timeline) {
  return Simulator(program).run(costs, timeline);
}

Simulation simulate_free_links(const LoweredProgram& program, const CostTable& costs) {
  return Simulator(program).run_free_links(costs);
}

}  // namespace stagecraft
