#include "schedules/simulator/simulator.h"

#include "base/error.h"
#include "schedules/program/consecutive.h"
#include "schedules/simulator/contention.h"
#include "schedules/simulator/critical_path.h"
#include "schedules/simulator/instructions.h"
#include "schedules/simulator/jitter.h"
#include "schedules/simulator/lost_time.h"
#include "schedules/simulator/pass.h"
#include "schedules/simulator/prices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

namespace stagecraft {

using simulator::Causes;
using simulator::Collective;
using simulator::Hooks;
using simulator::Instruction;
using simulator::Instructions;
using simulator::Links;
using simulator::Prices;
using simulator::Sending;

namespace {

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

/// The optimizer step an action belongs to, counted from the segment's start.
int step_of(const ProgramHeader& program, const Action& action) {
  if (action.group.valid()) return action.group.value;
  const bool transfer = is_transfer(action.op);
  if (transfer && action.tag.is_loss()) return action.tag.group().value;
  const MicroBatch micro_batch = transfer ? action.tag.micro_batch() : action.micro_batch;
  return micro_batch.valid() ? program.group_of(micro_batch).value : 0;
}

class TimelineHooks : public Hooks {
 public:
  TimelineHooks(const LoweredProgram& program, Timeline& timeline) : program_(program), timeline_(timeline) {
    timeline.rank_names = rank_names(program.placement, program.ranks.size());
    timeline.events.clear();
  }
  void computed(const Instruction& i, double begin, double end) {
    record(i.rank, i.place, Event::Lane::compute, begin, end);
  }
  void sent(const Instruction& i, const Sending& sending) {
    if (sending.end > sending.begin) record(i.rank, i.place, Event::Lane::send, sending.begin, sending.end);
  }
  void waited(const Instruction& i, double begin, double end) {
    record(i.rank, i.place, Event::Lane::compute, begin, end);
  }
  void summed(const Instruction& i, double joined, double end) {
    if (end > joined) record(i.rank, i.place, Event::Lane::send, joined, end);
  }
  void reduced(const Instruction& i, double begin, double /*joined*/, Rank /*latest*/, double end) {
    record(i.rank, i.place, Event::Lane::compute, begin, end);
  }
  void met(const Collective& collective, const std::vector<double>& clock, double /*last*/, double end) {
    for (std::size_t m = 0; m < collective.members.size(); ++m) {
      const Rank member = collective.members[m];
      if (end > clock[member.index()])
        record(member.value, collective.places[m], Event::Lane::compute, clock[member.index()], end);
    }
  }
  void finish() {
    std::stable_sort(timeline_.events.begin(), timeline_.events.end(), [](const Event& a, const Event& b) {
      return std::tie(a.rank, a.begin) < std::tie(b.rank, b.begin);
    });
  }

 private:
  void record(std::int32_t rank, std::int32_t place, Event::Lane lane, double begin, double end) {
    const Action& action = program_.ranks[static_cast<std::size_t>(rank)][static_cast<std::size_t>(place)];
    timeline_.events.push_back(
        Event{Rank{rank}, lane, action, Seconds{begin}, Seconds{end}, step_of(program_, action)});
  }

  const LoweredProgram& program_;
  Timeline& timeline_;
};

}  // namespace

class Simulator::Impl {
 public:
  explicit Impl(const LoweredProgram& program, std::optional<PartOf> part = {})
      : program_(program),
        part_(std::move(part)),
        code_(simulator::flatten(program)),
        followed_(can_be_followed(program)),
        state_(code_, program.ranks.size()) {
    result_.ranks.resize(program.ranks.size());
    for (const auto& actions : program.ranks) actions_ += actions.size();
  }

  const Simulation& run(const CostTable& costs, Links links, Timeline* timeline) {
    price(costs, links);
    if (timeline == nullptr) {
      Hooks none;
      pass(none);
    } else {
      TimelineHooks hooks(program_, *timeline);
      pass(hooks);
      hooks.finish();
    }
    conclude();
    return result_;
  }

  Seconds cycle(const CostTable& costs, Links links) {
    price(costs, links);
    if (prices_.shared_link_count == 0 && followed_) return settle();
    Hooks none;
    pass(none);
    if (starters_end_last() || !followed_) return makespan();
    return cycle_on_shared_links(costs);
  }

  CriticalPath critical_path(const CostTable& costs) {
    price(costs, Links::priced);
    return longest();
  }

  Circuit critical_circuit(const CostTable& costs) {
    price(costs, Links::priced);
    if (!followed_) return {longest(), 1};
    (void)settle();
    simulator::PathHooks hooks(code_, state_);
    if (settled_) {
      go_on(hooks);
      return hooks.turn();
    }
    // With as many steps more as there are ranks, a chain has come by one of them twice.
    for (std::size_t more = 0; more <= state_.clock.size() + 1; ++more) {
      go_on(hooks);
      hooks.end_step();
      if (auto circuit = hooks.circuit()) return std::move(*circuit);
    }
    return {};
  }

  std::vector<LostTime> lost_time(const CostTable& costs) {
    price(costs, Links::priced);
    const std::vector<Causes> real = causes();
    const bool equal = level_work();
    const std::vector<Causes> leveled = equal ? real : causes();
    std::vector<LostTime> lost;
    for (std::size_t r = 0; r < real.size(); ++r) {
      const Causes& cause = real[r];
      const double dependency = std::min(cause[simulator::work], leveled[r][simulator::work]);
      lost.push_back({Seconds{cause[simulator::work] - dependency}, Seconds{dependency},
                      Seconds{cause[simulator::transfer]}, Seconds{cause[simulator::blocked_send]},
                      Seconds{cause[simulator::memory]}, Seconds{cause[simulator::barrier]}});
    }
    return lost;
  }

  std::vector<Seconds> sample(const CostTable& costs, const Jitter& jitter) {
    price(costs, Links::priced);
    const simulator::Sigmas sigmas = simulator::sigmas(code_, costs, jitter.stage_spread, jitter.link_spread);
    simulator::JitterHooks hooks(sigmas, jitter.seed);
    std::vector<Seconds> makespans(static_cast<std::size_t>(jitter.samples));
    for (std::size_t n = 0; n < makespans.size(); ++n) {
      hooks.sample(n);
      pass(hooks);
      makespans[n] = makespan();
    }
    std::sort(makespans.begin(), makespans.end());
    return makespans;
  }

  [[nodiscard]] std::size_t actions() const { return actions_; }
  [[nodiscard]] std::int64_t passes() const { return passes_; }

 private:
  static constexpr int kMostSteps = 24;  // a half of them holds whole turns of 2, 3, 4 and 6 steps
  static constexpr double kEqual = 1e-12;

  /// Steps, each from where the one before has left the ranks. Once one takes all of them equally long, so does every
  /// one behind it. Returns how long. It begins where other costs have left them, so that few steps will do.
  Seconds settle() {
    Hooks none;
    if (settled_) {
      state_.begin_at_zero();
    } else {
      pass(none);
      if (starters_end_last()) {
        settled_ = true;
        return makespan();
      }
    }
    before_ = state_.clock;
    double halfway = 0;
    for (int step = 2; step <= kMostSteps; ++step) {
      go_on(none);
      double least = std::numeric_limits<double>::infinity();
      double most = 0;
      for (std::size_t r = 0; r < before_.size(); ++r) {
        least = std::min(least, state_.clock[r] - before_[r]);
        most = std::max(most, state_.clock[r] - before_[r]);
        before_[r] = state_.clock[r];
      }
      if (most - least <= most * kEqual) {
        settled_ = true;
        return Seconds{most};
      }
      if (step == kMostSteps / 2) halfway = makespan().value;
    }
    if (settled_) {  // what is a mean depends on the beginning
      settled_ = false;
      return settle();
    }
    return (makespan() - Seconds{halfway}) / (kMostSteps / 2.0);
  }

  template <class H>
  void go_on(H& hooks) {
    state_.go_on();
    simulator::run_in_order(code_, prices_, state_, hooks);
    ++passes_;
  }

  CriticalPath longest() {
    simulator::PathHooks hooks(code_, state_);
    settled_ = false;
    state_.begin();
    go_on(hooks);
    return hooks.longest();
  }

  /// Then nothing of the next step can begin before all of this one is over: the first stage comes first in it.
  [[nodiscard]] bool starters_end_last() const {
    const double end = makespan().value;
    return std::ranges::all_of(program_.placement.ranks.front(),
                               [&](Rank rank) { return state_.clock[rank.index()] == end; });
  }

  /// There, transfers of one step may go before those of an earlier one, so steps are simulated together.
  Seconds cycle_on_shared_links(const CostTable& costs) {
    constexpr int kFew = 3;
    if (!several_) several_ = std::make_unique<Several>(program_, part_, kFew);
    const Seconds more = several_->more.run(costs).makespan;
    return (more - several_->few.run(costs).makespan) / static_cast<double>(kFew);
  }

  void price(const CostTable& costs, Links links) {
    prices_.set(code_, costs, links, static_cast<std::size_t>(program_.placement.stages()),
                program_.ranks.size(), part_ ? &*part_ : nullptr);
  }

  template <class H>
  void pass(H& hooks) {
    settled_ = false;
    if (prices_.shared_link_count == 0) {
      state_.begin();
      go_on(hooks);
      return;
    }
    ++passes_;
    if (!contention_) contention_.emplace(code_, program_.ranks.size());
    contention_->run(prices_, state_, hooks);
  }

  std::vector<Causes> causes() {
    simulator::LostTimeHooks hooks(code_, prices_, program_.ranks.size());
    pass(hooks);
    return hooks.finish(state_.clock);
  }

  /// Prices as if every rank had equally much work: each rank's are scaled to the mean rank's work. Whether
  /// that changed nothing.
  bool level_work() {
    std::vector<double> times(prices_.compute.size(), 0.0);
    for (const Instruction& i : code_.order) {
      if (i.kind == Instruction::Kind::compute) ++times[static_cast<std::size_t>(i.operand)];
    }
    std::vector<double> work(program_.ranks.size(), 0.0);
    for (std::size_t n = 0; n < times.size(); ++n) {
      work[code_.stage_replicas[n / simulator::part_count].rank.index()] += times[n] * prices_.compute[n];
    }
    const auto [least, most] = std::minmax_element(work.begin(), work.end());
    if (*least == *most) return true;
    const double mean = std::accumulate(work.begin(), work.end(), 0.0) / static_cast<double>(work.size());
    for (std::size_t n = 0; n < times.size(); ++n) {
      const double own = work[code_.stage_replicas[n / simulator::part_count].rank.index()];
      if (own > 0) prices_.compute[n] *= mean / own;
    }
    return false;
  }

  [[nodiscard]] Seconds makespan() const {
    return Seconds{*std::max_element(state_.clock.begin(), state_.clock.end())};
  }

  void conclude() {
    const Seconds end = makespan();
    double busy = 0;
    for (std::size_t r = 0; r < result_.ranks.size(); ++r) {
      const double* account = &state_.accounts[r * simulator::account_count];
      RankTimes& times = result_.ranks[r];
      times.forward = Seconds{account[simulator::forward]};
      times.backward = Seconds{account[simulator::backward]};
      times.step = Seconds{account[simulator::step]};
      times.wait_activation = Seconds{account[simulator::wait_activation]};
      times.wait_gradient = Seconds{account[simulator::wait_gradient]};
      times.wait_send = Seconds{account[simulator::wait_send]};
      times.wait_other = Seconds{account[simulator::wait_other]};
      times.idle_end = Seconds{end.value - state_.clock[r]};
      busy += times.busy().value;
    }
    result_.makespan = end;
    result_.bubble = end > Seconds{} ? 1 - busy / static_cast<double>(result_.ranks.size()) / end.value : 0;
  }

  const LoweredProgram& program_;
  const std::optional<PartOf> part_;
  const Instructions code_;
  const bool followed_;  // by another step without a wait
  std::size_t actions_ = 0;
  std::int64_t passes_ = 0;
  Prices prices_;
  simulator::RunState state_;
  bool settled_ =
      false;  // its ranks are in step: with the costs it comes from, the next step takes all equally long
  std::vector<double> before_;
  std::optional<simulator::Contention> contention_;  // made when a network first has shared links
  /// So many steps and twice as many.
  struct Several {
    Several(const LoweredProgram& step, const std::optional<PartOf>& part, int number)
        : few_steps(repeated(step, number)),
          more_steps(repeated(step, 2 * number)),
          few(part ? Simulator(few_steps, *part) : Simulator(few_steps)),
          more(part ? Simulator(more_steps, *part) : Simulator(more_steps)) {}
    LoweredProgram few_steps, more_steps;
    Simulator few, more;
  };
  std::unique_ptr<Several> several_;  // made when a cycle on shared links is first asked for
  Simulation result_;
};

Simulator::Simulator(const LoweredProgram& program) : impl_(std::make_unique<Impl>(program)) {}
Simulator::Simulator(const LoweredProgram& program, PartOf part)
    : impl_(std::make_unique<Impl>(program, std::move(part))) {}
Simulator::~Simulator() = default;
Simulator::Simulator(Simulator&&) noexcept = default;
Simulator& Simulator::operator=(Simulator&&) noexcept = default;

const Simulation& Simulator::run(const CostTable& costs, Timeline* timeline) {
  return impl_->run(costs, Links::priced, timeline);
}
const Simulation& Simulator::run_free_links(const CostTable& costs) {
  return impl_->run(costs, Links::free, nullptr);
}
Seconds Simulator::cycle(const CostTable& costs) { return impl_->cycle(costs, Links::priced); }
Seconds Simulator::cycle_free_links(const CostTable& costs) { return impl_->cycle(costs, Links::free); }
CriticalPath Simulator::critical_path(const CostTable& costs) { return impl_->critical_path(costs); }
Circuit Simulator::critical_circuit(const CostTable& costs) { return impl_->critical_circuit(costs); }
std::vector<LostTime> Simulator::lost_time(const CostTable& costs) { return impl_->lost_time(costs); }
std::vector<Seconds> Simulator::sample(const CostTable& costs, const Jitter& jitter) {
  return impl_->sample(costs, jitter);
}
std::size_t Simulator::actions() const { return impl_->actions(); }
std::int64_t Simulator::passes() const { return impl_->passes(); }

Simulation simulate(const LoweredProgram& program, const CostTable& costs, Timeline* timeline) {
  return Simulator(program).run(costs, timeline);
}

}  // namespace stagecraft
